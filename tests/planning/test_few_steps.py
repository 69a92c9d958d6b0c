"""A unit that takes part in few steps, which may follow one another: noise cancels between the others."""

import numpy as np
import pytest

from anechoic import error, streaming, workloads
from anechoic.accounting import gaussian_mu
from anechoic.participation import FullBatch, MinSep, Patterns
from anechoic.planning.designs import designs_of
from anechoic.planning.families import family
from anechoic.planning.fixed_order_candidates import FixedOrderCandidates
from anechoic.planning.memory_budget import memory_limit
from anechoic.planning.objective import PlanObjective
from anechoic.sensitivity.dispatch import sensitivity
from tests.sensitivity.brute import supremum

FAMILIES = frozenset({"identity", "banded_toeplitz", "blt", "dense"})
LISTED = Patterns([(0, 1, 2), (1, 5), (2, 3, 4), (6, 7)])


def compared(n, schema):
    designs = designs_of(PlanObjective(workloads.prefix_sum(n), worst=True))
    return list(FixedOrderCandidates(designs, schema, memory_limit(1, None)).of(FAMILIES))


@pytest.mark.parametrize(
    ("n", "schema", "more"),
    [(8, MinSep(1, 2), {"blt"}), (7, MinSep(1, 4), {"blt"}), (8, LISTED, {"blt"})],
    ids=str,
)
@pytest.mark.slow
def test_no_candidate_has_less_than_its_sensitivity_over_all_patterns(n, schema, more):
    found = compared(n, schema)
    assert {family(one) for one in found} >= {"identity", *more}
    for strategy in found:
        assert sensitivity(strategy, schema).value >= supremum(strategy, schema) * (1 - 1e-12), strategy


@pytest.mark.parametrize("schema", [FullBatch(), MinSep(1), MinSep(1, 9), MinSep(1, 20)], ids=str)
def test_where_every_step_touches_everybody_nothing_cancels(schema):
    assert {family(one) for one in compared(9, schema)} == {"identity"}


@pytest.mark.slow
def test_a_week_of_hours_of_five_each_has_less_than_half_the_error_of_independent_noise():
    n, schema = 168, MinSep(1, 5)
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-6, horizon=n, participation=schema)
    made = stream.mechanism
    independent = np.sqrt(5 * n) / gaussian_mu(1.0, 1e-6)
    assert made.noise_std * error(workloads.prefix_sum(n), made.strategy).max < 0.45 * independent

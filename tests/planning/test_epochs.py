"""Once in each epoch, or in a few steps that may follow one another: plans compare correlated noise there."""

import numpy as np
import pytest

from anechoic import error, plan, streaming, workloads
from anechoic.accounting import gaussian_mu
from anechoic.participation import FullBatch, MinSep, OncePerEpoch, Patterns
from anechoic.planning.designs import designs_of
from anechoic.planning.families import family, label
from anechoic.planning.fixed_order_candidates import FixedOrderCandidates
from anechoic.planning.memory_budget import memory_limit
from anechoic.planning.objective import PlanObjective
from anechoic.sensitivity.dispatch import sensitivity
from tests.sensitivity.brute import supremum

FAMILIES = frozenset({"identity", "banded_toeplitz", "blt", "dense"})
#: Steps and epochs: whole ones, the last one cut short or of one step, one epoch, and one that is longer.
SHAPES = [(8, 4), (7, 3), (9, 2), (10, 3), (7, 6), (5, 5), (5, 24), (4, 1)]


LISTED = Patterns([(0, 1, 2), (1, 5), (2, 3, 4), (6, 7)])
FEW = [(8, MinSep(1, 2)), (7, MinSep(1, 4)), (8, LISTED)]


def compared(n, schema, *, worst=True):
    designs = designs_of(PlanObjective(workloads.prefix_sum(n), worst=worst))
    return designs, list(FixedOrderCandidates(designs, schema, memory_limit(1, None)).of(FAMILIES))


@pytest.mark.parametrize(
    ("n", "schema"), [*((n, OncePerEpoch(period)) for n, period in SHAPES), *FEW], ids=str
)
@pytest.mark.slow
def test_no_candidate_has_less_than_its_sensitivity_over_all_patterns(n, schema):
    for worst in (True, False):
        found = compared(n, schema, worst=worst)[1]
        assert (n, schema) not in FEW or {family(one) for one in found} >= {"identity", "blt"}
        for strategy in found:
            truth, claimed = supremum(strategy, schema), sensitivity(strategy, schema)
            assert claimed.value >= truth * (1 - 1e-12), strategy.describe()
            assert not claimed.exact or claimed.value <= truth * (1 + 1e-9), strategy.describe()


@pytest.mark.parametrize("schema", [FullBatch(), MinSep(1), MinSep(1, 9), MinSep(1, 20)], ids=str)
def test_where_every_step_touches_everybody_nothing_cancels(schema):
    assert {family(one) for one in compared(9, schema)[1]} == {"identity"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.slow
def test_a_stream_takes_the_least_error_and_its_noise_is_enough_for_every_pattern(shape):
    n, period = shape
    designs, found = compared(n, OncePerEpoch(period))
    mechanism = streaming.Stream(
        streaming.Count(), epsilon=1.0, delta=1e-6, horizon=n, participation=OncePerEpoch(period)
    ).mechanism
    truth = supremum(mechanism.strategy, OncePerEpoch(period))
    assert mechanism.noise_std >= truth / gaussian_mu(1.0, 1e-6) * (1 - 1e-9)
    errors = [designs.of(one) * supremum(one, OncePerEpoch(period)) for one in found]
    own = error(workloads.prefix_sum(n), mechanism.strategy).max * truth
    assert own <= 1.002 * min(errors)  # "about as good" counts as equal, and the least memory wins


@pytest.mark.slow
def test_one_epoch_is_one_participation_and_epochs_of_one_step_leave_nothing_to_cancel():
    assert {family(one) for one in compared(9, OncePerEpoch(9))[1]} == FAMILIES
    assert {family(one) for one in compared(9, OncePerEpoch(3))[1]} == FAMILIES
    assert {family(one) for one in compared(9, OncePerEpoch(1))[1]} == {"identity"}


@pytest.mark.slow
def test_long_runs_compare_what_takes_seconds():
    labels = [label(one) for one in compared(600, OncePerEpoch(200))[1]]
    assert {family(one) for one in compared(600, OncePerEpoch(200))[1]} == {
        "identity",
        "banded_toeplitz",
        "blt",
    }
    assert "BLT(buffers=2)" in labels
    assert "BLT(buffers=2), normalized" not in labels


@pytest.mark.parametrize(
    ("n", "schema", "times", "ratio"),
    [(24, OncePerEpoch(8), 3, 0.46), (48, OncePerEpoch(24), 2, 0.33), (168, MinSep(1, 5), 5, 0.45)],
)
@pytest.mark.slow
def test_a_stream_has_a_fraction_of_the_error_of_independent_noise(n, schema, times, ratio):
    made = streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-6, horizon=n, participation=schema)
    independent = np.sqrt(times * n) / gaussian_mu(1.0, 1e-6)
    noise = made.mechanism.noise_std * error(workloads.prefix_sum(n), made.mechanism.strategy).max
    assert noise < ratio * independent


@pytest.mark.slow
def test_a_plan_shows_more_than_independent_noise():
    found = plan(
        examples=4000, batch_size=100, steps=400, epsilon=2.0, delta=1e-6, participation=OncePerEpoch(40)
    )
    assert {family(row.mechanism.strategy) for row in found.rows} == {"identity", "banded_toeplitz", "blt"}
    assert found.chosen.mechanism.participation == OncePerEpoch(40)
    independent = next(row for row in found.rows if family(row.mechanism.strategy) == "identity")
    assert found.chosen.predicted < 0.5 * independent.predicted

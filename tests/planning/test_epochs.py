"""Once in each epoch, anywhere in it: plans compare correlated noise, by a sensitivity that holds."""

import numpy as np
import pytest

from anechoic import error, plan, streaming, workloads
from anechoic.accounting import gaussian_mu
from anechoic.participation import OncePerEpoch
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


def compared(n, period, *, worst=True):
    designs = designs_of(PlanObjective(workloads.prefix_sum(n), worst=worst))
    return designs, list(
        FixedOrderCandidates(designs, OncePerEpoch(period), memory_limit(1, None)).of(FAMILIES)
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.slow
def test_no_candidate_has_less_than_its_sensitivity_over_all_patterns(shape):
    for worst in (True, False):
        for strategy in compared(*shape, worst=worst)[1]:
            truth = supremum(strategy, OncePerEpoch(shape[1]))
            found = sensitivity(strategy, OncePerEpoch(shape[1]))
            assert found.value >= truth * (1 - 1e-12), strategy.describe()
            assert not found.exact or found.value <= truth * (1 + 1e-9), strategy.describe()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.slow
def test_a_stream_takes_the_least_error_and_its_noise_is_enough_for_every_pattern(shape):
    n, period = shape
    designs, found = compared(n, period)
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
    assert {family(one) for one in compared(9, 9)[1]} == FAMILIES
    assert {family(one) for one in compared(9, 3)[1]} == FAMILIES
    assert {family(one) for one in compared(9, 1)[1]} == {"identity"}


@pytest.mark.slow
def test_long_runs_compare_what_takes_seconds():
    labels = [label(one) for one in compared(600, 200)[1]]
    assert {family(one) for one in compared(600, 200)[1]} == {"identity", "banded_toeplitz", "blt"}
    assert "BLT(buffers=2)" in labels
    assert "BLT(buffers=2), normalized" not in labels


@pytest.mark.parametrize(("n", "period", "ratio"), [(24, 8, 0.46), (48, 24, 0.33)])
@pytest.mark.slow
def test_a_stream_has_a_fraction_of_the_error_of_independent_noise(n, period, ratio):
    over, schema = streaming.Running(), OncePerEpoch(period)
    mechanism = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=n, participation=schema).mechanism
    independent = np.sqrt(n * -(-n // period)) / gaussian_mu(1.0, mechanism.delta)
    assert mechanism.noise_std * error(over.workload(n), mechanism.strategy).max < ratio * independent


@pytest.mark.slow
def test_a_plan_shows_more_than_independent_noise():
    found = plan(
        examples=4000, batch_size=100, steps=400, epsilon=2.0, delta=1e-6, participation=OncePerEpoch(40)
    )
    assert {family(row.mechanism.strategy) for row in found.rows} == {"identity", "banded_toeplitz", "blt"}
    assert found.chosen.mechanism.participation == OncePerEpoch(40)
    independent = next(row for row in found.rows if family(row.mechanism.strategy) == "identity")
    assert found.chosen.predicted < 0.5 * independent.predicted

"""BLTs for the objective of DP-MF+: the closed form against the matrix, the optimum against all Toeplitz."""

import math

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.optimize.series.blt_errors import MaterialisedError
from anechoic.optimize.series.blt_objective import BLTObjective, parameters
from anechoic.optimize.series.blt_restarts import RestartSums
from anechoic.optimize.series.toeplitz_objective import quadratic_form
from anechoic.participation import MinSep, Single
from anechoic.strategies import BLT
from tests.marks import in_turn, slow

# the last one has decays that are 0, or next to it
GAPS = [[0.1, 0.2], [1e-4, 1e-5, 1e-2, 0.5], [1e-3, 3.0, 0.1, 30.0]]


@in_turn(("n", "period"), [(1, 1), (1, 3), (7, 3), (9, 9), (8, 20), (23, 1), (23, 5), (31, 16), (101, 50)])
@in_turn("gaps", GAPS)
def test_the_closed_form_is_the_error_of_the_dense_matrix(n, period, gaps):
    workload, gaps = workloads.restart_differences(workloads.prefix_sum(n), period=period), np.array(gaps)
    value, gradient = BLTObjective(n, n, 1, RestartSums(n, period))(gaps)
    strategy = BLT(n, *parameters(gaps))
    decoder = workload.to_dense() @ np.linalg.inv(strategy.to_dense())
    dense = math.log(np.linalg.norm(decoder) / math.sqrt(n) * np.linalg.norm(strategy.to_dense()[:, 0]))
    assert value == pytest.approx(dense, abs=1e-12)
    # gradients by the recursion over n coefficients, which knows nothing of the sums
    by_steps = MaterialisedError(np.ones(n), quadratic_form(workload, "rms")[1])
    slow, slopes = BLTObjective(n, n, 1, "rms", by_steps)(gaps)
    assert value == pytest.approx(slow, abs=1e-12)
    assert gradient == pytest.approx(slopes, rel=1e-7, abs=1e-11)


def test_no_digits_are_lost_next_to_one():
    """Decays within 1e-9 of 1, and differences of their powers: as many digits as the recursion has."""
    n, period, gaps = 999, 100, np.array([1e-9, 1e-9, 1e-3, 0.5])
    workload = workloads.restart_differences(workloads.prefix_sum(n), period=period)
    value, _ = BLTObjective(n, n, 1, RestartSums(n, period))(gaps)
    assert value == pytest.approx(math.log(loss(workload, BLT(n, *parameters(gaps)), Single())), abs=1e-11)


@pytest.mark.parametrize(
    ("n", "period", "over"), [(129, 129, 1.001), *slow((129, 16, 1.013), (65, 100, 1.001))]
)
@pytest.mark.slow
def test_what_is_found_is_near_the_best_toeplitz_strategy(n, period, over):
    """Where the best coefficients change sign a BLT of falling ones stays 1 % above."""
    workload = workloads.restart_differences(workloads.prefix_sum(n), period=period)
    found, best = optimize.blt(workload, buffers=3), optimize.toeplitz(workload)
    assert best.loss <= found.loss * (1 + 1e-9)
    assert found.loss <= over * best.loss
    assert found.loss == pytest.approx(loss(workload, found.strategy, Single()))
    plain = optimize.blt(workloads.prefix_sum(n), buffers=3).strategy
    assert found.loss < loss(workload, plain, Single()) * (1.0 if period <= n else 1 + 1e-9)


@pytest.mark.slow
def test_several_participations_and_other_sums():
    schema = MinSep(20)
    workload = workloads.restart_differences(workloads.momentum(61, 0.5), period=8)
    found = optimize.blt(workload, buffers=2, participation=schema)
    shares = np.linspace(0.05, 1, 12)  # scales of at most the decay: the inverse does not change sign
    trials = [BLT(61, [d * share], [d]) for share in shares for d in np.linspace(0.05, 0.95, 12)]
    assert found.loss <= min(loss(workload, one, schema) for one in trials)
    assert found.loss < 1.03 * optimize.toeplitz(workload, participation=schema).loss

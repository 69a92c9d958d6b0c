"""Learning rates that differ by orders of magnitude: errors keep their digits, and so do bounds."""

import numpy as np
import pytest
from mpmath import mp, mpf

from anechoic import strategies, workloads
from anechoic.algebra import banded
from anechoic.losses.dispatch import _kept_digits, error
from anechoic.optimize.columns.objective import DenseObjective, SumsObjective, objective_of
from anechoic.optimize.columns.search import weighted
from anechoic.workloads.inverses import recursion_columns
from tests.marks import each_once

N = 24
RATES = {"blocks": np.arange(N) % 6 < 3, "alternating": np.arange(N) % 2 < 1}


def rates(name, ratio):
    if name == "falling":
        return np.geomspace(1.0, ratio, N)
    if name == "random":
        return np.exp(np.random.default_rng(1).uniform(np.log(ratio), 0.0, N))
    return np.where(RATES[name], 1.0, ratio)


def exact_errors(workload, strategy):
    """Row norms of A C^-1 with 50 digits."""
    a, c = workload.to_dense(), strategy.to_dense()
    norms = np.zeros(len(a))
    with mp.workdps(50):
        exact = [[mpf(float(value)) for value in row] for row in c]
        for t in range(len(a)):
            x = [mpf(0)] * (t + 1)
            for j in range(t, -1, -1):
                inner = sum((x[i] * exact[i][j] for i in range(j + 1, t + 1) if c[i, j]), mpf(0))
                x[j] = (mpf(float(a[t, j])) - inner) / exact[j][j]
            norms[t] = float(mp.sqrt(sum(value**2 for value in x)))
    return norms


WORKLOADS = {
    "sums": lambda r: workloads.scheduled(workloads.prefix_sum(N), r),
    "momentum": lambda r: workloads.momentum(N, 0.9, learning_rates=r),
    "restarts": lambda r: workloads.restart_differences(
        workloads.scheduled(workloads.prefix_sum(N), r), period=6
    ),
    "window": lambda r: workloads.scheduled(workloads.sliding_window(N, 5), r),
}
PLAIN = workloads.prefix_sum(N)
STRATEGIES = {
    "banded": strategies.BandedToeplitz(N, [1.0, 0.5, 0.3]),
    "normalised": strategies.ColumnNormalized(strategies.BandedToeplitz(N, [1.0, 0.5, 0.3])),
    "free": strategies.Banded(
        N, banded.inside(np.random.default_rng(0).uniform(0.5, 1.0, (N, 3)) * [1, 0.5, 0.2])
    ),
    "root": strategies.Toeplitz.square_root(PLAIN),
    "inverse": strategies.BandedInverse(N, [1.0, -0.5, -0.1]),
    "blt": strategies.BLT(N, [0.3, 0.1], [0.9, 0.5]),
}


@pytest.mark.parametrize(
    ("name", "shape", "ratio"),
    each_once(WORKLOADS, ["blocks", "alternating", "falling", "random"], [1e-4, 1e-12]),
)
def test_errors_keep_their_digits(name, shape, ratio):
    workload = WORKLOADS[name](rates(shape, ratio))
    for kind, strategy in STRATEGIES.items():
        found = error(workload, strategy).per_step
        np.testing.assert_allclose(found, exact_errors(workload, strategy), rtol=2e-9, err_msg=kind)


def test_sums_objective_is_the_dense_one():
    workload = WORKLOADS["momentum"](rates("random", 1e-2))
    columns = strategies.banded.columns_of(STRATEGIES["free"])
    sums, dense = SumsObjective(*recursion_columns(workload), 3), DenseObjective(workload.to_dense())
    weights = np.random.default_rng(2).uniform(size=N)
    weights /= weights.sum()
    np.testing.assert_allclose(sums.squares(columns), dense.squares(columns), rtol=1e-9)
    mine, other = sums(columns, weighted(weights)), dense(columns, weighted(weights))
    assert mine.value == pytest.approx(other.value, rel=1e-10)
    np.testing.assert_allclose(mine.gradient, banded.inside(other.gradient), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(
        banded.inside(sums.multipliers(columns, weights)),
        dense.multipliers(columns, weights),
        rtol=1e-6,
        atol=1e-12,
    )


def test_a_window_of_the_sums_objective_is_a_part_of_it():
    n = 240
    workload = workloads.scheduled(workloads.prefix_sum(n), np.where(np.arange(n) % 2, 1.0, 1e-3))
    objective = objective_of(workload, 3)
    assert isinstance(objective, SumsObjective)
    columns = banded.inside(np.random.default_rng(0).uniform(0.5, 1.0, (n, 3)) * [1.0, 0.5, 0.2])
    weights = np.full(n, 1.0 / n)
    whole = objective(columns, weighted(weights)).gradient
    state = objective.state(columns, weights)
    for blocks in (range(4), range(3, 7), range(objective.count - 4, objective.count)):
        window = objective.window(columns, weights, state, blocks)
        value, gradient = window(columns[window.free])
        assert np.isfinite(value)
        np.testing.assert_allclose(gradient, whole[window.free], rtol=1e-8, atol=1e-14)


def test_rows_that_shrink_are_not_made_from_rows():
    assert _kept_digits(np.array([1.0, 2.0, 1e-3]))
    assert not _kept_digits(np.array([1.0, 2.0, 1e-6]))
    assert not _kept_digits(np.array([1.0, np.nan]))

"""One row that all participations share: against every pattern of participation, and where it is needed."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from anechoic.accounting.accountant import accountant_of
from anechoic.accounting.poisson import common_row as module
from anechoic.accounting.poisson.common_row import CommonRow, common_row
from anechoic.accounting.poisson.conditional import DIRECTIONS
from anechoic.accounting.poisson.tails import quantile
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.strategies import BLT, BandedToeplitz, Dense
from tests.accounting.poisson.test_conditional import (
    EPSILONS,
    log_weights,
    patterns,
    random_matrix,
    true_deltas,
)
from tests.marks import each_once, each_pair, in_turn

LONG = BLT(200, [0.1, 0.05], [0.99, 0.9])


def written_out(row):
    return np.vstack([row.unit * row.levels, np.diag(row.own)])


@in_turn("groups", [1, 2, 3])
@in_turn(
    "strategy",
    [
        BLT(7, [0.3, 0.2], [0.9, 0.4]),
        BandedToeplitz(11, [1.0, 0.2, 0.9, 0.0, 0.7]),
        BandedToeplitz(5, [0.1, 3.0, 0.1, 5.0]),
        Dense(matrix=random_matrix(7, 3)),
        Dense(matrix=random_matrix(4, 4)),
    ],
)
def test_products_are_at_least_those_of_every_group(strategy, groups):
    row = common_row(strategy, groups, 0.1)
    matrix, dense = written_out(row), strategy.to_dense()
    assert matrix.shape[1] == -(-strategy.n // groups)
    for first in range(groups):
        columns = dense[:, first::groups]
        count = columns.shape[1]
        assert ((matrix.T @ matrix)[:count, :count] >= columns.T @ columns).all()


def test_long_runs_have_one_level_and_products_as_large(monkeypatch):
    strategy = BLT(301, [0.1, 0.05], [0.99, 0.9])
    fine = common_row(strategy, 2, 0.1)
    monkeypatch.setattr(module, "MOST_DENSE", 300)
    coarse = common_row(strategy, 2, 0.1)
    assert np.ptp(coarse.levels) == 0 < np.ptp(fine.levels)
    assert coarse.unit * coarse.levels[0] == pytest.approx(fine.unit * fine.levels[0], rel=1e-6)
    dense = strategy.to_dense()[:, ::2]
    assert ((written_out(coarse).T @ written_out(coarse)) >= dense.T @ dense).all()


@pytest.mark.parametrize(
    ("strategy", "rate", "std", "direction"),
    each_once(
        [
            (Dense(matrix=random_matrix(2, 1)), 0.5, 0.8),
            (Dense(matrix=random_matrix(5, 3)), 0.1, 0.7),
            (BLT(7, [0.3, 0.2], [0.9, 0.4]), 0.05, 0.7),
            (BLT(7, [0.5, 0.2], [0.98, 0.4]), 0.4, 3.0),
        ],
        DIRECTIONS,
    ),
)
@pytest.mark.few(2)
def test_never_below_the_mixture_over_all_patterns(strategy, rate, std, direction):
    truth = true_deltas(strategy.to_dense(), rate, std, EPSILONS, direction)
    row = common_row(strategy, 1, rate)
    for exceeded in (1e-4, 1e-2):
        composed = row.composed(std, exceeded, direction)
        for epsilon, (estimate, error) in zip(EPSILONS, truth, strict=True):
            assert estimate - 4 * error <= composed.delta(epsilon)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("std", "rate"), [(0.6, 0.3), (2.0, 0.05)])
def test_two_steps_by_integration(std, rate, direction):
    """All four patterns on a grid of the plane: no sampling error."""
    matrix = np.array([[1.0, 0.0], [0.8, 0.6]])
    x = patterns(2)
    weights, means = np.exp(log_weights(x, rate)), x @ matrix.T
    grid = np.linspace(-9 * std, 9 * std + 2, 901)
    densities = [np.multiply.outer(*(norm.pdf(grid, m, std) for m in mean)) for mean in means]
    with_unit, without = sum(w * d for w, d in zip(weights, densities, strict=True)), densities[0]
    one, other = (with_unit, without) if direction == "remove" else (without, with_unit)
    composed = common_row(Dense(matrix=matrix), 1, rate).composed(std, 1e-3, direction)
    for epsilon in EPSILONS:
        true = np.clip(one - math.exp(epsilon) * other, 0, None).sum() * (grid[1] - grid[0]) ** 2
        assert true * (1 - 1e-6) <= composed.delta(epsilon) <= (1.0 if std < 1 else 3 * true + 4e-3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_row_alone_is_the_mixture_of_counts(direction):
    count, rate, std = 9, 0.1, 1.5
    row = CommonRow(0.25, np.full(count, 4.0), np.zeros(count), rate)
    composed = row.composed(std, 1e-6, direction)
    y = np.linspace(-15, 25, 400_001)
    k = np.arange(count + 1)
    with_unit = sum(w * norm.pdf(y, j, std) for j, w in zip(k, binom.pmf(k, count, rate), strict=True))
    one, other = with_unit, norm.pdf(y, 0, std)
    one, other = (one, other) if direction == "remove" else (other, one)
    for epsilon in (0.0, 0.2, 0.8):
        true = np.clip(one - math.exp(epsilon) * other, 0, None).sum() * (y[1] - y[0])
        assert true <= composed.delta(epsilon) <= true * 1.01 + 2e-6


def test_odds_below_the_threshold_are_bounded_whatever_the_others():
    row = common_row(BLT(6, [0.5, 0.2], [0.98, 0.4]), 1, 0.2)
    common, std, threshold = row.unit * row.levels, 0.9, 2.5
    x = patterns(6)
    for y in (-3.0, 0.7, threshold):
        posterior = np.exp(log_weights(x, 0.2) - (y - x @ common) ** 2 / (2 * std**2))
        bound = 0.25 * np.exp((2 * threshold * common - common**2) / (2 * std**2))
        for j in range(6):
            taking = x[:, j] == 1
            assert (posterior[taking] <= posterior[~taking] * bound[j] * (1 + 1e-12)).all()


@pytest.mark.parametrize("rate", [0.004, 0.3])
def test_the_threshold_is_exceeded_as_seldom_as_promised(rate):
    row = common_row(LONG, 1, rate)
    points, mass, lost = row._sum(1e-6)
    assert mass.sum() + lost == pytest.approx(1.0, abs=1e-9)
    assert lost <= 1.1e-6
    threshold = quantile(points, mass, 3.0, 3.0, 1e-2)
    rng, common = np.random.default_rng(0), row.unit * row.levels
    sums = (rng.random((20_000, 200)) < rate) @ common + 3.0 * rng.standard_normal(20_000)
    assert (sums > threshold).mean() <= 1e-2 + 4 * math.sqrt(1e-2 / 20_000)
    # atoms are rounded up, and by little
    mean = rate * common.sum()
    assert mean * (1 - 1e-4) <= mass @ points <= mean * 1.05


@pytest.mark.slow
def test_few_participations_in_overlapping_bands():
    """2.75 by other bounds than those of a common row, and of patterns; 0.17 by a simulation of the pair."""
    accountant = accountant_of(Poisson(1000, 4, 200), LONG, "zero_out", "deterministic")
    found = accountant._common.epsilon(0.01, 3.0, 9.0)
    assert 0.16 < found < 0.38
    assert accountant._patterns.epsilon(0.01, 3.0, 9.0) > 0.16


def test_what_cannot_be_shown_is_left_to_others():
    assert common_row(LONG, 1, 0.3).epsilon(1e-5, 0.01, 123.0) == 123.0
    assert common_row(BandedToeplitz(5, [1.0, 0.5]), 3, 0.1) is None  # nothing in common


@pytest.mark.slow
def test_the_accountant_takes_the_least():
    accountant = accountant_of(Poisson(1000, 4, 200), LONG, "zero_out", "deterministic")
    assert accountant.bound(0.01, 3.0) < 0.38
    std = accountant.noise_std(0.3, 0.01)
    assert std < 3.7
    assert 0.295 < accountant.bound(0.01, std) <= 0.3
    cyclic = accountant_of(CyclicPoisson(1000, 4, 2, 200), LONG, "zero_out", "deterministic")
    assert cyclic.bound(0.01, 3.0) > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("entries", "std", "delta", "rate"),
    each_pair(
        [[1.0, 0.9, 0.8], [1e-3, 1.0, 1e8]],
        [(1e-12, 0.1), (0.8, 1e-12), (0.8, 0.9), (1e12, 1e-3)],
        [1e-300, 1e-12, 1 - 2**-53],
    ),
)
@pytest.mark.few(3)
def test_extremes_end_in_a_number(entries, std, delta, rate):
    """A bisection without end where noise vanishes beside the sum, grids of width 0, flat losses."""
    strategy, known = BandedToeplitz(7, entries), 123.0
    found = common_row(strategy, 1, rate).epsilon(delta, std, known)
    assert 0 <= found <= known
    strict = accountant_of(Poisson(10**6, 1, 7), strategy, "zero_out", "deterministic")
    assert 0 <= strict._chain.epsilon(delta, std, known) <= known

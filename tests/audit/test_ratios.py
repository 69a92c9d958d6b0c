"""Likelihood ratios against brute force over all patterns and their probabilities."""

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from anechoic.audit.participation_law import ParticipationLaw, law_of
from anechoic.audit.ratios import likelihood_ratios
from anechoic.errors import UnsupportedError
from anechoic.participation import MinSep
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    External,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Dense, Identity, Restarted, Toeplitz
from tests.accounting.test_attacks import allocation_law, bins_law, min_sep_law
from tests.marks import in_turn

N = 7
COIN = np.array(list(product([False, True], repeat=N))).T  # every pattern, shape (n, 2^n)


def poisson(rate, possible):
    allowed = ~(COIN & ~possible[:, None]).any(axis=0)
    count, most = COIN.sum(axis=0), possible.sum()
    return np.where(allowed, rate**count * (1 - rate) ** np.maximum(most - count, 0), 0.0)


def of_coins(law):
    """The probability of every pattern of COIN."""
    found = np.zeros(2**N)
    for steps, probability in law.items():
        found[sum(2 ** (N - 1 - t) for t in steps)] += probability
    return found


BANDED = BandedToeplitz(N, [1.0, 0.6, 0.3])
SEPARATED = MinSepSampling(90, 20, 3, N)
STEP = np.arange(N)
SCHEMES = {
    "Poisson": (Identity(N), Poisson(100, 30, N), poisson(0.3, STEP >= 0)),
    "Poisson, everyone": (Identity(N), Poisson(100, 100, N), poisson(1.0, STEP >= 0)),
    "cyclic": (BANDED, CyclicPoisson(90, 20, 3, N), poisson(2 / 3, STEP % 3 == 0)),
    "cyclic normalised": (ColumnNormalized(BANDED), CyclicPoisson(90, 9, 3, N), poisson(0.3, STEP % 3 == 0)),
    "bins": (BANDED, BallsInBins(90, 3, N), of_coins(bins_law(3, N))),
    "bins that overlap": (Toeplitz(N, 0.6**STEP), BallsInBins(90, 2, N), of_coins(bins_law(2, N))),
    "allocation": (Identity(N), RandomAllocation(90, 3, N), of_coins(allocation_law(3, N))),
    "allocation restarted": (
        Restarted(Toeplitz(3, [1.0, 0.5, 0.2]), 3, N),
        RandomAllocation(90, 3, N),
        of_coins(allocation_law(3, N)),
    ),
    "min-sep": (BANDED, SEPARATED, of_coins(min_sep_law(3, SEPARATED.rate, N))),
    "min-sep of one": (Identity(N), MinSepSampling(100, 30, 1, N), poisson(0.3, STEP >= 0)),
}


@in_turn("opposite", [False, True])
@in_turn("name", SCHEMES)
def test_ratios_are_those_of_the_mixture_over_all_patterns(name, opposite):
    strategy, sampling, weights = SCHEMES[name]
    assert weights.sum() == pytest.approx(1.0)
    rng, std = np.random.default_rng(0), 0.8
    rows = rng.standard_normal((N, 4))
    possible = STEP % 3 == 0 if name.startswith("cyclic") else STEP >= 0
    means, y = strategy.to_dense() @ COIN, strategy.to_dense() @ rows

    def mixture(sign):
        distance = np.square(y[:, :, None] - sign * means[:, None, :]).sum(axis=0) / (2 * std**2)
        with np.errstate(divide="ignore"):
            return logsumexp(-distance + np.log(weights), axis=1)

    base = mixture(-1.0) if opposite else -np.square(y).sum(axis=0) / (2 * std**2)
    found = likelihood_ratios(
        strategy, sampling, rows, std, possible=np.repeat(possible[:, None], 4, axis=1), opposite=opposite
    )
    assert np.allclose(found, mixture(1.0) - base, atol=1e-9)


@pytest.mark.parametrize("name", SCHEMES)
def test_drawn_patterns_follow_the_law(name):
    _, sampling, weights = SCHEMES[name]
    count, law = 40_000, law_of(sampling)
    drawn, possible = law.draw_units(count, np.random.default_rng(3))
    by_hazards = ParticipationLaw.draw(law, possible, np.random.default_rng(4))
    for part in (drawn, by_hazards):
        assert not (part & ~possible).any()
        number = 2 ** np.arange(N)[::-1] @ part
        found = np.bincount(number, minlength=2**N) / count
        assert (np.abs(found - weights) <= 5 * np.sqrt(weights * (1 - weights) / count) + 1e-12).all()


@pytest.mark.parametrize(
    ("strategy", "sampling", "message"),
    [
        (BANDED, Poisson(90, 9, N), "Poisson lets one unit"),
        (BANDED, RandomAllocation(90, 3, N), "RandomAllocation lets one unit"),
        (BANDED, MinSepSampling(90, 20, 2, N), "MinSepSampling lets one unit"),
        (Identity(N), FixedOrder(90, 20, steps=N), "no likelihood ratio is known"),
    ],
)
def test_where_the_formula_does_not_hold_it_is_refused(strategy, sampling, message):
    with pytest.raises(UnsupportedError, match=message):
        likelihood_ratios(strategy, sampling, np.ones((N, 2)), 1.0)


def test_small_columns_overlap_too():
    """Columns are compared with their own norms: 1e-8 beside 1 is no rounding error."""
    dense = np.diag([1.0, 1e-8, 1e-8])
    dense[2, 1] = 1e-8
    with pytest.raises(UnsupportedError, match="columns 1 and 2"):
        likelihood_ratios(Dense(matrix=dense), RandomAllocation(90, 2, 3), np.ones((3, 2)), 1.0)


def test_unsampled_schemes_have_no_law():
    with pytest.raises(UnsupportedError, match="External sampling has no law"):
        law_of(External(MinSep(2), 5, N))

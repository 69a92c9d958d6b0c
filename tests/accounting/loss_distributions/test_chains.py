"""Gauss-Markov chains: against integration and Monte Carlo, refinement, and what they must dominate."""

import math

import mpmath
import numpy as np
import pytest

from anechoic.accounting import gaussian_delta
from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.loss_distributions.chains import (
    BinChain,
    _rounded_normal,
    chains,
    largest_at_lags,
)
from anechoic.accounting.loss_distributions.likelihood_ratio import gaussian_deltas
from anechoic.strategies import BLT, BandedToeplitz, Dense, Identity, Toeplitz
from tests.accounting.integration import exact_deltas, verify
from tests.marks import each_once


@pytest.mark.parametrize("mu", [0.01, 1.0, 40.0])
def test_deltas_of_a_gaussian_have_the_digits_that_bounds_count_on(mu):
    """In the tails too; bounds are raised by 1e-10 of what is summed."""
    places = np.array([-37.0, -20.0, -3.0, 0.0, 1.0, 8.0, 29.9, 30.1, 60.0, 1000.0])
    epsilons = mu * (mu / 2 - places)
    with mpmath.workdps(60):
        m = mpmath.mpf(mu)
        for epsilon, found in zip(epsilons.tolist(), gaussian_deltas(epsilons, mu).tolist(), strict=True):
            tails = [mpmath.ncdf(sign * m / 2 - epsilon / m) for sign in (1, -1)]
            exact = float(tails[0] - mpmath.exp(epsilon) * tails[1])
            assert found == pytest.approx(exact, rel=5e-12, abs=1e-305)


def covariance(chain):
    lags = np.abs(np.subtract.outer(np.arange(chain.count), np.arange(chain.count)))
    return chain.shared + chain.variance * chain.correlation**lags


@pytest.mark.parametrize(
    ("std", "chain"),
    each_once(
        [0.6, 1.5], [BinChain(2, 0.0, 1.0, 0.6), BinChain(2, 0.3, 0.5, 0.0), BinChain(3, 0.0, 1.0, 0.9)]
    ),
)
@pytest.mark.slow
def test_the_law_lies_above_the_integral_and_close(chain, std):
    epsilons = (0.2, 1.0, 2.0)
    exact = exact_deltas(covariance(chain), std, epsilons)
    law = chain.law(std, 3.0, 1e-7)
    for epsilon, (remove, add) in zip(epsilons, exact, strict=True):
        assert remove * (1 - 3e-3) <= law.remove(epsilon) <= 1.1 * remove + 1e-8
        assert add * (1 - 3e-3) <= law.add(epsilon) <= 1.1 * add + 1e-8
        assert law.delta(epsilon) == max(law.remove(epsilon), law.add(epsilon))


@pytest.mark.slow  # few bins against the integral above
def test_more_bins_by_monte_carlo():
    chain, std = BinChain(40, 0.1, 1.0, 0.8), 1.3
    law, mixture = chain.law(std, 2.0, 1e-6), Mixture(covariance(chain))
    for epsilon in (0.3, 1.0):
        estimate = verify(mixture, epsilon, std, samples=200_000, failure=1e-3)
        assert 0.99 * estimate.delta < law.delta(epsilon) < 1.06 * estimate.delta


def test_shared_part_alone_is_nearly_a_gaussian():
    """With v next to nothing the pair is one Gaussian of mu = sqrt(a) / s."""
    law = BinChain(5, 1.0, 1e-6, 0.5).law(1.0, 4.0, 1e-7)
    for epsilon in (0.2, 1.0, 3.0):
        exact = gaussian_delta(epsilon, 1.0)
        assert exact * (1 - 1e-6) <= law.remove(epsilon) <= 1.002 * exact
        assert exact * (1 - 1e-6) <= law.add(epsilon) <= 1.002 * exact


@pytest.mark.slow
def test_what_lies_above_the_grid_counts():
    """Asked far beyond the epsilon that the grid was made for, the law is still a bound."""
    chain = BinChain(2, 0.0, 1.0, 0.5)
    exact = exact_deltas(covariance(chain), 0.6, (1.5, 3.0))
    law = chain.law(0.6, 0.5, 1e-7)
    for epsilon, (remove, add) in zip((1.5, 3.0), exact, strict=True):
        assert law.remove(epsilon) >= remove * (1 - 3e-3)
        assert law.add(epsilon) >= add * (1 - 3e-3) - 1e-12


def test_masses_and_means_are_kept():
    law = BinChain(25, 0.0, 0.8, 0.7).law(1.0, 1.0, 1e-6)
    assert law.masses.sum() + law.above == pytest.approx(1.0, abs=1e-11)
    mean = law.masses @ law.values + law.above_mean
    assert 1.0 <= mean <= math.exp(law.inflation)


def test_rounding_is_without_bias_and_to_neighbours():
    points = 0.3 * np.arange(-40, 41)
    means = np.array([-1.0, 0.07, 2.5])
    weights = _rounded_normal(means, 0.9, points)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(weights @ points, means, atol=1e-12)
    variance = weights @ points**2 - means**2
    assert (variance > 0.81).all()
    assert (variance < 0.81 + 0.3**2 / 4).all()


def test_rounded_tails_keep_their_relative_precision():
    """Both tails, against the integral of the hat functions, and beyond the ends."""
    points = 0.25 * np.arange(-60, 61)
    weights = _rounded_normal(np.array([0.1]), 1.0, points)[0]
    for place in (5, 20, 40, 80, 100, 115):
        x = np.linspace(points[place] - 0.25, points[place] + 0.25, 20_001)
        hat = 1 - np.abs(x - points[place]) / 0.25
        exact = np.trapezoid(hat * np.exp(-((x - 0.1) ** 2) / 2), x) / math.sqrt(2 * math.pi)
        assert weights[place] == pytest.approx(exact, rel=1e-6)
    ends = _rounded_normal(np.array([-20.0, 20.0]), 0.5, points)
    assert ends[0, 0] == pytest.approx(1.0, abs=1e-12)
    assert ends[1, -1] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [
        Toeplitz(50, 0.9 ** np.arange(50)),
        BandedToeplitz(47, [1.0, 0.5, 0.375]),
        BLT(60, [0.3, 0.2], [0.9, 0.3]),
        Identity(50),
        Dense(np.tril(np.random.default_rng(0).uniform(0, 1, (40, 40))) + np.eye(40)),
    ],
    ids=lambda s: type(s).__name__,
)
@pytest.mark.parametrize("bins", [1, 2, 13, 24])
def test_every_shift_of_the_bins_lies_below_every_chain(strategy, bins):
    """The bins of a chain are 0, q, 2 q, …, shifted by anything; q is found from the candidates' length."""
    gram = bins_gram(strategy, bins)
    at_lags = largest_at_lags(gram)
    for chain in chains(gram):
        above = covariance(chain)[0]
        fits = [
            spacing
            for spacing in range(1, bins + 1)
            if (chain.count - 1) * spacing < bins
            and (at_lags[: chain.count * spacing : spacing] <= above * (1 + 1e-9)).all()
        ]
        assert fits
        spacing = min(fits)
        for shift in range(bins):
            places = (shift + spacing * np.arange(chain.count)) % bins
            assert len(set(places.tolist())) == chain.count
            assert (gram[np.ix_(places, places)] <= covariance(chain) * (1 + 1e-9)).all()

"""b-min-sep sampling: the recursion against enumeration, and its two ends, Poisson and balls in bins."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from anechoic.accounting import Verified, poisson_epsilon
from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.loss_distributions.importance_sampling import Tilt
from anechoic.accounting.min_sep.accountant import MinSepAccountant
from anechoic.accounting.min_sep.pair import MinSepPair
from anechoic.errors import UnsupportedError
from anechoic.sampling import MinSepSampling
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Dense, Identity
from tests.accounting.integration import verify
from tests.accounting.test_attacks import min_sep_law


@pytest.mark.parametrize(("n", "b", "size"), [(7, 3, 20), (8, 2, 50), (6, 6, 10), (7, 1, 30), (9, 4, 25)])
def test_recursion_is_the_sum_over_patterns(n, b, size):
    strategy = ColumnNormalized(BandedToeplitz(n, [1.0, 0.6, 0.3][:b]))
    sampling = MinSepSampling(100, size, b, n)
    pair, std = MinSepPair(strategy, sampling), 1.3
    law, c = min_sep_law(b, sampling.rate, n), strategy.to_dense()
    assert sum(law.values()) == pytest.approx(1)
    accountant = MinSepAccountant(strategy, sampling, "zero_out", Verified(1000, 1e-9, 0))
    assert accountant.taking_part == pytest.approx(1 - law[()], abs=1e-11)
    means = np.array([c[:, list(steps)].sum(axis=1) for steps in law])
    weights = np.array(list(law.values()))
    assert pair.largest == pytest.approx((means**2).sum(axis=1).max())
    assert pair.average == pytest.approx(weights @ (means**2).sum(axis=1))
    assert pair.shared == pytest.approx(((weights @ means) ** 2).sum())
    drawn = pair.draw(np.random.default_rng(0), 0, 50)
    for amount in (1.0, 2.5):
        losses, ratios = pair.pairs(drawn, std, Tilt("remove", -math.inf, amount, 1.0))
        y = drawn.normals * std + amount * (c @ drawn.joined)
        logs = np.log(weights)[:, None] - (means**2).sum(axis=1)[:, None] / (2 * std**2)
        np.testing.assert_allclose(losses, logsumexp(logs + means @ y / std**2, axis=0), atol=1e-9)
        tilted = np.log(weights)[:, None] - amount**2 * (means**2).sum(axis=1)[:, None] / (2 * std**2)
        np.testing.assert_allclose(ratios, logsumexp(tilted + amount * means @ y / std**2, axis=0), atol=1e-9)
    losses, ratios = pair.pairs(drawn, std, Tilt("add", -math.inf, 1.5, 1.0))
    mean = weights @ means
    y = drawn.normals * std - 1.5 * mean[:, None]
    np.testing.assert_allclose(losses, logsumexp(logs + means @ y / std**2, axis=0), atol=1e-9)
    exact = -1.5 * mean @ y / std**2 - 1.5**2 * mean @ mean / (2 * std**2)
    np.testing.assert_allclose(ratios, exact, atol=1e-9)


def test_patterns_are_drawn_from_their_law():
    pair = MinSepPair(Identity(6), MinSepSampling(100, 20, 3, 6))
    law, count = min_sep_law(3, pair._rate, 6), 40_000
    joined = pair.draw(np.random.default_rng(1), 0, count).joined
    seen = dict.fromkeys(law, 0)
    for column in joined.T.astype(int):
        seen[tuple(np.flatnonzero(column).tolist())] += 1
    expected = np.array([law[steps] * count for steps in seen])
    observed = np.array(list(seen.values()))
    assert ((observed - expected) ** 2 / expected).sum() < len(law) + 5 * math.sqrt(2 * len(law))


@pytest.mark.slow
def test_rate_one_is_balls_in_bins():
    strategy = BandedToeplitz(24, [1, 0.5, 0.3])
    pair, mixture = MinSepPair(strategy, MinSepSampling(600, 100, 6, 24)), Mixture(bins_gram(strategy, 6))
    assert pair._rate == 1.0
    assert (pair.largest, pair.average, pair.shared) == pytest.approx(
        (mixture.largest, mixture.average, mixture.shared)
    )
    a, b = (verify(p, 1.0, 3.0, samples=60_000, failure=1e-6) for p in (pair, mixture))
    assert a.delta == pytest.approx(b.delta, rel=0.05)


@pytest.mark.slow
def test_separation_one_is_poisson_sampling():
    pair = MinSepPair(Identity(20), MinSepSampling(1000, 100, 1, 20))
    epsilon = poisson_epsilon(1e-3, 1.5, 0.1, 20)
    assert verify(pair, epsilon, 1.5, samples=100_000, failure=1e-6).delta == pytest.approx(1e-3, rel=0.15)
    assert pair.noise_std(epsilon, 1e-3) == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (BandedToeplitz(12, [1.0, 0.5, 0.3, 0.2]), "bands=4 exceeds separation=3"),
        (Dense(np.eye(12) - 0.1 * np.eye(12, k=-1)), "negative entries"),
    ],
)
def test_refusals(strategy, message):
    with pytest.raises(UnsupportedError, match=message):
        MinSepPair(strategy, MinSepSampling(100, 10, 3, 12))

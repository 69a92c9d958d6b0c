"""Mixtures of Gaussians: against the plain Gaussian, numerical integration and the second-order oracle."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import norm

from anechoic.accounting import gaussian_delta, gaussian_mu
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.loss_distributions.importance_sampling import Tilt, _values
from tests.accounting.integration import random_gram, verify
from tests.marks import each_pair


def sampled(mixture, epsilon, std, tilt, samples=200_000, seed=3):
    """(mean, standard error, largest) of the values under a tilt."""
    block = mixture.draw(np.random.default_rng(seed), 0, samples)
    values = _values(*mixture.pairs(block, std, tilt), epsilon, tilt.direction)
    mean = values.sum() / samples
    return mean, math.sqrt((values**2).sum() / samples / samples), values.max(initial=0.0)


def exact_on_a_line(a, b, epsilon, direction):
    x = np.linspace(-14, 18, 400_001)
    p, q = (norm.pdf(x, a) + norm.pdf(x, b)) / 2, norm.pdf(x)
    first, second = (p, q) if direction == "remove" else (q, p)
    return np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), x)


@pytest.mark.parametrize("std", [0.8, 2.0])
def test_one_bin_is_the_gaussian_mechanism(std):
    found = verify(Mixture(np.array([[4.0]])), 0.5, std, samples=200_000, failure=1e-6)
    exact = gaussian_delta(0.5, 2.0 / std)
    assert found.delta == pytest.approx(exact, rel=0.02)
    assert exact < found.upper < 1.1 * exact


@pytest.mark.parametrize(
    ("amount", "a", "b", "direction"),
    each_pair([None, 0.0, 0.7, 2.0], [(1.0, 2.5), (0.0, 2.0), (1.5, 1.5)], ["remove", "add"]),
)
@pytest.mark.few(2)
def test_every_tilt_has_the_same_mean(direction, a, b, amount):
    mixture = Mixture(np.outer([a, b], [a, b]) + 1e-12 * np.eye(2))
    tilt = mixture.tilt(0.4, 1.0, direction)
    if amount is not None:
        tilt = Tilt(direction, 0.4, amount + (direction == "remove"), math.inf)
    mean, error, _ = sampled(mixture, 0.4, 1.0, tilt)
    assert mean == pytest.approx(exact_on_a_line(a, b, 0.4, direction), abs=5 * error + 1e-6)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.slow
def test_no_value_exceeds_the_proven_range(direction):
    """Also at points that sampling never visits: the worst y is searched for."""
    rng = np.random.default_rng(1)
    for trial in range(9):
        bins = int(rng.integers(1, 6))
        means = np.abs(rng.standard_normal((bins, bins)))
        if trial % 3 == 0:
            means = np.eye(bins)
        gram, std, epsilon = means.T @ means, float(rng.uniform(0.7, 3)), float(rng.uniform(0.1, 3))
        mixture = Mixture(gram)
        tilt = mixture.tilt(epsilon, std, direction)
        average = means.mean(axis=1)

        def log_value(y, means=means, std=std, epsilon=epsilon, tilt=tilt, average=average):
            x, own, t = means.T @ y / std**2, (means**2).sum(axis=0) / (2 * std**2), tilt.amount
            loss = logsumexp(x - own) - math.log(len(x))
            gap = epsilon - loss if direction == "remove" else epsilon + loss
            if gap >= 0:  # the value is 0 here: lead back
                return -1e3 - gap
            if direction == "remove":
                weight = logsumexp(t * x - t * t * own) - math.log(len(x)) - loss
            else:
                weight = -t * (average @ y) / std**2 - t * t * (average @ average) / (2 * std**2)
            return math.log(-math.expm1(gap)) - weight

        for start in range(3):
            sign = 1 if direction == "remove" else -1
            y = sign * means.sum(axis=1) * (start + 1) + rng.standard_normal(bins)
            found = minimize(lambda y: -log_value(y), y, method="Nelder-Mead", options={"maxiter": 800})
            assert -found.fun <= math.log(tilt.range) + 1e-6
        assert sampled(mixture, epsilon, std, tilt, 5000)[2] <= tilt.range * (1 + 1e-9)


@pytest.mark.parametrize(("bins", "rank"), [(3, 5), (7, 7), (8, 3), (20, 40)])
@pytest.mark.few(2)
def test_second_order_oracle(bins, rank):
    """E_Q (dP/dQ)^2 = mean of exp(G_ij / s^2) for any Gram matrix (Lemma 3.2 and a Gaussian integral)."""
    gram = random_gram(bins, rank, seed=bins)
    std = 1.6 * math.sqrt(gram.max())
    mixture = Mixture(gram)
    # every sample is kept: the value of "add" is positive at epsilon = -inf
    everything = Tilt("add", -math.inf, 0.0, 1.0)
    block = mixture.draw(np.random.default_rng(5), 0, 200_000)
    losses, weights = mixture.pairs(block, std, everything)
    assert len(losses) == 200_000 and not weights.any()
    exact = np.exp(gram / std**2).mean()
    squares = np.exp(2 * losses)
    assert squares.mean() == pytest.approx(exact, abs=5 * squares.std() / math.sqrt(len(squares)))
    assert np.exp(losses).mean() == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
def test_epsilon_is_where_the_bound_meets_delta():
    gram = random_gram(6, 6, seed=8)
    mixture, std = Mixture(gram), 1.5 * math.sqrt(gram.max())
    [found] = mixture.epsilons([1e-4], std, samples=100_000, failure=1e-6)
    assert verify(mixture, found, std, samples=400_000, failure=1e-6, seed=7).delta < 1e-4
    assert verify(mixture, 0.93 * found, std, samples=400_000, failure=1e-6, seed=7).delta > 1e-4
    assert mixture.epsilons([1e-9], std, samples=1000, failure=1e-12) == [math.inf]  # too few samples


@pytest.mark.slow
def test_calibration_meets_its_target_on_other_samples():
    gram = random_gram(12, 12, seed=6)
    mixture = Mixture(gram)
    std = mixture.noise_std(1.0, 1e-4)
    assert verify(mixture, 1.0, std, samples=200_000, failure=0.01).delta == pytest.approx(1e-4, rel=0.1)
    safe = mixture.noise_std_to_verify(1.0, 1e-4, samples=200_000, failure=1e-6)
    assert std < safe < 1.05 * std
    assert verify(mixture, 1.0, safe, samples=200_000, failure=1e-6).upper <= 1e-4


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (np.ones((2, 3)), "shape"),
        (np.array([[1.0, -0.5], [-0.5, 1.0]]), "entry -0.5"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "eigenvalue"),
        (np.array([[1.0, 0.2], [0.4, 1.0]]), "symmetric"),
        (np.array([[np.nan]]), "finite"),
    ],
)
def test_refusals(gram, message):
    with pytest.raises(ValueError, match=message):
        Mixture(gram)


@pytest.mark.parametrize("ratio", [1e3, 1e6, 1e7, 1e9, 1e12])
def test_small_bins_beside_a_large_one_keep_their_noise(ratio):
    """Where one bin is always seen, the others decide: at every ratio as at 1e3 (1.978 was said at 1e7)."""
    gram = np.diag([ratio**2] + [1.0] * 9)
    found = verify(Mixture(gram), 1.978, 0.5, samples=100_000, failure=1e-6, seed=1)
    assert found.delta == pytest.approx(0.1663, abs=0.002)
    factor = Mixture(gram)._factor
    lengths = np.sqrt(gram.diagonal())
    off = np.abs(factor @ factor.T - gram) / lengths / lengths[:, None]
    assert off.max() < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_what_is_sampled_lies_above_the_gram_matrix(seed):
    """Entry by entry, for means of any size and nearly parallel ones: a larger matrix is never safer."""
    rng = np.random.default_rng(seed)
    means = np.abs(rng.standard_normal((5, 9))) * 10.0 ** rng.uniform(-9, 9, 9)
    means[:, 3] = means[:, 2] * (1 + 1e-9)
    means[:, 5] = 0.0
    gram = means.T @ means
    mixture = Mixture(gram)
    assert (mixture.gram >= gram).all()
    assert (mixture._factor @ mixture._factor.T >= gram).all()
    lengths = np.where(gram.diagonal() > 0, np.sqrt(gram.diagonal()), 1.0)
    assert (np.abs(mixture.gram - gram) / lengths / lengths[:, None]).max() < 1e-11


def test_noise_to_verify_is_at_most_that_without_sampling():
    """At a small epsilon and delta the confidence term alone exceeds delta, whatever the noise."""
    mixture = Mixture(np.eye(10))
    found = mixture.noise_std_to_verify(0.1, 1e-12, samples=1000, failure=1e-14)
    assert found == pytest.approx(1.0 / gaussian_mu(0.1, 1e-12))


def test_no_noise_is_looked_for_where_any_would_do():
    with pytest.raises(ValueError, match="any noise would do"):
        Mixture(np.diag([1.0, 0.0, 0.0, 0.0])).noise_std(1.0, 0.3, samples=1000)

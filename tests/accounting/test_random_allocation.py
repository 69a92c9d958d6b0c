"""One of t steps: against integration, plain Monte Carlo, published values, and what must be monotone."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp, ndtr

from anechoic.accounting import (
    gaussian_delta,
    gaussian_epsilon,
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from anechoic.accounting.likelihood import constant, gaussian_ratio, product_of, sum_of
from anechoic.accounting.random_allocation import one_of


def two_steps(epsilon, sigma, direction):
    """Exact delta of one of two steps: a call (or put) on the second log-normal, given the first."""
    x = np.linspace(-14, 14, 200_001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    strike = 2 * math.exp(epsilon if direction == "remove" else -epsilon) - np.exp(x / sigma - 0.5 / sigma**2)
    positive = np.maximum(strike, 1e-300)
    d = (-np.log(positive) + 0.5 / sigma**2) * sigma
    if direction == "remove":
        value = np.where(strike > 0, ndtr(d) - positive * ndtr(d - 1 / sigma), 1 - strike) / 2
    else:
        put = positive * ndtr(1 / sigma - d) - ndtr(-d)
        value = np.where(strike > 0, put, 0.0) * math.exp(epsilon) / 2
    return np.trapezoid(value * density, x)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_two_steps_by_integration(sigma, epsilon, direction):
    exact = two_steps(epsilon, sigma, direction)
    found = getattr(one_of(2, sigma), direction)(epsilon)
    assert exact * (1 - 1e-7) - 1e-15 <= found <= exact * 1.01 + 1e-12


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_one_step_is_the_gaussian_mechanism_also_composed(mu):
    for epsilon in (0.0, 0.5, 3.0):
        exact = gaussian_delta(epsilon, math.hypot(1 / 1.3, mu))
        ratio = one_of(1, 1.3)
        assert exact * (1 - 1e-9) <= ratio.remove(epsilon, mu) <= 1.002 * exact
        assert exact * (1 - 1e-9) <= ratio.add(epsilon, mu) <= 1.002 * exact


@pytest.mark.parametrize(("t", "sigma", "epsilon"), [(5, 0.8, 1.0), (30, 1.0, 0.5), (200, 2.0, 0.05)])
@pytest.mark.parametrize("made", [None, 3])
def test_more_steps_by_monte_carlo(t, sigma, epsilon, made):
    rng, samples = np.random.default_rng(0), 60_000
    epsilon = epsilon if made is None else 0.5 * epsilon / t
    steps = t if made is None else made
    x = rng.standard_normal((samples, steps)) / sigma - 0.5 / sigma**2
    idle = np.full((samples, 1), math.log(t - steps) if t > steps else -np.inf)
    losses = logsumexp(np.hstack([x, idle]), axis=1) - math.log(t)  # under Q
    for values, found in (
        (np.maximum(np.exp(losses) - math.exp(epsilon), 0), one_of(t, sigma, made).remove(epsilon)),
        (np.maximum(1 - np.exp(epsilon + losses), 0), one_of(t, sigma, made).add(epsilon)),
    ):
        assert found == pytest.approx(
            values.mean(), rel=0.01, abs=5 * values.std() / math.sqrt(samples) + 1e-6
        )


@pytest.mark.parametrize(
    ("sigma", "t", "published", "poisson"),
    [(1, 8, 3.726, 5.102), (1, 64, 1.806, 1.938), (2, 64, 0.345, 0.389)],
)
def test_published_values_are_upper_bounds_of_ours(sigma, t, published, poisson):
    """delta = 1e-8, remove; published as a pessimistic grid's result (moshenfeld/PLD_accounting): rounding
    in convex order lies below it, by up to 5 % at the smallest."""
    found = random_allocation_epsilon(1e-8, sigma, t, t)
    assert 0.95 * published < found < published < poisson


def test_laws_keep_their_mean_and_refining_lowers_the_bound():
    ratio = gaussian_ratio(0.9)
    total = sum_of(ratio, 13)
    assert total.mean == pytest.approx(13, rel=1e-12)
    assert total.mass.sum() + total.zero == pytest.approx(1, rel=1e-12)
    assert product_of(ratio, 5).mean == pytest.approx(1, rel=1e-12)
    assert constant(7.3, 0.01).mean == pytest.approx(7.3, rel=1e-12)
    fine = ratio
    for _ in range(3):
        fine = fine.refined()
    for epsilon in (0.0, 1.0):
        assert sum_of(fine, 13).over(13).delta(epsilon) <= total.over(13).delta(epsilon)
        assert total.over(13).delta(epsilon) <= 1.01 * sum_of(fine, 13).over(13).delta(epsilon)


def test_several_epochs():
    """Fewer bits for more steps; two epochs of one step are one Gaussian of twice the mu squared."""
    assert random_allocation_epsilon(1e-6, 2.0, 1, 2) == gaussian_epsilon(1e-6, math.sqrt(2) / 2)
    values = [random_allocation_epsilon(1e-6, 1.0, 10, steps) for steps in (5, 10, 13, 20, 40)]
    assert values == sorted(values)
    assert values[-1] < gaussian_epsilon(1e-6, 2.0)
    assert product_of(one_of(1, 2.0), 2).delta(0.5) == pytest.approx(
        gaussian_delta(0.5, math.sqrt(2) / 2), rel=2e-3
    )


@pytest.mark.parametrize(("epsilon", "steps"), [(0.5, 20), (4.0, 35)])
def test_noise_meets_its_target(epsilon, steps):
    sigma = random_allocation_noise_multiplier(epsilon, 1e-6, 10, steps)
    assert random_allocation_epsilon(1e-6, sigma, 10, steps) <= epsilon * (1 + 1e-6)
    assert random_allocation_epsilon(1e-6, sigma * 0.999, 10, steps) > epsilon


def test_refusals():
    for bad in ((0.0, 1.0, 2, 2), (1e-6, -1.0, 2, 2), (1e-6, 1.0, 0, 2), (1e-6, 1.0, 2, 1.5)):
        with pytest.raises(ValueError, match="must"):
            random_allocation_epsilon(*bad)

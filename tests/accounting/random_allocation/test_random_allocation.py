"""One of t steps: against integration, plain Monte Carlo, published values, and what must be monotone."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from anechoic.accounting import gaussian_delta, gaussian_epsilon
from anechoic.accounting.loss_distributions.likelihood_ratio import Ratio, gaussian_ratio, product_of
from anechoic.accounting.random_allocation.epsilon import (
    one_of,
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from tests.marks import each_once


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_one_step_is_the_gaussian_mechanism_also_composed(mu):
    for epsilon in (0.0, 0.5, 3.0):
        exact = gaussian_delta(epsilon, math.hypot(1 / 1.3, mu))
        ratio = one_of(1, 1.3)
        assert exact * (1 - 1e-9) <= ratio.remove(epsilon, mu) <= 1.002 * exact
        assert exact * (1 - 1e-9) <= ratio.add(epsilon, mu) <= 1.002 * exact


@pytest.mark.parametrize(
    ("made", "t", "sigma", "epsilon"), each_once([None, 3], [(5, 0.8, 1.0), (30, 1.0, 0.5), (200, 2.0, 0.05)])
)
@pytest.mark.slow
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
    ("sigma", "t", "epochs", "delta"),
    [(1.0, 2, 3, 1e-5), (3.0, 6, 4, 1e-6), (0.6, 5, 1, 1e-8), (1.5, 16, 2, 1e-5)],
)
@pytest.mark.slow
def test_between_the_bounds_of_its_authors(sigma, t, epochs, delta):
    """pld-accounting's own upper and lower bound, which lie within 5 % of one another."""
    theirs = pytest.importorskip("PLD_accounting")
    high, low = theirs.gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=t, num_epochs=epochs
    )
    assert low <= random_allocation_epsilon(delta, sigma, t, t * epochs) <= high <= 1.05 * low


def test_several_epochs():
    """Fewer bits for more steps; two epochs of one step are one Gaussian of twice the mu squared."""
    assert random_allocation_epsilon(1e-6, 2.0, 1, 2) == pytest.approx(
        gaussian_epsilon(1e-6, math.sqrt(2) / 2), rel=1e-9
    )
    values = [random_allocation_epsilon(1e-6, 1.0, 10, steps) for steps in (5, 10, 13, 20, 40)]
    assert values == sorted(values)
    assert values[-1] < gaussian_epsilon(1e-6, 2.0)
    assert product_of(one_of(1, 2.0), 2).delta(0.5) == pytest.approx(
        gaussian_delta(0.5, math.sqrt(2) / 2), rel=2e-3
    )


@pytest.mark.parametrize(("epsilon", "steps"), [(0.5, 20), (4.0, 35)])
@pytest.mark.slow
def test_noise_meets_its_target(epsilon, steps):
    sigma = random_allocation_noise_multiplier(epsilon, 1e-6, 10, steps)
    assert random_allocation_epsilon(1e-6, sigma, 10, steps) <= epsilon * (1 + 1e-6)
    assert random_allocation_epsilon(1e-6, sigma * 0.999, 10, steps) > epsilon


def test_refusals():
    for bad in ((0.0, 1.0, 2, 2), (1e-6, -1.0, 2, 2), (1e-6, 1.0, 0, 2), (1e-6, 1.0, 2, 1.5)):
        with pytest.raises(ValueError, match="must"):
            random_allocation_epsilon(*bad)


@pytest.mark.parametrize("count", [7, 120, 99_991])
@pytest.mark.slow
def test_counts_that_are_no_power_of_two_lie_between_their_neighbours(count):
    """With much noise the sums of 2^i copies lie many grid points apart."""
    near = [random_allocation_epsilon(1e-6, 2e4, 2**power, 2**power) for power in (2, 3, 6, 7, 16, 17)]
    found = random_allocation_epsilon(1e-6, 2e4, count, count)
    assert near == sorted(near, reverse=True)
    place = sum(2**power < count for power in (2, 3, 6, 7, 16, 17))
    assert near[place] * 0.999 <= found <= near[place - 1]


@pytest.mark.parametrize(
    ("noise", "period", "steps"), [(20_000.0, 1000, 1), (200.0, 1000, 10), (2000.0, 100, 130), (2e3, 7, 7)]
)
@pytest.mark.parametrize("delta", [1e-6, 1e-9, 1e-12])
def test_little_is_lost_where_epsilon_is_tiny(noise, period, steps, delta):
    """With much noise the run is a Gaussian mechanism; an epoch cut short has a ratio near 1."""
    found = random_allocation_epsilon(delta, noise, period, steps)
    limit = gaussian_epsilon(delta, math.sqrt(steps) / period / noise)
    assert limit <= found <= 1.01 * limit + 1e-10


@pytest.mark.parametrize("width", [0.02, 0.3, 1.0])
@pytest.mark.parametrize(
    ("first", "atoms", "other"), [(0, 5, 5), (-3, 40, 17), (2, 1, 4), (30, 4, 6), (900, 3, 2)]
)
def test_a_sum_splits_every_pair_of_atoms_between_its_two_neighbours(width, first, atoms, other):
    """Of the pair's sum on the grid, with its mean kept; also of a law with its own copy."""
    draw = np.random.default_rng(atoms)
    a, b = (Ratio(width, at, draw.dirichlet(np.ones(n))) for at, n in ((first, atoms), (0, other)))
    a = a if width * first < 300.0 else Ratio(width, 290, a.mass)
    for left, right in ((a, b), (b, a), (a, a)):
        found = left.plus(right)
        sums, masses = np.add.outer(np.exp(left.logs), np.exp(right.logs)), np.outer(left.mass, right.mass)
        places = np.floor(np.log(sums) / width + 1e-9).astype(int)
        ups = np.maximum(sums * np.exp(-places * width) - 1.0, 0.0) / math.expm1(width)
        expected = np.zeros(len(found.mass) + 2)
        np.add.at(expected, places - found.first, (1.0 - ups) * masses)
        np.add.at(expected, places - found.first + 1, ups * masses)
        np.testing.assert_allclose(expected, np.pad(found.mass, (0, 2)), atol=1e-13)


def test_grids_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="power of two"):
        gaussian_ratio(5.0).plus(gaussian_ratio(5.1))

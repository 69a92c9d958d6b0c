"""What the best of a random number of runs shows: between an explicit attack and the bound of others."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

import anechoic as an
from anechoic.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from anechoic.accounting.loss_distributions.profile import Profile, gaussian_bound, profile_of_bounds
from anechoic.accounting.selection import selection_epsilon
from anechoic.keys import derive
from anechoic.selection.repetitions import Repetitions
from anechoic.selection.selection import Selection
from tests.marks import slow

DELTA = 1e-6
THRESHOLDS = np.linspace(0.5, 7, 40)


def bound(mu, repetitions, delta=DELTA):
    near, tail = 2 * gaussian_epsilon(delta, mu), delta * 1e-4 / max(1.0, repetitions.mean)
    return selection_epsilon(
        profile_of_bounds([gaussian_bound(mu)], near, tail), repetitions.log_slope, delta
    )


def attack(epsilon, ahead, behind, repetitions, thresholds=THRESHOLDS):
    """The largest delta(epsilon) over some orders of outcomes of one law against another one, exactly.

    Laws are mixtures [(weight, mean)] of unit Gaussians. Each cell of an outcome beyond a threshold takes the
    place among the others, in falling order, at which it tells most; the best of K has the law f(F), which
    is summed over the cells.
    """

    def slope(ranks):
        return np.exp(repetitions.log_slope(1 - ranks)[0])

    def density(law, z):
        return sum(weight * np.exp(mean * z - mean * mean / 2) for weight, mean in law)

    z = np.linspace(-8, 8, 4001)
    gain = slope(sum(weight * ndtr(z + mean) for weight, mean in ahead))
    cost = math.exp(epsilon) * slope(sum(weight * ndtr(z + mean) for weight, mean in behind))
    found = 0.0
    for threshold in thresholds:
        tail = np.append(np.linspace(threshold, threshold + 4, 300), threshold + 40)
        middle = 0.5 * (tail[:-1] + np.minimum(tail[1:], tail[:-1] + 0.01))
        told = density(ahead, middle) / density(behind, middle)
        place = z[np.argmax(gain[:, None] * told - cost[:, None], axis=0)]
        bulk = np.concatenate([[-40.0], np.linspace(-9, threshold, 800)])
        ranks = np.concatenate([-0.5 * (bulk[:-1] + bulk[1:]), place])
        order = np.argsort(ranks, kind="stable")
        low = np.concatenate([bulk[:-1], tail[:-1]])[order]
        high = np.concatenate([bulk[1:], tail[1:]])[order]
        seen = [law_of_best(law, low, high, repetitions) for law in (ahead, behind)]
        found = max(found, float(np.maximum(seen[0] - math.exp(epsilon) * seen[1], 0.0).sum()))
    return found


def law_of_best(law, low, high, repetitions):
    """Mass of each cell, in the order of ranks, for the best of K: the integral of f' over its ranks.

    A difference of f would lose all digits of what is multiplied by e^epsilon afterwards.
    """
    mass = sum(weight * mass_of(low - mean, high - mean) for weight, mean in law)
    above = np.cumsum(mass[::-1])[::-1] - mass  # 1 - rank where a cell ends
    places, weights = np.polynomial.legendre.leggauss(4)
    cells = above + np.outer(0.5 + 0.5 * places, mass)
    return 0.5 * weights @ np.exp(repetitions.log_slope(cells)[0]) * mass


def mass_of(low, high):
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


@pytest.mark.parametrize(
    "law",
    [
        pytest.param(Repetitions(10), marks=pytest.mark.slow),
        pytest.param(Repetitions(10, math.inf), marks=pytest.mark.slow),
        pytest.param(Repetitions(10, 0.0), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_attack_reaches_the_bound_to_one_percent_and_never_passes_it(law):
    mu = gaussian_mu(1.0, DELTA)
    epsilon, pair = bound(mu, law), ([(1.0, mu)], [(1.0, 0.0)])
    assert attack(epsilon, *pair, law) <= DELTA
    assert attack(0.99 * epsilon, *pair, law) > DELTA


def test_a_quick_attack_stays_below_the_bound():
    mu, law = gaussian_mu(1.0, DELTA), Repetitions(10)
    epsilon, pair = bound(mu, law), ([(1.0, mu)], [(1.0, 0.0)])
    assert attack(epsilon, *pair, law, [4.0]) <= DELTA < attack(0.97 * epsilon, *pair, law, [4.0])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.2])
@pytest.mark.parametrize("law", [Repetitions(10), Repetitions(10, math.inf)], ids=str)
def test_an_attack_on_a_sampled_step_reaches_its_bound_to_ten_percent(rate, law):
    sampling = an.sampling.Poisson(examples=1000, batch_size=1000 * rate, steps=1)
    one = an.calibrate(an.strategies.Identity(1), sampling=sampling, epsilon=1.0, delta=DELTA)
    epsilon = Selection(one, law, None, DELTA).epsilon()
    mu = 1 / one.noise_std
    absent, present = [(1.0, 0.0)], [(1 - rate, 0.0), (rate, mu)]
    assert attack(epsilon, present, absent, law) <= DELTA
    assert attack(epsilon, absent, present, law) <= DELTA
    assert attack(0.9 * epsilon, present, absent, law) > DELTA


@pytest.mark.parametrize(
    ("epsilon", "mean", "shape"), [(8.0, 20, 1.0), *slow((1.0, 10, 1.0), (0.1, 5, 0.0), (1.0, 100, math.inf))]
)
def test_never_above_the_bound_of_papernot_and_steinke(epsilon, mean, shape):
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    mu = gaussian_mu(epsilon, DELTA)
    accountant = RdpAccountant(
        orders=np.concatenate([1 + np.arange(1, 100) / 10, np.geomspace(11, 1e5, 150)])
    )
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1 / mu), mean, shape))
    found = bound(mu, Repetitions(mean, shape))
    assert epsilon < found < accountant.get_epsilon(DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_attacks_on_any_law_noise_and_delta_stay_below_the_bound(seed):
    rng = np.random.default_rng(seed)
    for _ in range(15):
        shape = rng.choice([1.0, 0.0, math.inf])
        low, high = (0.01, 300) if shape == math.inf else (1.01, 1e4)
        law = Repetitions(math.exp(rng.uniform(math.log(low), math.log(high))), shape)
        mu, delta = math.exp(rng.uniform(-7, 1.8)), 10 ** rng.uniform(-11, -0.5)
        epsilon = bound(mu, law, delta)
        # a score that is always the same shows the first run
        assert (1 - law.absent(1.0)) * gaussian_delta(epsilon, mu) <= delta * (1 + 1e-9)
        assert attack(epsilon, [(1.0, mu)], [(1.0, 0.0)], law, np.linspace(-1, 8, 10)) <= delta


def test_one_run_always_costs_what_one_run_costs():
    profile = profile_of_bounds([gaussian_bound(0.3)], 2.0, 1e-10)
    once = selection_epsilon(profile, lambda left: (np.zeros_like(left), np.zeros_like(left)), DELTA)
    exact = gaussian_epsilon(DELTA, 0.3)
    assert exact * (1 - 1e-9) <= once <= exact * 1.001


@pytest.mark.slow
def test_a_tiny_delta_is_never_shown_too_small():
    assert (
        bound(0.3, Repetitions(10), 1e-12) > bound(0.3, Repetitions(10), 1e-9) > gaussian_epsilon(1e-9, 0.3)
    )


@pytest.mark.slow
def test_both_orders_of_the_data_are_bounded():
    """A profile that is larger in one direction gives the same number whichever of the two that is."""
    one = profile_of_bounds([gaussian_bound(0.3)], 2.0, 1e-10)
    smaller = profile_of_bounds([gaussian_bound(0.25)], 2.0, 1e-10, one.epsilons.tolist())
    kept = np.isin(smaller.epsilons, one.epsilons)
    low = np.minimum(one.add, smaller.add[kept])
    law = Repetitions(10).log_slope
    there = selection_epsilon(Profile(one.epsilons, one.remove, low), law, DELTA)
    back = selection_epsilon(Profile(one.epsilons, low, one.remove), law, DELTA)
    assert there == pytest.approx(back, rel=1e-12)
    assert there > bound(0.25, Repetitions(10))


@pytest.mark.parametrize(
    "law",
    [Repetitions(5), Repetitions(5, math.inf), *slow(Repetitions(4, 0.0))],
    ids=str,
)
def test_the_number_of_runs_that_is_drawn_has_the_law_that_is_accounted(law):
    counts = np.array([law.draw(derive(b"k" * 32, "test", place, size=32)) for place in range(2000)])
    assert abs(counts.mean() - law.mean) < 5 * counts.std() / math.sqrt(len(counts))
    seen = 0.7**counts
    assert abs(seen.mean() - law.absent(0.3)) < 5 * seen.std() / math.sqrt(len(counts))
    slopes = counts * 0.7 ** (counts - 1.0)
    stated = float(np.exp(law.log_slope(np.array([0.3]))[0][0]))
    assert abs(slopes.mean() - stated) < 5 * slopes.std() / math.sqrt(len(counts))

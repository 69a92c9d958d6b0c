"""What the best of a random number of runs shows: between an explicit attack and the bound of others."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from anechoic.accounting.gaussian import gaussian_epsilon, gaussian_mu
from anechoic.accounting.laws.profile import Profile, gaussian_law, profile_of_laws
from anechoic.accounting.selection import selection_epsilon
from anechoic.keys import derive
from anechoic.selection.repetitions import Repetitions

DELTA = 1e-6


def bound(mu, repetitions, delta=DELTA):
    near, tail = 2 * gaussian_epsilon(delta, mu), delta * 1e-4 / repetitions.mean
    return selection_epsilon(profile_of_laws([gaussian_law(mu)], near, tail), repetitions.log_slope, delta)


def attack(epsilon, mu, repetitions):
    """The largest delta(epsilon) over some orders of outcomes of N(mu, 1) against N(0, 1), exactly.

    Each cell of an outcome beyond a threshold takes the place among the others, in falling order, at which
    it tells most; the best of K has the law f(F), which is summed over the cells.
    """

    def slope(ranks):
        return np.exp(repetitions.log_slope(1 - ranks)[0])

    z = np.linspace(-8, 8, 4001)
    gain, cost, found = slope(ndtr(z + mu)), math.exp(epsilon) * slope(ndtr(z)), 0.0
    for threshold in np.linspace(0.5, 5, 40):
        tail = np.append(np.linspace(threshold, threshold + 4, 300), threshold + 40)
        middle = 0.5 * (tail[:-1] + np.minimum(tail[1:], tail[:-1] + 0.01))
        place = z[np.argmax(gain[:, None] * np.exp(mu * middle - mu * mu / 2) - cost[:, None], axis=0)]
        bulk = np.concatenate([[-40.0], np.linspace(-9, threshold, 800)])
        ranks = np.concatenate([-0.5 * (bulk[:-1] + bulk[1:]), place])
        order = np.argsort(ranks, kind="stable")
        low = np.concatenate([bulk[:-1], tail[:-1]])[order]
        high = np.concatenate([bulk[1:], tail[1:]])[order]
        seen = [law_of_best(low - shift, high - shift, repetitions) for shift in (mu, 0.0)]
        found = max(found, float(np.maximum(seen[0] - math.exp(epsilon) * seen[1], 0.0).sum()))
    return found


def law_of_best(low, high, repetitions):
    """Mass of each cell, in the order of ranks, for the best of K."""
    mass = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    ranks = np.minimum(np.concatenate([[0.0], np.cumsum(mass)]), 1.0)
    return np.diff([repetitions.absent(1.0 - rank) for rank in ranks.tolist()])


@pytest.mark.parametrize(
    "law",
    [
        Repetitions(10),
        pytest.param(Repetitions(10, math.inf), marks=pytest.mark.slow),
        pytest.param(Repetitions(10, 0.0), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_attack_reaches_the_bound_to_one_percent_and_never_passes_it(law):
    mu = gaussian_mu(1.0, DELTA)
    epsilon = bound(mu, law)
    assert attack(epsilon, mu, law) <= DELTA
    assert attack(0.99 * epsilon, mu, law) > DELTA


@pytest.mark.parametrize(
    ("epsilon", "mean", "shape"), [(1.0, 10, 1.0), (0.1, 5, 0.0), (8.0, 20, 1.0), (1.0, 100, math.inf)]
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


def test_one_run_always_costs_what_one_run_costs():
    profile = profile_of_laws([gaussian_law(0.3)], 2.0, 1e-10)
    once = selection_epsilon(profile, lambda left: (np.zeros_like(left), np.zeros_like(left)), DELTA)
    exact = gaussian_epsilon(DELTA, 0.3)
    assert exact * (1 - 1e-9) <= once <= exact * 1.001


def test_a_tiny_delta_is_never_shown_too_small():
    assert (
        bound(0.3, Repetitions(10), 1e-12) > bound(0.3, Repetitions(10), 1e-9) > gaussian_epsilon(1e-9, 0.3)
    )


def test_both_orders_of_the_data_are_bounded():
    """A profile that is larger in one direction gives the same number whichever of the two that is."""
    one = profile_of_laws([gaussian_law(0.3)], 2.0, 1e-10)
    smaller = profile_of_laws([gaussian_law(0.25)], 2.0, 1e-10, one.epsilons.tolist())
    kept = np.isin(smaller.epsilons, one.epsilons)
    low = np.minimum(one.add, smaller.add[kept])
    law = Repetitions(10).log_slope
    there = selection_epsilon(Profile(one.epsilons, one.remove, low), law, DELTA)
    back = selection_epsilon(Profile(one.epsilons, low, one.remove), law, DELTA)
    assert there == pytest.approx(back, rel=1e-12)
    assert there > bound(0.25, Repetitions(10))


@pytest.mark.parametrize(
    "law", [Repetitions(5), Repetitions(4, 0.0), Repetitions(6, -0.5), Repetitions(5, math.inf)], ids=str
)
def test_the_number_of_runs_that_is_drawn_has_the_law_that_is_accounted(law):
    counts = np.array([law.draw(derive(b"k" * 32, "test", place, size=32)) for place in range(2000)])
    assert abs(counts.mean() - law.mean) < 5 * counts.std() / math.sqrt(len(counts))
    seen = 0.7**counts
    assert abs(seen.mean() - law.absent(0.3)) < 5 * seen.std() / math.sqrt(len(counts))
    slopes = counts * 0.7 ** (counts - 1.0)
    stated = float(np.exp(law.log_slope(np.array([0.3]))[0][0]))
    assert abs(slopes.mean() - stated) < 5 * slopes.std() / math.sqrt(len(counts))

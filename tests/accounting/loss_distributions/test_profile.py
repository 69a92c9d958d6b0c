"""Profiles known at some epsilons: composed against exact Gaussians, dp-accounting and enumeration."""

import math
from itertools import product

import numpy as np
import pytest

from anechoic.accounting import gaussian_delta
from anechoic.accounting.loss_distributions.profile import (
    bound_of_points,
    envelope,
    gaussian_bound,
    profile_of_bounds,
    profile_of_points,
)


@pytest.mark.parametrize("count", [1, 4, 30])
def test_gaussians_compose_to_a_gaussian(count):
    mu = 1.0 / math.sqrt(count)
    profile = profile_of_bounds([gaussian_bound(mu)], 3.0 * mu, 1e-13)
    composed = profile.pld(1e-3).self_compose(count)
    for epsilon in (0.5, 2.0, 4.0):
        exact = gaussian_delta(epsilon, 1.0)
        assert exact <= composed.get_delta_for_epsilon(epsilon) <= 1.02 * exact + 1e-9


def subsampled(sigma, rate, width=1e-3):
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(sigma, value_discretization_interval=width, sampling_prob=rate)


@pytest.mark.slow
def test_directions_stay_apart():
    """A Poisson-sampled Gaussian has two different directions; each composes with its own kind."""
    single = subsampled(0.8, 0.2)

    def law(epsilon):
        parts = (single._pmf_remove, single._pmf_add)
        return tuple(float(part.get_delta_for_epsilon(epsilon)) for part in parts)

    composed = profile_of_bounds([law], 1.0, 1e-13).pld(1e-3).self_compose(5)
    known = single.self_compose(5)
    for epsilon in (0.5, 1.5, 3.0):
        for mine, theirs in ((composed._pmf_remove, known._pmf_remove), (composed._pmf_add, known._pmf_add)):
            exact = theirs.get_delta_for_epsilon(epsilon)
            assert exact * (1 - 1e-6) - 1e-12 <= mine.get_delta_for_epsilon(epsilon) <= 1.03 * exact + 1e-10
    remove, add = (part.get_delta_for_epsilon(1.5) for part in (composed._pmf_remove, composed._pmf_add))
    assert remove > 1.5 * add


def test_one_known_point_is_randomised_response():
    """What is (epsilon, delta)-DP is dominated by leaking with probability delta, else randomised response:
    three runs, by enumerating outcomes."""
    epsilon, delta = 0.5, 0.01
    p = [delta, (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))]
    q = [0.0, p[2], p[1]]  # and delta where P puts nothing
    composed = profile_of_points([(epsilon, delta)]).pld(1e-3).self_compose(3)
    for at in (0.0, 0.5, 1.0, 1.5):
        exact = 0.0
        for outcome in product(range(3), repeat=3):
            with_unit = math.prod(p[i] for i in outcome)
            without = math.prod(q[i] for i in outcome)
            exact += max(0.0, with_unit - math.exp(at) * without)
        assert exact * (1 - 1e-9) <= composed.get_delta_for_epsilon(at) <= exact * 1.005


def test_more_points_only_help():
    points = [(0.3, 1e-2), (1.0, 1e-4), (2.0, 1e-6), (math.inf, 1e-9)]
    few, many = profile_of_points(points[1:2]).pld(1e-3), profile_of_points(points).pld(1e-3)
    for epsilon in (0.2, 1.0, 1.7, 3.0):
        assert many.get_delta_for_epsilon(epsilon) <= few.get_delta_for_epsilon(epsilon) * (1 + 1e-9)
    law, jumps = bound_of_points(points)
    assert jumps == [0.0, 0.3, 1.0, 2.0]
    assert [law(epsilon)[0] for epsilon in (0.0, 0.29, 0.3, 1.99, 5.0)] == [1.0, 1.0, 1e-2, 1e-4, 1e-6]


def test_the_least_of_several_laws_at_each_epsilon():
    profile = profile_of_bounds([lambda e: (0.5 * math.exp(-e), 0.9), gaussian_bound(3.0)], 2.0, 1e-4)
    for epsilon, remove, add in zip(profile.epsilons, profile.remove, profile.add, strict=True):
        delta = gaussian_delta(float(epsilon), 3.0)
        assert remove <= min(0.5 * math.exp(-epsilon), delta) * (1 + 1e-12)
        assert add <= min(0.9, delta) * (1 + 1e-12)
    assert profile.remove[-1] <= 1e-4


def test_the_envelope_is_convex_and_below():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 5, 60))
    y = np.exp(-x) * rng.uniform(1, 1.5, 60)
    corners, heights = envelope(x, y)
    assert (np.diff(np.diff(heights) / np.diff(corners)) > 0).all()
    assert (np.interp(x, corners, heights) <= y + 1e-15).all()
    assert corners[0] == x[0]
    assert corners[-1] == x[-1]

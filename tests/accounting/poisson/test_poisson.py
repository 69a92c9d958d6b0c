"""Amplified accounting: published numbers, limits, and an independent evaluation by quadrature."""

import math
from itertools import cycle

import numpy as np
import pytest
from scipy.stats import binom, norm

from anechoic import Mechanism, calibrate
from anechoic.accounting import gaussian_epsilon, gaussian_mu, poisson_epsilon, poisson_noise_multiplier
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.errors import UnsupportedError
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.strategies import BandedToeplitz
from tests.marks import every_other, in_turn, slow


@pytest.mark.parametrize("adjacency", ["zero_out", *slow("replace_one"), "add_or_remove"])
@pytest.mark.parametrize(
    ("epsilon", "rate", "count"), [(0.05, 0.2, 30), (2.0, 1.0, 7), *slow((1.0, 0.01, 100), (8.0, 0.5, 20))]
)
def test_calibration_never_exceeds_what_was_asked(adjacency, epsilon, rate, count):
    sigma = poisson_noise_multiplier(epsilon, 1e-6, rate, count, adjacency=adjacency)
    assert poisson_epsilon(1e-6, sigma, rate, count, adjacency=adjacency) <= epsilon
    assert poisson_epsilon(1e-6, sigma * 0.998, rate, count, adjacency=adjacency) > epsilon * (1 - 1e-4)


@pytest.mark.parametrize(
    ("sigma", "epsilon"), every_other([(0.3, 100.0), (0.1, 1000.0), (0.03, 1e4), (1e-3, 1e8), (1e-6, 1e14)])
)
def test_hardly_any_noise_is_accounted_quickly_and_never_above_the_unsampled_bound(sigma, epsilon):
    unsampled = gaussian_epsilon(1e-5, np.sqrt(100) / sigma)
    found = poisson_epsilon(1e-5, sigma, 0.01, 100)
    assert 0 < found <= unsampled
    assert epsilon / 50 < found < 50 * epsilon


@pytest.mark.slow
def test_grids_agree_where_they_meet():
    """The widths change with epsilon; what they give does not jump by more than 1e-3."""
    sigmas = np.geomspace(0.25, 40, 60)
    values = np.array([poisson_epsilon(1e-6, s, 0.1, 20) for s in sigmas])
    slopes = np.diff(np.log(values)) / np.diff(np.log(sigmas))
    assert (slopes < 0).all()
    assert (np.abs(np.diff(slopes)) < 0.15).all()


def test_rate_one_is_the_exact_gaussian():
    assert poisson_epsilon(1e-6, 4.0, 1.0, 16) == pytest.approx(gaussian_epsilon(1e-6, 1.0), rel=1e-9)
    assert poisson_epsilon(1e-6, 4.0, 1.0, 16, adjacency="replace_one") == pytest.approx(
        gaussian_epsilon(1e-6, 2.0), rel=1e-9
    )
    nearly = poisson_epsilon(1e-6, 4.0, 0.999, 16)
    assert nearly == pytest.approx(gaussian_epsilon(1e-6, 1.0), rel=0.01)


def test_replace_one_costs_more_than_zero_out_and_at_most_a_doubled_step():
    zero, replace = (poisson_epsilon(1e-6, 3.0, 0.1, 64, adjacency=a) for a in ("zero_out", "replace_one"))
    assert zero < replace <= poisson_epsilon(1e-6, 1.0, 0.1, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 0.1, 1), "delta="),
        ((1e-5, 0.0, 0.1, 1), "noise_multiplier="),
        ((1e-5, 1.0, 1.1, 1), "rate="),
        ((1e-5, 1.0, 0.0, 1), "rate="),
        ((1e-5, 1.0, 0.1, 0), "compositions="),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        poisson_epsilon(*arguments)


@pytest.mark.slow
def test_tiny_rates_are_accounted_where_a_run_without_sampling_has_no_privacy():
    """Without sampling epsilon is 1e5 on one side of sigma = 0.45 and less on the other."""
    values = [poisson_epsilon(1e-6, s, 1e-4, 10_000, adjacency="replace_one") for s in (0.44, 0.46)]
    assert 3.0 < values[1] < values[0] < 4.0


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("noise", [1e-12, 0.02, 1.0, 1e12])
def test_who_is_hardly_ever_drawn_has_no_epsilon_at_a_large_delta(noise, adjacency):
    """The unit is in no batch with probability (1 - p)^T, and then both laws are the same."""
    for rate, steps in ((0.1, 10), (0.5, 1), (1e-9, 500)):
        taken = -math.expm1(steps * math.log1p(-rate))
        delta = min(taken * (1 + 1e-9), 1 - 1e-15)
        assert poisson_epsilon(delta, noise, rate, steps, adjacency=adjacency) == 0.0
    assert poisson_epsilon(1 - 1e-15, 1.0, 0.999, 1) == 0.0


def test_the_finest_grid_has_a_budget(monkeypatch):
    """Little noise and a tiny epsilon: a coarser grid, or none, and never more points than were promised."""
    from anechoic.accounting.loss_distributions import sampled_gaussian

    seen = []
    real = sampled_gaussian.sampled_gaussian_losses

    def pair(noise_multiplier, rate, adjacency, width, tail):
        seen.append(sampled_gaussian.loss_moments(noise_multiplier, rate, adjacency, tail)[1] / width)
        return real(noise_multiplier, rate, adjacency, max(width, 1e-3 * seen[-1] * width), tail)

    monkeypatch.setattr(sampled_gaussian, "sampled_gaussian_losses", pair)
    for delta in (0.6, 0.65):
        assert poisson_epsilon(delta, 0.011, 0.1, 10) >= 0.0
    assert max(seen) <= sampled_gaussian.MOST_CELLS * (1 + 1e-9)


def sum_delta(epsilon, sigma, rate, count, mirrored):
    """A lower bound on delta: what a threshold of the sum of all releases tells, in either direction."""
    k = np.arange(count + 1)
    weights, s = binom.pmf(k, count, rate), sigma * math.sqrt(count)
    at = np.concatenate([k + s * z for z in np.linspace(-12, 12, 97)])
    above = weights @ norm.sf(at, k[:, None], s)
    without = weights @ norm.sf(at, -k[:, None], s) if mirrored else norm.sf(at, 0, s)
    below = weights @ norm.cdf(at, k[:, None], s)
    remove = above - np.exp(epsilon) * without
    add = norm.cdf(at, 0, s) - np.exp(epsilon) * below
    return float(max(remove.max(), 0.0 if mirrored else add.max()))


@pytest.mark.filterwarnings("error")
@in_turn("adjacency", ["zero_out", "replace_one"])
@in_turn("delta", [1e-300, 1e-12, 1e-5, 0.1, 0.5, 1 - 1e-9])
@pytest.mark.parametrize(
    ("sigma", "rate", "count"),
    [
        (1e-12, 0.3, 7),
        (0.4, 1e-300, 2),
        (0.3, 1e-9, 3),
        (2.0, 1e-6, 5),
        (5.0, 0.999, 3),
        (1e3, 1 - 2**-53, 10),
        (1e12, 0.5, 100),
    ],
)
@pytest.mark.slow
def test_extremes_give_a_number_between_the_sum_of_releases_and_no_sampling(
    sigma, rate, count, delta, adjacency
):
    found = poisson_epsilon(delta, sigma, rate, count, adjacency=adjacency)
    mu = (2 if adjacency == "replace_one" else 1) * math.sqrt(count) / sigma
    assert 0 <= found <= gaussian_epsilon(delta, mu) * (1 + 1e-12)
    if found < 700:
        assert sum_delta(found, sigma, rate, count, adjacency == "replace_one") <= delta * (1 + 1e-9) + 1e-14


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "count"),
    [
        (1e9, 1e-5, 1e-6, 50),  # 10^12 points asked for
        (1e24, 0.999, 0.9999, 1000),
        (100.0, 1e-302, 1e-300, 10_000),  # (mu / rate)^2 is no float64
        (1e4, 1e-12, 1e-9, 3),
        (1e-12, 1e-9, 0.3, 2),
    ],
)
@pytest.mark.few(2)
def test_extremes_are_calibrated(epsilon, delta, rate, count):
    sigma = poisson_noise_multiplier(epsilon, delta, rate, count)
    assert 0 < sigma < math.inf
    assert poisson_epsilon(delta, sigma, rate, count) <= epsilon


def test_noise_for_a_delta_above_the_chance_of_taking_part_is_refused():
    assert poisson_epsilon(0.35, 1e-9, 0.1, 4) == 0.0
    with pytest.raises(ValueError, match=r"delta=0.35 is at least 0.3439.*any noise would do"):
        poisson_noise_multiplier(1.0, 0.35, 0.1, 4)


@pytest.mark.slow
def test_a_delta_near_the_chance_of_taking_part_is_calibrated():
    """Grids of 2^24 points and 20 s for one epsilon, without a first search on wide ones."""
    sigma = poisson_noise_multiplier(1.0, 0.5, 0.01, 100)
    assert sigma == pytest.approx(poisson_noise_multiplier_estimate(1.0, 0.5, 0.01, 100), rel=1e-4)


@pytest.mark.parametrize("sampling", [Poisson(100, 10, 6), CyclicPoisson(100, 10, 2, 6)], ids=repr)
def test_more_bands_than_groups_are_refused_with_a_remedy(sampling):
    strategy = BandedToeplitz(6, [1.0, 0.5, 0.25])
    words = f"bands=3, which exceeds groups={sampling.groups}.*groups=3 or more, BallsInBins"
    for work in (
        lambda: Mechanism(strategy, sampling, 1.0),
        lambda: calibrate(strategy, sampling=sampling, epsilon=1.0, delta=1e-5),
    ):
        with pytest.raises(UnsupportedError, match=words):
            work()
    assert Mechanism(strategy, CyclicPoisson(100, 10, 3, 6), 1.0).epsilon(1e-5) > 0


# many releases and few, tiny rates (the law is then almost an atom), rates near 1, one release
SETTINGS = [
    (1.0, 1e-6, 0.2, 100),
    (8.0, 1e-6, 0.01, 400),
    (8.0, 1e-6, 0.7, 10),
    (4.0, 1e-5, 0.5, 1),
    (4.0, 1e-5, 0.9, 2),
    (16.0, 1e-6, 0.05, 5),
    (20.0, 1e-6, 0.01, 1000),
    (2.0, 1e-6, 0.01, 100),
]


@pytest.mark.parametrize(
    ("setting", "adjacency"),
    [
        *zip(SETTINGS, cycle(("zero_out", "replace_one"))),
        *slow(*zip(SETTINGS, cycle(("replace_one", "zero_out")))),
    ],
)
def test_the_estimate_is_that_of_the_grid(setting, adjacency):
    epsilon, delta, rate, releases = setting
    sigma = poisson_noise_multiplier_estimate(epsilon, delta, rate, releases, adjacency=adjacency)
    # the grid is pessimistic by some 1e-4 in epsilon
    reached = poisson_epsilon(delta, sigma, rate, releases, adjacency=adjacency)
    assert reached == pytest.approx(epsilon, rel=5e-4)


@pytest.mark.parametrize("setting", SETTINGS[:3])
@pytest.mark.few(2)
def test_the_multiplier_keeps_epsilon_and_is_nearly_the_least(setting):
    epsilon, delta, rate, releases = setting
    sigma = poisson_noise_multiplier(epsilon, delta, rate, releases)
    assert poisson_epsilon(delta, sigma, rate, releases) <= epsilon
    assert poisson_epsilon(delta, sigma * (1 - 2e-4), rate, releases) > epsilon


def test_the_estimate_at_rate_one_is_the_gaussian_mechanism():
    for adjacency, factor in (("zero_out", 1.0), ("replace_one", 2.0)):
        sigma = poisson_noise_multiplier_estimate(1.0, 1e-6, 1.0, 9, adjacency=adjacency)
        assert sigma == pytest.approx(3.0 * factor / gaussian_mu(1.0, 1e-6))


def test_sampling_never_needs_more_noise():
    plain = math.sqrt(10) / gaussian_mu(12.0, 1e-6)
    values = [poisson_noise_multiplier_estimate(12.0, 1e-6, rate, 10) for rate in (0.1, 0.5, 0.9, 0.99, 1.0)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(plain)

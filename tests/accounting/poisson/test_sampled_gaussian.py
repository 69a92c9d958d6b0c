"""The vectorised distribution of one sampled Gaussian against dp-accounting's, point by point."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from anechoic.accounting.loss_distributions.sampled_gaussian import (
    loss_moments,
    sampled_gaussian_losses,
    sampled_gaussian_pld,
)
from tests.marks import in_turn

RELATIONS = {
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "add_or_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
}
# sigma, rate, width: little noise and much, tiny rates and nearly 1, a grid of few points
SETTINGS = [
    (1.0, 0.1, 1e-2),
    (3.0, 0.02, 1e-3),
    (0.7, 0.5, 1e-2),
    (0.3, 0.3, 0.05),
    (5.0, 1e-3, 1e-4),
    (2.0, 0.97, 1e-2),
]


def both(setting, adjacency):
    sigma, rate, width = setting
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=width, sampling_prob=rate,
        neighboring_relation=RELATIONS[adjacency],
    )  # fmt: skip
    return sampled_gaussian_pld(sigma, rate, adjacency, width), theirs


@in_turn("adjacency", RELATIONS)
@in_turn("setting", SETTINGS)
@pytest.mark.slow
def test_masses_are_those_of_dp_accounting(setting, adjacency):
    ours, theirs = both(setting, adjacency)
    noise = 1e-15 / setting[2]  # of their second differences
    for mine, other in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        dense = other.to_dense_pmf()
        assert (mine._lower_loss, mine.size) == (dense._lower_loss, dense.size)
        assert mine._probs == pytest.approx(dense._probs, abs=noise)
        assert mine._infinity_mass == pytest.approx(dense._infinity_mass, abs=1e-30)
        assert mine._probs.sum() + mine._infinity_mass == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    ("setting", "times"), [((3.0, 0.02, 1e-3), 100), ((0.7, 0.5, 1e-2), 20), ((9.66, 0.1, 1e-3), 512)]
)
def test_composed(setting, times, adjacency):
    ours, theirs = (pld.self_compose(times).get_epsilon_for_delta(1e-6) for pld in both(setting, adjacency))
    assert ours == pytest.approx(theirs, rel=1e-8)


def test_coarser_grids_give_more():
    found = [
        sampled_gaussian_pld(1.0, 0.1, "zero_out", width).self_compose(20).get_epsilon_for_delta(1e-6)
        for width in (1e-3, 1e-2, 0.1, 0.5)
    ]
    assert found == sorted(found)


@pytest.mark.parametrize("sigma", [0.01, 0.03])
def test_masses_out_of_range_move_up(sigma):
    """PrivacyLosses above 745, at which e^-loss is 0: nothing is lost, and infinity gets next to nothing."""
    pld = sampled_gaussian_pld(sigma, 0.01, "zero_out", 10.0)
    assert pld._pmf_remove._probs.sum() == pytest.approx(1.0, abs=1e-14)
    assert pld._pmf_remove._infinity_mass < 1e-20
    top = 10.0 * (pld._pmf_remove._lower_loss + pld._pmf_remove.size - 1)
    assert top == pytest.approx(0.5 / sigma**2 + 9.86 / sigma, rel=0.1)
    assert pld.self_compose(10).get_epsilon_for_delta(1e-6) > 0.5 / sigma**2


def divergence(epsilon, setting, shifts):
    """H(P || Q) at any real epsilon, by integration: where the unit takes part they are moved by `shifts`."""
    sigma, rate, _ = setting
    x = np.linspace(-14 * sigma - 3, 14 * sigma + 3, 30_001)
    p, q = ((1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, shift, sigma) for shift in shifts)
    return np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)


# how far taking part moves each of the two means from where another example takes part: u and v of the proof
PAIRS = {
    "zero_out_fixed_size": [(2, 1), (0, 1), (1, 1), (1, 0), (-1, -1), (2, 2), (1.5, 0.7)],
    "replace_one_fixed_size": [(2, 0), (0, 2), (2, 1), (1, -1), (0, -2), (1, 2)],
}


@pytest.mark.parametrize("setting", SETTINGS[:4])
@pytest.mark.parametrize("adjacency", PAIRS)
def test_without_replacement_every_direction_is_the_largest_at_every_strike(setting, adjacency):
    """At epsilons above 0 and below; two of the pairs attain it, so that nothing is added either."""
    directions = sampled_gaussian_losses(*setting[:2], adjacency, setting[2] / 4)
    for turned, (first, masses, infinite) in enumerate(directions):
        losses = setting[2] / 4 * np.arange(first, first + len(masses))
        assert masses.sum() + infinite == pytest.approx(1.0, abs=1e-14)
        for epsilon in (-1.0, -0.05, 0.0, 0.05, 1.0):
            ours = masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0) + infinite
            pairs = [pair[::-1] if turned else pair for pair in PAIRS[adjacency]]
            assert ours == pytest.approx(max(divergence(epsilon, setting, pair) for pair in pairs), rel=2e-3)


def test_moments_of_the_loss():
    rng = np.random.default_rng(1)
    sigma, rate = 1.5, 0.2
    x = sigma * rng.standard_normal(200_000) + (rng.random(200_000) < rate)
    losses = np.log(1 - rate + rate * np.exp((2 * x - 1) / (2 * sigma**2)))
    spread, reach = loss_moments(sigma, rate, "zero_out")
    assert spread == pytest.approx(losses.std(), rel=0.02)
    assert reach > np.ptp(losses)

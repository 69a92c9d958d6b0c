"""Stated powers against simulated audits, and the numbers that follow from them."""

from functools import partial

import numpy as np
import pytest

from anechoic.accounting import gaussian_epsilon
from anechoic.audit.bounds import mu_by_fit, mu_by_threshold
from anechoic.audit.power import (
    canaries_needed,
    draw_gaussian,
    draw_ratios,
    entries_needed,
    epsilon_power,
    fit_power,
    scale_power,
    threshold_power,
)
from anechoic.sampling import CyclicPoisson
from anechoic.strategies import BandedToeplitz
from tests.marks import every_other

REPEATS = 500


@pytest.mark.parametrize(("claimed", "canaries"), every_other([(1.3, 100), (1.3, 300), (3.0, 150)]))
@pytest.mark.slow
def test_powers_are_those_of_simulated_audits(claimed, canaries):
    rng, half, found = np.random.default_rng(5), canaries // 2, np.zeros(2)
    for _ in range(REPEATS):
        out, into = draw_gaussian(claimed, half, 1.3, rng)
        found[0] += mu_by_threshold(out, into, threshold=claimed / 2).value > claimed
        found[1] += mu_by_fit(np.concatenate([out, into]), np.repeat([0.0, 1.0], half)).value > claimed
    stated = [power(1.3 * claimed, claimed, canaries) for power in (threshold_power, fit_power)]
    for share, power in zip(found / REPEATS, stated, strict=True):
        assert abs(share - power) < 4 * np.sqrt(power * (1 - power) / REPEATS) + 0.01


def test_power_at_the_claim_is_the_rate_of_false_alarms():
    assert fit_power(2.0, 2.0, 400) == pytest.approx(0.05, abs=1e-4)
    assert threshold_power(2.0, 2.0, 400) <= 0.05


@pytest.mark.parametrize("method", ["fit", "threshold"])
@pytest.mark.parametrize("claimed", [0.5, 1.0, 3.0])
def test_as_many_canaries_as_needed_suffice_and_fewer_do_not(claimed, method):
    power = fit_power if method == "fit" else threshold_power
    count = canaries_needed(claimed, method=method)
    assert power(1.2 * claimed, claimed, count) >= 0.95
    assert power(1.2 * claimed, claimed, int(0.93 * count)) < 0.95


def test_more_privacy_takes_more_canaries():
    counts = [canaries_needed(mu) for mu in (0.3, 1.0, 3.0)]
    assert counts == sorted(counts, reverse=True)


def test_scale_power_is_that_of_simulated_noise():
    rng = np.random.default_rng(0)
    from anechoic.audit.covariance import _two_sided_chi2

    squares = np.square(rng.standard_normal((4000, 90)) / 1.2).sum(axis=1)
    share = (_two_sided_chi2(squares, 90) < 0.05).mean()
    assert share == pytest.approx(scale_power(90), abs=0.03)
    count = entries_needed()
    assert scale_power(count) >= 0.95 > scale_power(int(0.95 * count))


@pytest.mark.slow
def test_power_on_epsilon_grows_with_the_lack_of_noise_and_the_claim_is_kept():
    draw = partial(draw_gaussian, 1.0)
    claimed = gaussian_epsilon(0.1, 1.0)
    powers = [
        epsilon_power(draw, claimed=claimed, delta=0.1, canaries=1000, factor=f, repeats=60)
        for f in (1.0, 1.3, 2.0)
    ]
    assert powers[0] <= 0.1
    assert powers == sorted(powers)
    assert powers[2] >= 0.9


@pytest.mark.slow
def test_likelihood_ratios_have_power_under_amplification():
    sampling = CyclicPoisson(2000, 100, 4, 24)
    draw = partial(draw_ratios, BandedToeplitz(24, [1.0, 0.5, 0.3, 0.2]), sampling, 0.8)
    # epsilon at delta = 0.1 of the claimed mechanism, by its own law with many scores
    _, into = draw(200_000, 1.0, np.random.default_rng(1))
    epsilons = np.linspace(0.1, 3.0, 300)
    deltas = [np.maximum(0.0, 1 - np.exp(e - into)).mean() for e in epsilons]
    claimed = float(epsilons[np.searchsorted(-np.array(deltas), -0.1)])
    kept = epsilon_power(draw, claimed=claimed, delta=0.1, canaries=1000, factor=1.0, repeats=60)
    seen = epsilon_power(draw, claimed=claimed, delta=0.1, canaries=1000, factor=2.0, repeats=60)
    assert kept <= 0.1
    assert seen >= 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_power(1.0, -1.0, 10), "claimed=-1.0"),
        (lambda: fit_power(1.0, 1.0, 3), "canaries=3"),
        (lambda: canaries_needed(1.0, factor=1.0), "must exceed 1"),
        (lambda: canaries_needed(1.0, method="guess"), "method='guess'"),
        (lambda: scale_power(0), "entries=0"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

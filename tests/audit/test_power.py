"""Stated powers against simulated audits, and the numbers that follow from them."""

import numpy as np
import pytest

from anechoic.audit.bounds import mu_by_fit
from anechoic.audit.covariance import _two_sided_chi2
from anechoic.audit.power import canaries_needed, fit_power, scale_power
from tests.marks import every_other

REPEATS = 500


@pytest.mark.parametrize(("claimed", "canaries"), every_other([(1.3, 100), (1.3, 300), (3.0, 150)]))
@pytest.mark.slow
def test_the_power_of_the_fit_is_that_of_simulated_audits(claimed, canaries):
    rng, signal = np.random.default_rng(5), np.repeat([0.0, 1.0], canaries // 2)
    scores = 1.3 * claimed * signal + rng.standard_normal((REPEATS, canaries))
    share = np.mean([mu_by_fit(each, signal).value > claimed for each in scores])
    power = fit_power(1.3 * claimed, claimed, canaries)
    assert abs(share - power) < 4 * np.sqrt(power * (1 - power) / REPEATS) + 0.01


def test_power_at_the_claim_is_the_rate_of_false_alarms():
    assert fit_power(2.0, 2.0, 400) == pytest.approx(0.05, abs=1e-4)


def test_as_many_canaries_as_needed_suffice_and_fewer_do_not():
    counts = [canaries_needed(mu) for mu in (0.3, 1.0, 3.0)]
    assert counts == sorted(counts, reverse=True)
    for claimed, count in zip((0.3, 1.0, 3.0), counts, strict=True):
        assert fit_power(1.2 * claimed, claimed, int(0.93 * count)) < 0.95
        assert fit_power(1.2 * claimed, claimed, count) >= 0.95


def test_scale_power_is_that_of_simulated_noise():
    squares = np.square(np.random.default_rng(0).standard_normal((4000, 90)) / 1.2).sum(axis=1)
    share = (_two_sided_chi2(squares, 90) < 0.05).mean()
    assert share == pytest.approx(scale_power(90), abs=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_power(1.0, -1.0, 10), "claimed=-1.0"),
        (lambda: fit_power(1.0, 1.0, 3), "canaries=3"),
        (lambda: canaries_needed(1.0, factor=1.0), "must exceed 1"),
        (lambda: scale_power(0), "entries=0"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

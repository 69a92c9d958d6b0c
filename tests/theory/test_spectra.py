"""Spectra against the power series of the same noise, which never sees a frequency."""

import math

import numpy as np
import pytest

from anechoic import calibrate_endless
from anechoic.strategies import BandedInverse, make_endless
from anechoic.theory.spectra import spectrum
from tests.theory.noises import NOISES, column

STEPS = 3001  # where all of them but the damped root have faded


def autocovariances(noise):
    beta = column(noise, STEPS)
    return np.correlate(beta, beta, "full")[STEPS - 1 :]


@pytest.mark.parametrize("name", NOISES)
def test_the_spectrum_is_that_of_the_power_series(name):
    noise = NOISES[name]
    found, beta = spectrum(noise), column(noise, STEPS)
    omega = np.array([[0.0, 1e-3, 0.3], [1.0, 2.5, math.pi]])
    series = np.exp(1j * omega[..., None] * np.arange(STEPS)) @ beta
    assert found.transfer(omega) == pytest.approx(series, abs=2e-4)  # the tail of the damped root
    assert found.power(omega) == pytest.approx(np.abs(series) ** 2, abs=2e-4)
    assert found.energy == pytest.approx(beta @ beta, rel=1e-8)


@pytest.mark.parametrize("name", NOISES)
def test_exposure_is_the_sum_over_autocovariances(name):
    noise, gaps = NOISES[name], np.array([0.02, 0.1, 0.7, 1.0, 1.4])
    r = autocovariances(noise)
    by_time = [r[0] + 2 * np.sum((1 - gap) ** np.arange(1, STEPS) * r[1:]) for gap in gaps]
    assert spectrum(noise).exposure(gaps) == pytest.approx(by_time, rel=1e-9)


@pytest.mark.parametrize("name", NOISES)
def test_gamma_grows_to_its_limit(name):
    found = spectrum(NOISES[name])
    values = [found.noise.at(n).largest_column_norm() for n in (1, 3, 40, STEPS)]
    assert values == sorted(values)
    assert values[-1] <= found.gamma
    assert found.gamma == pytest.approx(values[-1], rel=1e-8)


def test_a_mechanism_has_the_spectrum_of_its_strategy():
    mechanism = calibrate_endless(NOISES["damped"], batch_size=1, epsilon=1.0, delta=1e-6)
    assert spectrum(mechanism).power(0.7) == spectrum(NOISES["damped"]).power(0.7)


def test_narrow_features_away_from_one_are_found():
    """A pair of zeros 1e-4 off the circle at the angle 1: panels are halved there."""
    z = (1 + 1e-4) * np.exp(1j)
    noise = make_endless(BandedInverse(3, [1.0, -2 * (1 / z).real, abs(1 / z) ** 2]))
    found = spectrum(noise)
    points = found.points(0.1)
    assert points.mean(1 / found.power(points.angles)) == pytest.approx(noise.limiting_norm**2, rel=1e-10)


@pytest.mark.parametrize("gaps", [[0.0], [3.0], [np.nan], [2.0, 0.1]])
def test_modes_that_do_not_fade_have_no_exposure(gaps):
    with pytest.raises(ValueError, match="gaps"):
        spectrum(NOISES["damped"]).exposure(gaps)

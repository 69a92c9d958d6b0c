"""The exact Gaussian mechanism against mpmath, dp-accounting and a simulated attack."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from anechoic.accounting import gaussian_delta, gaussian_epsilon, gaussian_mu

epsilons = st.floats(-4, 2.5).map(lambda x: 10**x)
mus = st.floats(-3, 1.7).map(lambda x: 10**x)
deltas = st.floats(-12, -1).map(lambda x: 10**x)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@given(epsilons, mus)
def test_delta_is_never_below_the_truth_and_close_to_it(epsilon, mu):
    truth = exact_delta(epsilon, mu)
    found = gaussian_delta(epsilon, mu)
    if truth > 1e-280:
        assert found >= truth
    if truth > 1e-20:
        assert found <= truth * (1 + 1e-8)


@given(mus, deltas)
@pytest.mark.slow
def test_epsilon_is_rounded_up_and_least(mu, delta):
    epsilon = gaussian_epsilon(delta, mu)
    assert exact_delta(epsilon, mu) <= delta
    if epsilon > 1e-6:
        assert exact_delta(epsilon * (1 - 1e-6), mu) > delta * (1 - 1e-9)


@given(epsilons, deltas)
@pytest.mark.slow
def test_mu_is_rounded_down_and_largest(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu * (1 + 1e-6)) > delta
    assert gaussian_epsilon(delta, mu) <= epsilon * (1 + 1e-9)


def test_agrees_with_dp_accounting():
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-6)):
        theirs = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
        assert 1 / gaussian_mu(epsilon, delta) == pytest.approx(theirs, rel=1e-5)


def test_threshold_attack_never_beats_delta():
    """The likelihood-ratio attacker on simulated releases: P(S) - e^eps Q(S) reaches delta, and not more."""
    rng = np.random.default_rng(0)
    mu, epsilon, trials = 1.0, 0.7, 2_000_000
    threshold = mu / 2 + epsilon / mu
    p = (rng.normal(mu, 1, trials) > threshold).mean()
    q = (rng.normal(0, 1, trials) > threshold).mean()
    gained = p - math.exp(epsilon) * q
    spread = 4 * math.sqrt((p + math.exp(2 * epsilon) * q) / trials)
    assert abs(gained - gaussian_delta(epsilon, mu)) < spread
    assert gained > gaussian_delta(epsilon, 0.95 * mu) + spread / 4  # a mu 5 % too small would be noticed


@pytest.mark.parametrize(
    ("given", "function"),
    [
        *(((delta, 1.0), gaussian_epsilon) for delta in (0.0, 1.0, -1e-3)),
        *(((1e-5, mu), gaussian_epsilon) for mu in (0.0, math.nan)),
        *(((epsilon, 1e-5), gaussian_mu) for epsilon in (0.0, -1.0, math.inf)),
        *(((1.0, delta), gaussian_mu) for delta in (0.0, 1.5)),
    ],
)
def test_bad_input(given, function):
    with pytest.raises(ValueError, match=r"delta=|mu=|epsilon="):
        function(*given)


@pytest.mark.parametrize("mu", [1e20, 1e77, 1e139, 1e160, 1e308])
def test_almost_no_noise_has_a_huge_epsilon_and_no_overflow(mu):
    epsilon = gaussian_epsilon(1e-6, mu)
    assert epsilon >= mu * min(mu, 1e160) / 2 * (1 - 1e-6)
    assert gaussian_delta(1.0, mu) == 1.0


@pytest.mark.parametrize("mu", [3e14, 1e15, 3e20, 1e100])
@pytest.mark.parametrize("delta", [1e-12, 0.3])
def test_where_rounding_hides_the_difference_no_figure_is_below_the_truth(mu, delta):
    """Decided by epsilon = mu^2 / 2 and a margin, against 300 digits; one part in 10^11 above."""

    def exact(epsilon, mu):  # the second term only makes it smaller
        with mpmath.workdps(300):
            return mpmath.ncdf(mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mpmath.mpf(mu))

    epsilon = gaussian_epsilon(delta, mu)
    assert exact(epsilon, mu) <= delta
    assert epsilon <= mu * mu / 2 * (1 + 1e-11)
    largest = gaussian_mu(mu * mu / 2, delta)
    assert exact(mu * mu / 2, largest) <= delta
    assert largest >= mu * (1 - 1e-11)
    for factor in (1 - 1e-3, 1.0, 1 + 1e-13, 1 + 2e-12):
        assert gaussian_delta(mu * mu / 2 * factor, mu) >= min(1.0, exact(mu * mu / 2 * factor, mu))


def test_the_smallest_arguments_give_a_number_or_are_refused():
    assert 0.0 < gaussian_mu(1e-200, 1e-300) < 1e-200
    assert 0.0 < gaussian_delta(1e28, 1e-200) < 1e-300
    assert gaussian_epsilon(1e-6, 1e-200) == 0.0
    with pytest.raises(ValueError, match=r"epsilon=5e-324 and delta=1e-300 need noise beyond"):
        gaussian_mu(5e-324, 1e-300)

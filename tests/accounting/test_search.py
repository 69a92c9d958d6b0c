"""The search for the least noise: its result is shown, close, and found in few evaluations."""

import math

import pytest

from anechoic.accounting.search import least_noise, rounded_up, smallest_epsilon


@pytest.mark.parametrize("guess", [1e-3, 0.9, 1.0, 30.0])
@pytest.mark.parametrize("power", [1.0, 2.5])
def test_a_power_of_the_noise(guess, power):
    calls = []

    def epsilon_at(noise):
        calls.append(noise)
        return noise**-power + 0.1 / noise

    found = least_noise(epsilon_at, 2.0, guess, 1e-5)
    assert found**-power + 0.1 / found <= 2.0
    below = found * (1 - 2e-5)
    assert below**-power + 0.1 / below > 2.0
    assert len(calls) < 22
    assert len(set(calls)) == len(calls)
    assert found in calls  # what is returned was asked for, to the last bit
    assert found == rounded_up(math.exp(math.log(found)))


@pytest.mark.parametrize(
    ("delta", "high", "known"),
    [
        (1e-6, 20.0, 9.398716740013642),
        (1e-6, 9.0, 9.0),
        (1.0, 3.0, 0.0),
        (1e-200, 100.0, 86.49010504697455),
    ],
)
def test_the_smallest_epsilon_is_shown_and_near_in_few_evaluations(delta, high, known):
    calls = []

    def delta_at(epsilon):
        calls.append(epsilon)
        return math.exp(-epsilon - 0.05 * epsilon**2)

    found = smallest_epsilon(delta_at, delta, high)
    assert len(set(calls)) == len(calls) < 13
    assert found == pytest.approx(known, rel=2e-7)
    assert found == high or delta_at(found) <= delta


def test_a_jump_is_kept_to_by_the_bracket():
    found = least_noise(lambda noise: 5.0 if noise < math.pi else 0.5, 1.0, 1.0, 1e-4)
    assert math.pi <= found <= math.pi * (1 + 1e-4)


@pytest.mark.parametrize("epsilon", [1e-150, 1e-13, 1e13, 1e19, 1e150])
def test_an_epsilon_far_from_one_is_found_in_few_evaluations(epsilon):
    calls = []

    def epsilon_at(noise):
        calls.append(noise)
        return 1 / noise

    assert least_noise(epsilon_at, epsilon, 1 / epsilon, 1e-3) == pytest.approx(1 / epsilon, rel=2e-3)
    assert 1 / calls[-1] <= epsilon
    assert len(calls) < 30


def test_what_is_not_shown_at_any_noise_is_refused():
    with pytest.raises(ValueError, match=r"epsilon=1e-13 is not shown at any noise"):
        least_noise(lambda _: 1.0, 1e-13, 1.0, 1e-3)
    with pytest.raises(ValueError, match=r"epsilon=1.0 is not shown at any noise"):
        least_noise(lambda _: math.inf, 1.0, 1.0, 1e-3)

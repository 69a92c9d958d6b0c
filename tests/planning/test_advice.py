"""The learning rate to try first: noise in the model as best rates had it, or steps that tasks bear."""

import math

import numpy as np
import pytest

from anechoic import plan, workloads
from anechoic.planning.advice import NOISE, STEP, WITHIN
from anechoic.planning.update import COOLDOWN, UpdateRule, named_rates

RUN = {
    "examples": 600,
    "batch_size": 20,
    "epochs": 2,
    "epsilon": 0.02,  # noise decides
    "delta": 1e-5,
    "random_sampling": False,
    "strategy": "banded_toeplitz",
}


@pytest.mark.parametrize("clip_norm", [1.0, 0.2])
@pytest.mark.parametrize("scheduler", [None, "cosine", "cooldown"])
def test_a_parameter_of_the_kept_model_has_its_noise(clip_norm, scheduler):
    found = plan(**RUN, clip_norm=clip_norm, scheduler=scheduler, optimizer=UpdateRule("sgd", 0.9))
    advice, mechanism = found.advice, found.mechanism
    n = mechanism.steps
    noise = mechanism.clip_norm * mechanism.noise_std * mechanism.strategy.correlate(np.eye(n))
    rates = advice.rate * np.array([advice.factor(t) for t in range(n)])
    buffer = [sum(0.9 ** (t - s) * noise[s] for s in range(t + 1)) for t in range(n)]
    model = np.cumsum([r * row / 20 for r, row in zip(rates, buffer, strict=True)], axis=0)
    squares = np.square(model).sum(axis=1)
    std = np.sqrt(0.8 * squares.mean() + 0.2 * squares[-1])
    assert std == pytest.approx(NOISE, rel=0.15)  # the rate of torch falls on the buffer
    assert advice.lowest == pytest.approx(advice.rate / WITHIN)
    assert advice.highest == pytest.approx(WITHIN * advice.rate)


@pytest.mark.parametrize("clip_norm", [1.0, 0.2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_where_there_is_no_noise_to_speak_of_a_step_is_what_tasks_bear(momentum, clip_norm):
    asked = {**RUN, "epsilon": 1e5, "clip_norm": clip_norm, "optimizer": UpdateRule("sgd", momentum)}
    step = plan(**asked).advice.rate * clip_norm
    assert step == pytest.approx(STEP * math.sqrt(1.0 - momentum), rel=0.1)


def test_more_noise_asks_for_smaller_steps():
    rates = [plan(**{**RUN, "epsilon": epsilon}).advice.rate for epsilon in (0.1, 1.0, 10.0, 100.0)]
    assert rates == sorted(rates) and rates[-1] < STEP


def test_the_schedule_is_the_one_that_was_planned():
    advice = plan(**RUN, scheduler="cosine").advice
    assert advice.factor(0) == 1.0 and advice.factor(30) == pytest.approx(0.5) and advice.factor(999) < 0.01
    assert plan(**RUN).advice.factor(59) == 1.0


def test_a_cooldown_is_constant_and_then_falls_to_nothing():
    rates = named_rates("cooldown", 50)
    last = round(50 * COOLDOWN)
    assert rates[: 50 - last + 1] == pytest.approx(1.0)
    assert rates[-last:] == pytest.approx(np.arange(last, 0, -1.0) / last)
    advice = plan(**RUN, scheduler="cooldown").advice
    assert [advice.factor(t) for t in range(60)] == pytest.approx(named_rates("cooldown", 60))


def test_what_is_known_is_said():
    found = plan(**RUN)
    assert f"try first: {found.advice.rate:.2g}" in found.reason
    assert 'momentum .9 and scheduler="cooldown" mostly' in found.reason
    assert "Any clip norm up to the median gradient norm will do, if rate x clip norm is kept" in found.reason
    aware = plan(**RUN, scheduler="cooldown", optimizer=UpdateRule("sgd", 0.9))
    assert "largest of the schedule" in aware.reason and "mostly" not in aware.reason


@pytest.mark.parametrize(
    "options", [{"optimizer": UpdateRule("sums")}, {"workload": workloads.prefix_sum(60)}]
)
def test_where_nothing_is_known_nothing_is_said(options):
    found = plan(**RUN, **options)
    assert found.advice is None and "Learning rate" not in found.reason


@pytest.mark.parametrize(
    ("drawn", "epochs", "rate", "family"),
    [
        (True, 3, 0.021, "identity"),  # the buffer's steps get shorter by more than noise falls
        (True, 3, 0.045, "blt"),
        (False, 3, 0.016, "identity"),
        (False, 3, 0.050, "banded_toeplitz"),  # the buffer's: the task bounds rates for sums too
        (False, [1, 3], 0.025, "banded_toeplitz"),
        (False, 3, 0.070, "dense"),
    ],
)
def test_adam_has_the_noise_that_suits_its_rate(drawn, epochs, rate, family):
    rule = UpdateRule("adam", 0.9, dampening=0.9, rate=rate)
    run = {"examples": 1000, "batch_size": 100, "epsilon": 8.0, "delta": 1e-5, "random_sampling": drawn}
    found = plan(**run, epochs=epochs, optimizer=rule)
    assert found.chosen.family == family, found.reason
    assert ("independent noise may be better" in found.reason) == (family in ("blt", "dense"))
    assert found.advice.rate > 0

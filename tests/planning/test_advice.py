"""The learning rate to try first: the noise in the model has the norm that best rates had, measured."""

import numpy as np
import pytest

from anechoic import plan, workloads
from anechoic.planning.advice import NORM, WITHIN
from anechoic.planning.update import UpdateRule

RUN = {
    "examples": 600,
    "batch_size": 20,
    "epochs": 2,
    "epsilon": 2.0,
    "delta": 1e-5,
    "random_sampling": False,
    "strategy": "banded_toeplitz",
}


@pytest.mark.parametrize("clip_norm", [1.0, 0.2])
@pytest.mark.parametrize("scheduler", [None, "cosine"])
def test_the_noise_of_the_kept_model_has_its_norm(clip_norm, scheduler):
    m = 400
    found = plan(
        **RUN, dimension=m, clip_norm=clip_norm, scheduler=scheduler, optimizer=UpdateRule("sgd", 0.9)
    )
    advice, mechanism = found.advice, found.mechanism
    n = mechanism.steps
    noise = mechanism.clip_norm * mechanism.noise_std * mechanism.strategy.correlate(np.eye(n))
    rates = advice.rate * np.array([advice.factor(t) for t in range(n)])
    buffer = [sum(0.9 ** (t - s) * noise[s] for s in range(t + 1)) for t in range(n)]
    model = np.cumsum([r * row / 20 for r, row in zip(rates, buffer, strict=True)], axis=0)
    squares = np.square(model).sum(axis=1) * m
    norm = np.sqrt(0.8 * squares.mean() + 0.2 * squares[-1])
    assert norm == pytest.approx(NORM, rel=0.12)  # the rate of torch falls on the buffer
    assert advice.lowest == pytest.approx(advice.rate / WITHIN)
    assert advice.highest == pytest.approx(WITHIN * advice.rate)


def test_the_schedule_is_the_one_that_was_planned():
    advice = plan(**RUN, dimension=10, scheduler="cosine").advice
    assert advice.factor(0) == 1.0 and advice.factor(30) == pytest.approx(0.5) and advice.factor(999) < 0.01
    assert plan(**RUN, dimension=10).advice.factor(59) == 1.0


def test_what_is_known_is_said():
    found = plan(**RUN, dimension=10)
    assert f"try first: {found.advice.rate:.2g}" in found.reason and "momentum and a cosine" in found.reason
    aware = plan(**RUN, dimension=10, scheduler="cosine", optimizer=UpdateRule("sgd", 0.9))
    assert "largest of the schedule" in aware.reason and "mostly" not in aware.reason


@pytest.mark.parametrize(
    "options",
    [{}, {"dimension": 10, "optimizer": "adam"}, {"dimension": 10, "workload": workloads.prefix_sum(60)}],
)
def test_where_nothing_is_known_nothing_is_said(options):
    found = plan(**RUN, **options)
    assert found.advice is None and "Learning rate" not in found.reason

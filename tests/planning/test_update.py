"""What a plan knows of an update, against the matrix of unit gradients that go through torch."""

import numpy as np
import pytest

import anechoic as an
from anechoic.planning.update import UpdateRule, update_of, with_schedule

torch = pytest.importorskip("torch")

CLASSES = ["identity", "dense"]
CASES = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "dampening": 0.9},
    {"momentum": 0.5, "dampening": 0.3},
]


def matrix_of_torch(n, rates=None, **settings):
    """Minus the iterates of torch.optim.SGD as sums of its gradients, shape (n, n)."""
    weights = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=1.0, **settings)
    found = np.empty((n, n))
    for step, unit in enumerate(torch.eye(n, dtype=torch.float64)):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]
        weights.grad = unit
        optimizer.step()
        found[step] = -weights.detach().numpy()
    return found


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_workload_is_what_torch_adds_up(settings):
    found = UpdateRule("sgd", **settings).workload(30, 30).to_dense()
    np.testing.assert_allclose(found, matrix_of_torch(30, **settings), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", CASES, ids=str)
@pytest.mark.parametrize("scheduler", ["constant", "cooldown"])
def test_the_prediction_is_the_noise_in_the_model(settings, scheduler):
    """And never above that of independent noise, whatever the first gradient weighs."""
    rule, n = UpdateRule("sgd", **settings), 100
    asked = {"examples": 5000, "batch_size": 50, "epochs": 1, "epsilon": 1.0, "delta": 1e-6}
    found = an.plan(**asked, optimizer=rule, scheduler=scheduler, random_sampling=False, strategy=CLASSES)
    rates = with_schedule(rule, scheduler, "step").learning_rates(n, n)
    a, mechanism = matrix_of_torch(n, rates, **settings), found.mechanism
    weights, std = found.chosen.objective.weights, mechanism.noise_std / 50
    noise = np.square(a @ np.linalg.inv(mechanism.strategy.to_dense())).sum(axis=1)
    # torch multiplies the velocity with the rate of a step, the workload each gradient with its own
    close = 1e-6 if rates is None else 0.05
    assert found.chosen.predicted == pytest.approx(std * np.sqrt(weights @ noise), rel=close)
    alone = an.calibrate(an.strategies.Identity(n), sampling=mechanism.sampling, epsilon=1.0, delta=1e-6)
    assert found.chosen.predicted <= alone.noise_std / 50 * np.sqrt(weights @ np.square(a).sum(axis=1)) * (
        1 + close
    )


def test_the_rate_makes_up_for_dampening():
    """One with d = .9 moves the model a tenth as far at the same rate."""
    asked = {"examples": 5000, "batch_size": 50, "epochs": 1, "epsilon": 1e4, "delta": 1e-6}
    rules = [UpdateRule("sgd", 0.9, dampening=d) for d in (0.0, 0.9)]
    plain, damped = (an.plan(**asked, optimizer=r, scheduler="cooldown", strategy=CLASSES) for r in rules)
    assert damped.advice.rate == pytest.approx(10 * plain.advice.rate, rel=0.2)
    np.testing.assert_allclose(damped.advice.rates, plain.advice.rates, rtol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "word"),
    [
        ("AdamW", "AdamW"),
        (0.9, "=0.9 must"),
        (3, "'sgd', 'adam'"),
    ],
    ids=str,
)
def test_what_is_not_known_is_named(optimizer, word):
    with pytest.raises(ValueError, match=word) as refused:
        update_of(optimizer)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["momentum", "weight_decay", "dampening"])
def test_numbers_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=name):
        UpdateRule("sgd", **{name: 1.0})

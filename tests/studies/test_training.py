import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from anechoic.mechanism.calibrate import calibrate  # noqa: E402 - needs torch
from anechoic.mechanism.mechanism import Mechanism  # noqa: E402
from anechoic.sampling import CyclicPoisson  # noqa: E402
from anechoic.strategies import BandedToeplitz  # noqa: E402
from studies import training  # noqa: E402
from studies.comparison.runner import execute_all, plain_arms, private_arms  # noqa: E402
from studies.comparison.study import Arm, Study, TrainingRun, load  # noqa: E402
from studies.comparison.task import Flights  # noqa: E402

TASK = Flights(examples=2_560, batch_size=128)
STEPS = 20


def arms_of():
    return private_arms(TASK, scheme="fixed", epsilons=(1.0,), delta=1e-6, steps=STEPS, examples=2_560)


@pytest.mark.slow
def test_every_arm_trains_and_private_ones_spend_their_budget():
    cyclic = CyclicPoisson(examples=2_560, batch_size=128, groups=2, steps=STEPS)
    sampled = calibrate(BandedToeplitz(STEPS, [1.0, 0.4]), sampling=cyclic, epsilon=1.0, delta=1e-6)
    arms = (*plain_arms(TASK), *arms_of(), Arm("planned", "poisson", 1.0, 1.0, sampled.to_json()))
    study = Study(TASK, arms, (1.0,), (101,), STEPS, 1e-6)
    outcomes = execute_all(study.runs(), execute=training.execute, jobs=0)
    assert [outcome.arm for outcome in outcomes] == [arm.name for arm in study.arms]
    for arm, outcome in zip(study.arms, outcomes, strict=True):
        assert 0.3 < outcome.metric < 0.9
        if arm.private:
            assert outcome.epsilon == pytest.approx(1.0, rel=1e-3) and outcome.epsilon <= 1.0
            assert outcome.epsilon == pytest.approx(Mechanism.from_json(arm.mechanism).epsilon(), rel=1e-9)
        else:
            assert outcome.epsilon is None


def weights_after(arm, monkeypatch, seed=0):
    """Weights of the model after a run."""
    models = []
    monkeypatch.setattr(Flights, "score", lambda self, model, *rest: models.append(model) or 0.5)
    training.execute(TrainingRun(TASK, arm, 0.5, seed, STEPS))
    return next(models[0].parameters()).detach().clone()


@pytest.mark.slow
def test_without_noise_a_clipped_run_is_what_its_formula_says(monkeypatch):
    data = load(TASK)
    weights = torch.zeros(2, 46)
    for x, y in zip(data.features.split(128), data.labels.split(128), strict=True):
        residual = torch.softmax(x @ weights.T, 1) - torch.nn.functional.one_hot(y, 2)
        gradients = residual[:, :, None] * x[:, None, :]
        norms = gradients.flatten(1).norm(dim=1)
        weights -= 0.5 * (gradients * (1 / norms).clamp(max=1)[:, None, None]).sum(0) / 128
    clipped, plain = plain_arms(TASK)
    found = weights_after(clipped, monkeypatch)
    assert torch.allclose(found, weights, atol=1e-5)
    assert not torch.allclose(weights_after(plain, monkeypatch), weights, atol=1e-2)


@pytest.mark.slow
def test_keys_differ_by_run_and_domain_and_do_not_change():
    arm = arms_of()[0]
    runs = [TrainingRun(TASK, arm, rate, seed, STEPS) for rate in (0.5, 1.0) for seed in (0, 1)]
    keys = {training.key(domain, run) for run in runs for domain in ("noise", "sampling")}
    assert len(keys) == 8 and all(len(key) == 32 for key in keys)
    assert training.key("noise", runs[0]) == training.key("noise", dataclasses.replace(runs[0]))


@pytest.mark.slow
def test_workers_agree_with_this_process():
    study = Study(TASK, (plain_arms(TASK)[0], *arms_of()), (0.5,), (1, 2), STEPS, 1e-6)
    there = execute_all(study.runs(), jobs=2, execute=training.execute)
    here = execute_all(study.runs(), jobs=0, execute=training.execute)
    assert [(o.arm, o.seed, o.metric, o.epsilon) for o in there] == [
        (o.arm, o.seed, o.metric, o.epsilon) for o in here
    ]

"""What a plan reads of torch's optimizers and schedulers, held against what they do to gradients."""

import logging

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, TensorDataset

from anechoic import workloads
from anechoic.losses.dispatch import error
from anechoic.planning.update import LEAST_RATE, update_of, with_schedule
from anechoic.torch import CorrectedAdam, PrivacyEngine
from tests.torch.setting import private

STEPS = 12


def parameters(*sizes):
    return [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in sizes or (1,)]


def iterates(make, scheduler=None):
    """Minus the iterates for a gradient of 1 at one step, a column for each step; shape (STEPS, STEPS)."""
    found = np.zeros((STEPS, STEPS))
    for at in range(STEPS):
        p = parameters()
        optimizer = make(p)
        schedule = None if scheduler is None else scheduler(optimizer)
        for t in range(STEPS):
            p[0].grad = torch.full((1,), float(t == at), dtype=torch.float64)
            optimizer.step()
            found[t, at] = -float(p[0].detach())
            if schedule is not None:
                schedule.step()
    return found


def test_weight_decay_without_momentum_is_exact():
    make = lambda p: optim.SGD(p, lr=0.5, weight_decay=0.1)  # noqa: E731
    read = update_of(make(parameters()))
    assert read.workload(STEPS, STEPS).to_dense() == pytest.approx(iterates(make) / 0.5)


def test_with_momentum_and_a_schedule_it_is_near():
    # torch's rate falls on the velocity, the planned one on the gradient
    make = lambda p: optim.SGD(p, lr=0.5, momentum=0.5, weight_decay=0.02)  # noqa: E731
    scheduler = lambda o: schedulers.CosineAnnealingLR(o, 2 * STEPS)  # noqa: E731
    optimizer = make(parameters())
    read = with_schedule(update_of(optimizer), scheduler(optimizer), "step").workload(STEPS, STEPS)
    real = iterates(make, scheduler) / 0.5
    assert np.linalg.norm(read.to_dense() - real) < 0.05 * np.linalg.norm(real)


SCHEDULERS = {
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, STEPS),
    "warm": lambda o: schedulers.LambdaLR(o, lambda t: min(1.0, t / 4)),
    "steps": lambda o: schedulers.StepLR(o, 5),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=STEPS),
    "sequence": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 4), schedulers.CosineAnnealingLR(o, 8)], [4]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedulers_are_read_and_not_moved(name):
    optimizer = optim.SGD(parameters(), lr=0.5, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    read = with_schedule(update_of(optimizer), scheduler, "step").learning_rates(STEPS, STEPS)
    real = []
    for _ in range(STEPS):
        real.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert read == pytest.approx(np.maximum(np.array(real) / max(real), LEAST_RATE))


def test_a_scheduler_of_epochs():
    optimizer = optim.SGD(parameters(), lr=0.5)
    scheduler = schedulers.StepLR(optimizer, 1, gamma=0.5)
    read = with_schedule(update_of(optimizer), scheduler, "epoch").learning_rates(STEPS, 5)
    assert read == pytest.approx([1.0] * 5 + [0.5] * 5 + [0.25] * 2)


def test_a_schedule_by_losses_is_planned_as_constant_and_said(caplog):
    optimizer = optim.SGD(parameters(), lr=0.5)
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        read = with_schedule(update_of(optimizer), schedulers.ReduceLROnPlateau(optimizer), "step")
    assert read.rates is None and "outside of the guarantee" in caplog.text


def test_the_group_with_the_most_parameters_decides():
    small, large = parameters(3), parameters(40)
    groups = [{"params": small, "momentum": 0.1}, {"params": large, "momentum": 0.9}]
    assert update_of(optim.SGD(groups, lr=0.1)).momentum == 0.9


@pytest.mark.parametrize(
    ("make", "kind", "momentum"),
    [
        (optim.AdamW, "adam", 0.9),
        (optim.NAdam, "adam", 0.9),
        (optim.RMSprop, "adam", 0.0),
        (optim.Adagrad, "adam", 0.0),
        (CorrectedAdam, "sums", 0.0),
        (optim.ASGD, "sums", 0.0),
    ],
)
def test_others_are_planned_for_by_their_kind_buffer_and_rate(make, kind, momentum):
    read = update_of(make(parameters(), lr=0.1))
    assert (read.kind, read.momentum, read.weight_decay, read.rate) == (kind, momentum, 0.0, 0.1)
    assert read.workload(STEPS, STEPS).is_prefix_sum


@pytest.mark.parametrize("name", ["cosine", "warm", "one cycle"])
def test_the_rate_at_hand_is_the_largest_of_its_schedule(name):
    optimizer = optim.Adam(parameters(), lr=1.0)
    scheduler = SCHEDULERS[name](optimizer)
    read = with_schedule(update_of(optimizer), scheduler, "step")
    assert read.rate == 1.0
    workload = read.workload(STEPS, STEPS)
    np.testing.assert_allclose(read.schedule(workload), read.learning_rates(STEPS, STEPS), rtol=1e-12)


def test_make_private_plans_for_the_run_at_hand():
    loader = DataLoader(TensorDataset(torch.zeros(400, 2), torch.zeros(400, dtype=torch.long)), batch_size=10)
    given = {"target_epsilon": 2.0, "target_delta": 1e-5, "max_grad_norm": 1.0, "epochs": 1}
    planned = []
    for momentum, keep, scheduled in ((0.0, "all", False), (0.9, "last", True)):
        model = nn.Linear(2, 2)
        optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
        private(
            engine := PrivacyEngine(), model=model, optimizer=optimizer, loader=loader, to_epsilon=True,
            poisson_sampling=False, keep=keep, **given,
            scheduler=schedulers.CosineAnnealingLR(optimizer, 40) if scheduled else None,
        )  # fmt: skip
        planned.append(engine.plan.mechanism)
    rates = (1 + np.cos(np.pi * np.arange(40) / 40)) / 2
    run = workloads.momentum(40, 0.9, learning_rates=rates)
    plain, aware = (error(run, one.strategy).rms * one.noise_std for one in planned)
    assert aware < 0.99 * plain

"""A run of the grid of objectives: what its plan is told, and how it is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from adaptive.arms import EPS, FIRST, SECOND
from adaptive.cells import DELTA, padded
from adaptive.tasks import Task
from torch import Tensor

import anechoic as an
from anechoic.batches.base import batches_of
from anechoic.planning.advice import advice_for
from anechoic.planning.records import PlanRow
from anechoic.planning.update import UpdateRule, rates_of

Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZERS: dict[Optimizer, UpdateRule] = {
    "sgd": UpdateRule(),
    "momentum": UpdateRule("sgd", FIRST),
    "adam": UpdateRule("adam"),
}
#: A discount a step, as the weight decay of the plan: the run itself has none.
DISCOUNT = 1 / 512


def warmed_up(steps: int) -> np.ndarray:
    """Up to 1 in the first tenth, then down to 0, linearly."""
    t = np.arange(steps) / steps
    return np.asarray(np.minimum((t + 1 / steps) / 0.1, (1.0 - t) / 0.9))


#: What `plan(scheduler=…)` takes.
SCHEDULES: dict[str, Any] = {
    "constant": "constant",
    "cosine": "cosine",
    "linear": "linear",
    "cooldown": "cooldown",
    "warmup": warmed_up,
}
#: Arms without a plan of their own: no noise at all in the batches of independent noise, and that noise.
NOISELESS, INDEPENDENT = "no noise", "independent"
#: What `plan` is told beside the setting. All but the first four read the optimizer and the schedule.
PLANS: dict[str, dict[str, Any]] = {
    NOISELESS: {"strategy": "identity"},
    INDEPENDENT: {"strategy": "identity"},
    "DP-SGD": {"strategy": "identity", "sampling": "poisson"},
    "sums": {"keep": "all", "unread": True},
    "weight 0": {"keep": 0.0},
    "default": {},
    "weight .5": {"keep": 0.5},
    "weight .9": {"keep": 0.9},
    "discount": {"keep": 0.0, "discount": DISCOUNT},
}


@dataclass(frozen=True)
class Run:
    """One arm of the grid: everything but its rates and seeds."""

    task: Task
    epsilon: float
    drawn: bool
    optimizer: Optimizer
    schedule: str
    plan: str

    @property
    def key(self) -> dict[str, object]:
        """What its results are stored under."""
        task = self.task
        return {
            "task": task.name,
            "size": [task.examples, task.batch_size, task.steps, task.dimension],
            "epsilon": self.epsilon,
            "drawn": self.drawn,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "plan": self.plan,
        }

    @property
    def row(self) -> PlanRow:
        """The choice of its plan."""
        task = self.task
        size = (task.examples, task.batch_size, task.epochs, task.dimension)
        return chosen(size, self.epsilon, self.drawn, self.optimizer, self.schedule, self.plan)

    @property
    def advised(self) -> float | None:
        """The rate of the plan's advice."""
        advice = advice_for(self.row, OPTIMIZERS[self.optimizer])
        return None if advice is None else advice.rate

    @property
    def guess(self) -> float:
        """The rate to begin at: a power of two."""
        return float(2.0 ** np.round(np.log2(self.advised or 2.0**-7)))

    def trained(self, rates: list[float], seeds: int) -> np.ndarray:
        """The metric of the last iterate, shape (seeds, rates)."""
        task, mechanism = self.task, self.row.mechanism
        orders = [
            batches_of(mechanism.sampling, hashlib.sha256(b"batches %d" % seed).digest())
            for seed in range(seeds)
        ]
        noise = torch.zeros(mechanism.steps, seeds, task.dimension)
        if self.plan != NOISELESS:
            noise = torch.stack([drawn_noise(self.row, task.dimension, seed) for seed in range(seeds)], 1)
        theta = torch.stack([task.start(seed) for seed in range(seeds)])[:, None].repeat(1, len(rates), 1)
        step = STEPS[self.optimizer]()
        rate = torch.tensor(rates, dtype=torch.float32)[:, None]
        schedule = factors(self.schedule, mechanism.steps)
        x, y = task.data[:2]
        for t in range(mechanism.steps):
            index, there = padded([order.batch(t) for order in orders])
            released = task.clipped_sum(theta, x[index], y[index], there) + noise[t][:, None]
            theta -= float(schedule[t]) * rate * step(t, released / float(mechanism.expected_batch_size))
        return np.array([[task.metric(model) for model in models] for models in theta])


def factors(schedule: str, steps: int) -> np.ndarray:
    """Learning rates over the largest, shape (steps,)."""
    rates = rates_of(SCHEDULES[schedule])
    return np.ones(steps) if rates is None else rates(steps)


@cache
def chosen(
    size: tuple[int, int, int, int],
    epsilon: float,
    drawn: bool,
    optimizer: Optimizer,
    schedule: str,
    name: str,
) -> PlanRow:
    examples, batch_size, epochs, dimension = size
    told = dict(PLANS[name])
    update = OPTIMIZERS[optimizer]
    if told.pop("unread", False):
        told["optimizer"] = update.kind
    else:
        decay = told.pop("discount", 0.0)
        told["optimizer"] = UpdateRule(update.kind, update.momentum, decay)
        told["scheduler"] = SCHEDULES[schedule]
    return an.plan(
        examples=examples, batch_size=batch_size, epochs=epochs, epsilon=epsilon, delta=DELTA,
        dimension=dimension, random_sampling=drawn, **told,
    ).chosen  # fmt: skip


def drawn_noise(row: PlanRow, dimension: int, seed: int) -> Tensor:
    """Of a run, shape (n, m): by NumPy, as this is a study of utility and not a release."""
    mechanism = row.mechanism
    fresh = np.random.default_rng(100 + seed).standard_normal((mechanism.steps, dimension))
    return torch.from_numpy(
        np.asarray(mechanism.noise_std * mechanism.strategy.correlate(fresh), dtype=np.float32)
    )


class Descent:
    """The noisy mean gradient itself."""

    def __call__(self, t: int, released: Tensor) -> Tensor:
        return released


class Momentum(Descent):
    """Heavy ball, as torch's SGD."""

    velocity: Tensor | float = 0.0

    def __call__(self, t: int, released: Tensor) -> Tensor:
        self.velocity = FIRST * self.velocity + released
        return self.velocity


class Adam(Descent):
    """As torch's."""

    mean: Tensor | float = 0.0
    square: Tensor | float = 0.0

    def __call__(self, t: int, released: Tensor) -> Tensor:
        self.mean = FIRST * self.mean + (1 - FIRST) * released
        self.square = SECOND * self.square + (1 - SECOND) * released.square()
        root = (self.square / (1 - SECOND ** (t + 1))).sqrt()
        return self.mean / (1 - FIRST ** (t + 1)) / (root + EPS)


STEPS: dict[Optimizer, Callable[[], Descent]] = {"sgd": Descent, "momentum": Momentum, "adam": Adam}

"""Training the rates and seeds of an arm at once, on grids of rates that grow until no best is at an end."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from adaptive.arms import ARMS, FIRST, made
from adaptive.tasks import Task
from torch import Tensor

import anechoic as an
from anechoic.batches.base import batches_of
from anechoic.planning.records import PlanRow
from anechoic.planning.update import UpdateRule

Key = Mapping[str, object]
Train = Callable[[list[float], int], np.ndarray]
DELTA = 1e-5
WIDEST = 12  # times that a grid may grow


@dataclass(frozen=True)
class Setting:
    """What arms are compared at."""

    task: Task
    epsilon: float
    sampled: bool

    def rows(self, *, aware: bool = False) -> tuple[PlanRow, PlanRow]:
        """The plan's choice, for sums or for momentum and the schedule, and independent noise."""
        task = self.task
        return planned(task.examples, task.batch_size, task.steps, self.epsilon, self.sampled, aware)

    @property
    def key(self) -> dict[str, object]:
        task = self.task
        size = [task.examples, task.batch_size, task.steps, task.dimension]
        return {"task": task.name, "size": size, "epsilon": self.epsilon, "sampled": self.sampled}

    def arm(self, name: str) -> dict[str, object]:
        """What the results of an arm are stored under."""
        return {**self.key, "arm": name}


@cache
def planned(
    examples: int, size: int, steps: int, epsilon: float, sampled: bool, aware: bool
) -> tuple[PlanRow, PlanRow]:
    told = {"optimizer": UpdateRule("sgd", FIRST), "scheduler": "cosine"} if aware else {"keep": "all"}
    found = an.plan(
        examples=examples, batch_size=size, steps=steps, epsilon=epsilon, delta=DELTA,
        random_sampling=sampled, **told,
    )  # fmt: skip
    alone = [row for row in found.rows if row.name == "Identity"]
    return found.chosen, min(alone, key=lambda row: row.step_noise)


def trained(setting: Setting, arm: str, rates: list[float], seeds: int) -> np.ndarray:
    """The metric, shape (seeds, rates)."""
    task, kind = setting.task, ARMS[arm]
    best, alone = setting.rows(aware=kind.aware)
    mechanism = (alone if kind.independent else best).mechanism
    noise = made(mechanism, alone.step_noise, seeds, task.dimension, kind.squares)
    optimizer = kind(noise, task.shapes)
    orders = [
        batches_of(mechanism.sampling, hashlib.sha256(b"batches %d" % seed).digest()) for seed in range(seeds)
    ]
    theta = torch.stack([task.start(seed) for seed in range(seeds)])[:, None].repeat(1, len(rates), 1)
    rate = torch.tensor(rates, dtype=torch.float32)[:, None]
    of_examples = torch.func.vmap(torch.func.grad(task.loss), in_dims=(None, 0, 0))
    gradients = torch.func.vmap(torch.func.vmap(of_examples, in_dims=(0, None, None)), in_dims=(0, 0, 0))
    x, y = task.data[:2]
    n = mechanism.steps
    for t in range(n):
        chosen, there = padded([order.batch(t) for order in orders])
        each = gradients(theta, x[chosen], y[chosen]) * there[:, None, :, None]
        step = optimizer.direction(t, torch.nan_to_num(each))
        theta -= 0.5 * (1 + math.cos(math.pi * t / n)) * rate * step
    return np.array([[task.metric(model) for model in models] for models in theta])


def padded(batches: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Indices of batches of different sizes, shape (seeds, largest), and 1 where there is one."""
    width = max(1, *(len(batch) for batch in batches))
    index, there = torch.zeros(len(batches), width, dtype=torch.long), torch.zeros(len(batches), width)
    for row, batch in enumerate(batches):
        index[row, : len(batch)] = torch.from_numpy(np.asarray(batch, dtype=np.int64))
        there[row, : len(batch)] = 1.0
    return index, there


class Results:
    """Metrics by what was trained and its rate: JSON lines, so that a run that was stopped goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # a line that was cut off is trained again
            text = text[: text.rfind("\n") + 1]
            path.write_text(text, encoding="utf-8")
        self._lines = [json.loads(line) for line in text.splitlines()]

    def of(self, key: Key) -> dict[float, list[float]]:
        """Metrics of all seeds by rate, in increasing order: of the rates with the most seeds."""
        mine = [line for line in self._lines if all(line.get(name) == value for name, value in key.items())]
        most = max((len(line["metrics"]) for line in mine), default=0)
        return dict(sorted((line["rate"], line["metrics"]) for line in mine if len(line["metrics"]) == most))

    def train(self, key: Key, rates: list[float], train: Train, seeds: int) -> None:
        """At those rates that are missing, with at least so many seeds, and as many as there are."""
        seeds = max([seeds, *map(len, self.of(key).values())])
        missing = [rate for rate in rates if len(self.of(key).get(rate, ())) < seeds]
        if missing:
            self.add(key, missing, train(missing, seeds))

    def add(self, key: Key, rates: list[float], metrics: np.ndarray) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for rate, column in zip(rates, metrics.T, strict=True):
                line = {**key, "rate": rate, "metrics": [round(float(v), 6) for v in column]}
                self._lines.append(line)
                file.write(json.dumps(line) + "\n")


def best_rate(found: dict[float, list[float]]) -> float:
    """The rate of the largest mean."""
    return max(found, key=lambda rate: float(np.mean(found[rate])))


def complete(
    results: Results,
    key: Key,
    train: Train,
    guess: float,
    seeds: int,
    also: float | None = None,
) -> bool:
    """Train at rates around `guess`, four apart, then beyond the ends and two apart around the best.

    Args:
        train: of rates and a number of seeds, metrics of shape (seeds, rates).
        also: one more rate.

    Returns:
        Whether the best rate has both neighbours, half and twice as large.
    """
    wanted = [guess / 4, guess, 4 * guess] + ([also] if also else [])
    for _ in range(WIDEST):
        results.train(key, wanted, train, seeds)
        found = results.of(key)
        best = best_rate(found)
        if {best / 2, 2 * best} <= set(found):
            return True
        wanted = [best / 2, 2 * best]
        if best == max(found):
            wanted = [4 * best]
        elif best == min(found):
            wanted = [best / 4]
    return False

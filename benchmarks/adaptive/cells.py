"""Cells of the grid: what is trained, by which mechanism, and where its results are kept."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from adaptive.tasks import TASKS, Task
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

import anechoic as an
from anechoic.batches.base import batches_of
from anechoic.planning.result import Plan
from anechoic.planning.update import UpdateRule, named_rates
from anechoic.torch import PrivacyEngine

Order = Literal["fixed", "drawn"]
#: Poisson sampling and independent noise; the best of that and banded noise with cyclic Poisson sampling;
#: independent noise in the order or by random allocation; the plan; the plan that reads the best rate of
#: independent noise from the optimizer, trained at it; the plan by `PrivacyEngine`; no noise.
Arm = Literal[
    "DP-SGD", "banded", "independent", "default", "default at the rate of independent noise", "engine",
    "no noise",
]  # fmt: skip
AT_RATE: Arm = "default at the rate of independent noise"
#: Arms that may have the mechanism of another one.
PARTNERS: dict[Arm, Arm] = {"banded": "DP-SGD", "default": "independent"}
#: What the plan is told, where the rates of what has no advice begin, and how it is made.
OPTIMIZERS: dict[str, tuple[Any, float, Callable[..., torch.optim.Optimizer]]] = {
    "SGD": ("sgd", 1.0, torch.optim.SGD),
    "momentum": (UpdateRule("sgd", 0.9), 0.25, partial(torch.optim.SGD, momentum=0.9)),
    "Adam": ("adam", 2.0**-6, torch.optim.Adam),
    "AdamW": ("adam", 2.0**-6, torch.optim.AdamW),
}
OCTAVES = 10  # that a grid of rates may grow by


@dataclass(frozen=True)
class Cell:
    """Everything of a run but its rate and seed.

    Attributes:
        clip: clip norm.
        scale: what the noise is multiplied with: a study of utility, without the guarantee unless it is 1.
        rate: of the optimizer that the plan reads; 0 where it reads none.
    """

    task: str
    epsilon: float
    order: Order
    optimizer: str
    schedule: str
    arm: Arm
    clip: float = 1.0
    scale: float = 1.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.arm == "no noise":  # one for all epsilon
            object.__setattr__(self, "epsilon", 0.0)
        if self.arm in ("DP-SGD", "no noise"):
            object.__setattr__(self, "order", "drawn" if self.arm == "DP-SGD" else "fixed")

    def plan(self, task: Task) -> Plan:
        """What the arm is planned by; without noise as independent noise, by the engine as the plan."""
        arm: Arm = "default" if self.arm == "engine" else self.arm
        return planned(task, replace(self, clip=1.0, scale=1.0, arm=arm))


@cache
def planned(task: Task, cell: Cell) -> Plan:
    told: dict[str, Any] = {}
    rule, _, made = OPTIMIZERS[cell.optimizer]
    if cell.arm == "banded":
        told = {"strategy": ["identity", "banded_toeplitz"], "sampling": ["poisson", "cyclic_poisson"]}
    elif cell.rate:
        rule = made([nn.Parameter(torch.zeros(1))], lr=cell.rate)
    elif cell.arm != "default":
        schemes = {"DP-SGD": "poisson", "independent": "random_allocation"}
        scheme = schemes[cell.arm] if cell.order == "drawn" else "fixed_order"
        told = {"strategy": "identity", "sampling": scheme}
    return an.plan(
        examples=task.examples, batch_size=task.batch_size, epochs=task.epochs, dimension=task.dimension,
        epsilon=cell.epsilon or 1.0, delta=task.delta, random_sampling=cell.order == "drawn",
        optimizer=rule, scheduler=cell.schedule, **told,
    )  # fmt: skip


def trained(cell: Cell, task: Task, rates: list[float], seeds: Sequence[int]) -> np.ndarray:
    """The metric of the last iterate, shape (seeds, rates); rates of SGD are times the clip norm."""
    mechanism = cell.plan(task).mechanism
    n, width = mechanism.steps, task.dimension
    orders = [
        batches_of(mechanism.sampling, hashlib.sha256(b"batches %d" % seed).digest(), shuffled=task.drawable)
        for seed in seeds
    ]
    noise = torch.zeros(n, len(seeds), width)
    for place, seed in enumerate(seeds if cell.arm != "no noise" else []):
        fresh = np.random.default_rng(100 + seed).standard_normal((n, width))
        std = cell.scale * mechanism.noise_std
        noise[:, place] = torch.from_numpy(np.asarray(std * mechanism.strategy.correlate(fresh), np.float32))
    theta = torch.stack([task.start(seed) for seed in seeds])[:, None].repeat(1, len(rates), 1)
    parts = theta.unbind(1)
    groups = [{"params": [part], "lr": rate} for part, rate in zip(parts, rates, strict=True)]
    optimizer = OPTIMIZERS[cell.optimizer][2](groups)
    factors = named_rates(cell.schedule, n)  # type: ignore[arg-type]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(factors[min(t, n - 1)]))
    x, y = task.data[:2]
    for t in range(n):
        batches = [torch.from_numpy(np.asarray(order.batch(t), dtype=np.int64)) for order in orders]
        index = pad_sequence(batches, batch_first=True)
        there = pad_sequence([torch.ones(len(batch)) for batch in batches], batch_first=True)
        released = task.clipped_sum(theta, x[index], y[index], there, cell.clip) + noise[t][:, None]
        for part, sums in zip(parts, released.unbind(1), strict=True):
            part.grad = sums / float(mechanism.expected_batch_size)
        optimizer.step()
        scheduler.step()
    return np.array([[task.metric(model) for model in models] for models in theta])


def by_engine(cell: Cell, task: Task, rates: list[float], seeds: Sequence[int]) -> np.ndarray:
    """The same by `make_private_with_epsilon`, at the advised rate: that of `rates` stands for it."""
    x, y, other, labels = task.data
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        layers = [layer for shape in task.shapes[::2] for layer in (nn.Linear(*shape), nn.ReLU())]  # type: ignore[misc]
        model = nn.Sequential(*layers[:-1])
        optimizer = OPTIMIZERS[cell.optimizer][2](model.parameters(), lr=1.0)
        # keys follow from the seed, so that figures can be reproduced: a run that protects anyone passes none
        keys = [hashlib.sha256(f"{kind} {cell} {seed}".encode()).digest() for kind in ("noise", "order")]
        engine = PrivacyEngine(noise_key=keys[0], sampling_key=keys[1])
        private, released, loader = engine.make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(TensorDataset(x, y), batch_size=task.batch_size, shuffle=task.drawable),
            target_epsilon=cell.epsilon,
            target_delta=task.delta,
            epochs=task.epochs,
            max_grad_norm=cell.clip,
            poisson_sampling=cell.order == "drawn",
            scheduler=cell.schedule,
        )
        for group in optimizer.param_groups:
            group["lr"] = engine.plan.advice.rate
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, engine.plan.advice.factor)
        for _ in range(task.epochs):
            for rows, targets in loader:
                released.zero_grad()
                nn.functional.cross_entropy(private(rows), targets).backward()
                released.step()
                scheduler.step()
        with torch.no_grad():
            found.append([float((model(other).argmax(-1) == labels).float().mean())])
    return np.array(found)


class Results:
    """JSON lines: where and when a run began, then what each call trained; a run that was stopped goes on."""

    def __init__(self, path: Path, data: Path) -> None:
        self._path, self._data = path, data
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # a line that was cut off is trained again
            text = text[: text.rfind("\n") + 1]
            path.write_text(text, encoding="utf-8")
        self.runs: list[dict[str, Any]] = []
        self.cells: dict[Cell, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        self.plans: dict[Cell, dict[str, Any]] = {}
        self.norms: dict[str, list[float]] = {}
        self._began = False
        self.until = math.inf  # by the clock of `time.monotonic`: nothing is begun after it
        for line in text.splitlines():
            self._read(json.loads(line))

    def _read(self, line: dict[str, Any]) -> None:
        if "machine" in line:
            self.runs.append(line)
            return
        if "norms" in line:
            self.norms[line["task"]] = line["norms"]
            return
        cell = Cell(**{field.name: line[field.name] for field in fields(Cell) if field.name in line})
        self.plans[cell] = line["plan"]
        for rate, column in zip(line["rates"], line["metrics"], strict=True):
            self.cells[cell][rate].update(zip(line["seeds"], column, strict=True))

    def _write(self, line: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._read(line)

    def of(self, cell: Cell) -> dict[float, np.ndarray]:
        """Metrics by rate, in increasing order, of the seeds that all rates have."""
        found = self.cells.get(cell, {})
        seeds = sorted(set.intersection(*map(set, found.values()))) if found else []
        return {rate: np.array([found[rate][seed] for seed in seeds]) for rate in sorted(found)}

    def predicted(self, cell: Cell) -> float:
        """Of the arm's plan, times the scale of the noise."""
        return float(self.plans[cell]["predicted"]) * cell.scale

    def best(self, cell: Cell) -> float:
        """The rate of the largest mean."""
        found = self.of(cell)
        return max(found, key=lambda rate: float(found[rate].mean()))

    def at_rate(self, alone: Cell) -> Cell:
        """The plan of an optimizer at the best rate of `alone`, independent noise."""
        return replace(alone, arm=AT_RATE, rate=self.best(alone))

    def at_end(self, cell: Cell) -> bool:
        """Whether the best rate has no worse one to both sides."""
        return self.best(cell) in (min(self.cells[cell]), max(self.cells[cell]))

    def train(self, cell: Cell, rates: Sequence[float], seeds: int) -> None:
        """At those rates and seeds that are missing."""
        known = self.cells.get(cell, {})
        lacking = defaultdict(list)
        for rate in rates:
            lacking[tuple(seed for seed in range(seeds) if seed not in known.get(rate, {}))].append(rate)
        for missing in filter(None, lacking):
            if time.monotonic() > self.until:
                raise TimeoutError("what is missing is left for the next run")
            self._train(cell, lacking[missing], [*missing])

    def _train(self, cell: Cell, rates: list[float], seeds: list[int]) -> None:
        task = task_of(cell.task, self._data)
        made = by_engine if cell.arm == "engine" else trained
        self._record(cell, rates, seeds, made(cell, task, rates, seeds))

    def _facts(self, cell: Cell) -> dict[str, Any]:
        row = cell.plan(task_of(cell.task, self._data)).chosen
        facts = {"name": row.name, "sampling": row.sampling, "predicted": round(row.predicted, 6)}
        return facts | {"step": round(row.step_noise, 6), "advised": self._advised(cell)}

    def _record(self, cell: Cell, rates: list[float], seeds: list[int], metrics: np.ndarray) -> None:
        if not self._began:
            self._began = True
            self._write(here())
        if cell.task not in self.norms:
            task = task_of(cell.task, self._data)
            few = np.quantile(task.norms().numpy(), [0.1, 0.5, 0.9])
            self._write({"task": task.name, "norms": [round(float(norm), 3) for norm in few]})
        short = {k: v for k, v in asdict(cell).items() if v != getattr(Cell, k, None)}  # no defaults
        columns = [[round(float(v), 5) for v in column] for column in metrics.T]
        self._write({**short, "plan": self._facts(cell), "seeds": seeds, "rates": rates, "metrics": columns})

    def complete(self, cell: Cell, seeds: int, also: Sequence[float] = ()) -> None:
        """At six rates around the advised one, two apart, at it, and beyond until the best is at no end."""
        if cell.arm == "engine":
            self.train(cell, [0.0], seeds)
            return
        if cell.rate:
            alone = replace(cell, arm="independent", rate=0.0)
            self._share(cell, alone)
            self._share(cell, replace(alone, arm="default"))
            self.train(cell, [cell.rate], len(self.of(alone)[cell.rate]))
            return
        self._share(cell, replace(cell, arm=PARTNERS.get(cell.arm, cell.arm)))
        rate = self._advised(cell)
        middle = rate / cell.scale if rate else OPTIMIZERS[cell.optimizer][1] * max(1.0, cell.clip)
        rates = {2.0 ** (round(np.log2(middle)) + k) for k in range(-3, 3)}
        rates |= {*([rate] if rate else []), *also, *self.cells.get(cell, {})}
        self.train(cell, sorted(rates), seeds)
        for _ in range(OCTAVES):
            if not self.at_end(cell):
                break
            best = self.best(cell)
            down = best == min(self.cells[cell])
            self.train(cell, [best / 2, best / 4] if down else [2 * best, 4 * best], seeds)

    def _share(self, cell: Cell, other: Cell) -> None:
        """Take over the runs of another arm that has the same mechanism, at the rate it reads if any."""
        theirs, mine = self.cells.get(other, {}), self.cells.get(cell, {})
        plan = self.plans.get(cell) or (self._facts(cell) if theirs and other != cell else {})
        same = ("name", "sampling", *["step"] * bool(cell.rate))
        if other == cell or not theirs or any(plan[k] != self.plans[other][k] for k in same):
            return
        for rate, each in [*theirs.items()]:
            if cell.rate in (0.0, rate) and (fresh := [s for s in each if s not in mine.get(rate, {})]):
                self._record(cell, [rate], fresh, np.array([[each[seed]] for seed in fresh]))

    def _advised(self, cell: Cell) -> float:
        """The rate of the plan's advice; 0 without noise."""
        if cell in self.plans or cell.arm == "no noise":
            return float(self.plans[cell]["advised"]) if cell.arm != "no noise" else 0.0
        advice = cell.plan(task_of(cell.task, self._data)).advice
        return float(f"{advice.rate:.4g}") if advice else 0.0


@cache
def task_of(name: str, data: Path) -> Task:
    return TASKS[name](data)


def here() -> dict[str, Any]:
    """Date, machine and commit of a run."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parent,
    )  # fmt: skip
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return {
        "machine": names[0] if names else platform.processor(),
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
    }

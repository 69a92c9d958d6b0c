"""Which optimiser gains from correlated noise, and at which learning rates: python benchmarks/optimizers.py

    python benchmarks/optimizers.py teacher flights --epsilons 2 8 --seeds 3
    python benchmarks/optimizers.py fashion-mnist --data-dir data/fashion-mnist

Small multi-layer perceptrons (or a logistic model), gradients clipped to norm 1 an example, with the noise
that plan() calibrates: independent noise as one draws it for DP-SGD, and the mechanism of least predicted
error. Learning rates follow a cosine to 0. All learning rates and seeds of an arm are trained at once, on
batches of a fixed shuffled order whatever the mechanism's sampling: arms differ in their noise alone. Metric:
accuracy on test examples (area under the ROC curve for the flights), mean over seeds. Each optimiser's rates
are powers of two on one grid; a best one at an end of it is marked *.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import anechoic as an
from anechoic.lab.data import fashion_mnist, flights_design
from anechoic.lab.studies.metrics import auc

DELTA = 1e-5
SGD = [2.0**k for k in range(-4, 8)]
ADAM = [1e-3 * 2.0**k for k in range(-2, 10)]
RATES = {"SGD": SGD, "momentum": [rate / 8 for rate in SGD], "Adam": ADAM, "CorrectedAdam": ADAM}
HEAD = (
    "| task | ε | optimiser | independent noise | (its rate) | plan, same rate | plan, best rate"
    " | (its rate) |"
)


@dataclass(frozen=True)
class Task:
    """Training and test examples, widths of the layers, batch size and passes."""

    name: str
    data: tuple[Tensor, Tensor, Tensor, Tensor]
    widths: tuple[int, ...]
    batch_size: int
    epochs: int

    @property
    def steps(self) -> int:
        return self.epochs * (len(self.data[0]) // self.batch_size)

    @property
    def dimension(self) -> int:
        return sum(a * b + b for a, b in pairwise(self.widths))


def teacher() -> Task:
    """Four classes by a random network of one hidden layer."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(18_000, 20, generator=g)
    hidden = torch.tanh(1.5 * x @ (torch.randn(20, 16, generator=g) * 1.5 / 20**0.5))
    scores = hidden @ torch.randn(16, 4, generator=g) + 0.1 * torch.randn(18_000, 4, generator=g)
    return Task("teacher", _split(x, scores.argmax(1), 12_000), (20, 32, 4), 256, 8)


def tabular() -> Task:
    """A logistic law of 60 columns whose scales fall by a factor of e every 24."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(30_000, 60, generator=g) * torch.exp(-torch.arange(60) / 24)
    chance = torch.sigmoid(2 * x @ torch.randn(60, generator=g))
    return Task(
        "tabular", _split(x, (torch.rand(30_000, generator=g) < chance).long(), 20_000), (60, 2), 256, 5
    )


def flights() -> Task:
    """80,000 of the embedded flights at random: is it late by more than 15 minutes?"""
    features, late = flights_design()
    some = np.random.default_rng(0).permutation(len(features))[:80_000]
    x, y = torch.from_numpy(features[some]), torch.from_numpy(late[some].astype(np.int64))
    return Task("flights", _split(x, y, 60_000), (46, 2), 512, 5)


def images(directory: Path) -> Task:
    """10,000 images of Fashion-MNIST, averaged over squares of four pixels."""
    x, y, test_x, test_y = fashion_mnist(directory)

    def small(pixels: np.ndarray) -> Tensor:
        averaged = pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
        return torch.from_numpy(((averaged - 0.286) / 0.35).astype(np.float32))

    some, tested = 10_000, 5000
    labels = torch.from_numpy(y[:some]), torch.from_numpy(test_y[:tested])
    split = (small(x[:some]), labels[0], small(test_x[:tested]), labels[1])
    return Task("fashion-mnist", split, (196, 48, 10), 256, 10)


def _split(x: Tensor, y: Tensor, train: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[:train], y[:train], x[train:], y[train:]


# -- training many models at once -----------------------------------------------------------------


def layers(theta: Tensor, widths: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights (models, in, out) and biases (models, out) of each layer, from theta (models, m)."""
    start = 0
    for a, b in pairwise(widths):
        yield theta[:, start : start + a * b].view(-1, a, b), theta[:, start + a * b : start + a * b + b]
        start += a * b + b


def forward(theta: Tensor, x: Tensor, widths: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
    """Inputs of each layer and logits, of x with shape (models, rows, in)."""
    inputs, h = [], x
    for weight, bias in layers(theta, widths):
        inputs.append(torch.relu(h) if inputs else h)
        h = torch.baddbmm(bias[:, None], inputs[-1], weight)
    return inputs, h


def clipped_sums(theta: Tensor, x: Tensor, y: Tensor, widths: tuple[int, ...]) -> Tensor:
    """Sums of gradients of examples, each clipped to norm 1, shape (models, m)."""
    inputs, logits = forward(theta, x, widths)
    errors = [torch.softmax(logits, -1).scatter_add(2, y[..., None], -torch.ones_like(y[..., None]).float())]
    for (weight, _), h in zip(reversed(list(layers(theta, widths))[1:]), reversed(inputs[1:]), strict=True):
        errors.insert(0, torch.bmm(errors[0], weight.transpose(1, 2)) * (h > 0))
    pairs = list(zip(inputs, errors, strict=True))
    norms = sum((h.square().sum(-1) + 1) * e.square().sum(-1) for h, e in pairs)
    factors = torch.as_tensor(norms).rsqrt().clamp(max=1.0)[..., None]
    scaled = [(h, e * factors) for h, e in pairs]
    parts = [part for h, e in scaled for part in (torch.bmm(h.transpose(1, 2), e).flatten(1), e.sum(1))]
    return torch.cat(parts, 1)


def trained(
    task: Task, mechanism: an.Mechanism, optimizer: str, rates: list[float], seeds: int, independent: float
) -> np.ndarray:
    """The metric of every rate, mean over seeds."""
    x, y, *_ = task.data
    n, size, count = task.steps, task.batch_size, len(x)
    rows = mechanism.noise_std * mechanism.strategy.correlate(np.eye(n))
    variances = np.square(rows).sum(axis=1) / size**2
    factor = torch.from_numpy(rows.astype(np.float32))
    noise = torch.stack(
        [
            factor @ torch.randn(n, task.dimension, generator=torch.Generator().manual_seed(100 + seed))
            for seed in range(seeds)
        ]
    )
    orders = [torch.randperm(count, generator=torch.Generator().manual_seed(seed)) for seed in range(seeds)]
    theta = torch.stack([_start(task, seed) for seed in range(seeds)]).repeat_interleave(len(rates), 0)
    rate = torch.tensor(rates).repeat(seeds)[:, None]
    step = _OPTIMIZERS[optimizer](theta, variances, independent**2)
    for t in range(n):
        chosen = torch.stack([order[(t * size + torch.arange(size)) % count] for order in orders])
        inputs, labels = (
            x[chosen].repeat_interleave(len(rates), 0),
            y[chosen].repeat_interleave(len(rates), 0),
        )
        sums = clipped_sums(theta, inputs, labels, task.widths)
        gradient = (sums + noise[:, t].repeat_interleave(len(rates), 0)) / size
        theta -= 0.5 * (1 + math.cos(math.pi * t / n)) * rate * step(t, gradient)
    return np.array([_metric(task, model) for model in theta]).reshape(seeds, len(rates)).mean(axis=0)


def _start(task: Task, seed: int) -> Tensor:
    g, parts = torch.Generator().manual_seed(seed), []
    for a, b in pairwise(task.widths):
        scale = 0.0 if len(task.widths) == 2 else a**-0.5
        parts += [(2 * torch.rand(a * b + b, generator=g) - 1) * scale]
    return torch.cat(parts)


def _metric(task: Task, model: Tensor) -> float:
    logits = forward(model[None], task.data[2][None], task.widths)[1][0]
    if not torch.isfinite(logits).all():
        return 0.0
    if task.name == "flights":
        return auc((logits[:, 1] - logits[:, 0]).numpy(), task.data[3].numpy())
    return float((logits.argmax(1) == task.data[3]).float().mean())


# -- optimisers: (models, variances of the noise, independent variance) -> (t, gradient) -> direction -----

Step = Callable[[int, Tensor], Tensor]


def _sgd(theta: Tensor, variances: np.ndarray, independent: float) -> Step:
    return lambda t, gradient: gradient


def _momentum(theta: Tensor, variances: np.ndarray, independent: float) -> Step:
    sums = torch.zeros_like(theta)
    return lambda t, gradient: sums.mul_(0.9).add_(gradient)


def _adam(theta: Tensor, variances: np.ndarray, independent: float, *, corrected: bool = False) -> Step:
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)

    def step(t: int, gradient: Tensor) -> Tensor:
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        known = square / (1 - 0.999 ** (t + 1))
        if corrected:  # as torch.CorrectedAdam does
            weights = 0.999 ** np.arange(t, -1, -1.0)
            noise = float(weights @ variances[: t + 1] / weights.sum())
            known = (known - noise).clamp(min=0.0) + independent
        return mean / (1 - 0.9 ** (t + 1)) / (known.sqrt() + 1e-8)

    return step


_OPTIMIZERS: dict[str, Callable[[Tensor, np.ndarray, float], Step]] = {
    "SGD": _sgd,
    "momentum": _momentum,
    "Adam": _adam,
    "CorrectedAdam": lambda theta, variances, independent: _adam(
        theta, variances, independent, corrected=True
    ),
}


def lines(task: Task, epsilon: float, seeds: int) -> Iterator[str]:
    """Rows of the table for one task and epsilon."""
    planned = an.plan(
        examples=len(task.data[0]),
        batch_size=task.batch_size,
        steps=task.steps,
        epsilon=epsilon,
        delta=DELTA,
        dimension=task.dimension,
    )
    plain = min((row for row in planned.rows if row.name == "Identity"), key=lambda row: row.predicted)
    best = planned.chosen
    yield (
        f"<!-- {task.name}, ε = {epsilon:g}, n = {task.steps}: {best.name}, {best.sampling}; error of sums"
        f" {best.predicted / plain.predicted:.3f}, of a step {best.step_noise / plain.step_noise:.2f} -->"
    )
    reference = plain.step_noise
    for name, rates in RATES.items():
        against = "Adam" if name == "CorrectedAdam" else name
        alone = trained(task, plain.mechanism, against, rates, seeds, reference)
        ours = trained(task, best.mechanism, name, rates, seeds, reference)
        first, second = int(alone.argmax()), int(ours.argmax())
        ends = (0, len(rates) - 1)
        yield (
            f"| {task.name} | {epsilon:g} | {name} | {alone[first]:.4f} | {rates[first]:g}"
            f"{'*' * (first in ends)} | {ours[first]:.4f} | {ours[second]:.4f} | {rates[second]:g}"
            f"{'*' * (second in ends)} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=["tabular", "teacher", "flights"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, default=Path("data/fashion-mnist"))
    options = parser.parse_args()
    made: dict[str, Callable[[], Task]] = {
        "tabular": tabular,
        "teacher": teacher,
        "flights": flights,
        "fashion-mnist": lambda: images(options.data_dir),
    }
    torch.set_num_threads(1)
    print(HEAD)
    print("|" + "---|" * (HEAD.count("|") - 1))
    for name in options.tasks:
        if name not in made:
            raise SystemExit(f"task {name!r} is unknown: choose from {', '.join(made)}.")
        task = made[name]()
        for epsilon in options.epsilons:
            for line in lines(task, epsilon, options.seeds):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

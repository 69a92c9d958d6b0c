"""What a plan that reads the run gains: python benchmarks/kept.py --data-dir DIR [--model hidden]

Fashion-MNIST in one pass of 1,024 steps of 29 in a fixed order, clip norm 1, delta 1e-6; test accuracy of the
last iterate, each arm at the best rate of a grid of powers of two, which is outside the guarantee. The noise
is the mechanism's, drawn by NumPy: this is a study of utility, not a release. A minute for softmax
regression, some minutes for one hidden layer of 32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.planning.compare import plan
from anechoic.planning.update import ScheduleName, UpdateRule, named_rates

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
from studies.data.fashion_mnist import fashion_mnist

Array = NDArray[np.float32]
STEPS, BATCH, DELTA, MOMENTUM = 1024, 29, 1e-6, 0.9

#: Momentum and schedule of a run, and what its plan is told: of the update, the schedule, and what is kept.
ARMS: dict[str, tuple[float, ScheduleName, dict[str, Any]]] = {
    "SGD, independent": (0.0, "constant", {"strategy": "identity"}),
    "SGD, sums": (0.0, "constant", {"keep": "all"}),
    "SGD, last": (0.0, "constant", {"keep": "last"}),
    "momentum, independent": (MOMENTUM, "constant", {"strategy": "identity"}),
    "momentum, sums": (MOMENTUM, "constant", {"keep": "all"}),
    "momentum, aware, all": (MOMENTUM, "constant", {"keep": "all", "aware": True}),
    "momentum, aware, last": (MOMENTUM, "constant", {"keep": "last", "aware": True}),
    "momentum, cosine, sums": (MOMENTUM, "cosine", {"keep": "all"}),
    "momentum, cosine, aware, all": (MOMENTUM, "cosine", {"keep": "all", "aware": True}),
    "momentum, cosine, aware, last": (MOMENTUM, "cosine", {"keep": "last", "aware": True}),
}


class Network:
    """Softmax regression, or one hidden layer of ReLUs; gradients of examples are clipped to norm 1."""

    def __init__(self, inputs: int, hidden: int) -> None:
        self.shapes = [(inputs, 10)] if not hidden else [(inputs, hidden), (hidden + 1, 10)]
        self.sizes = [rows * columns for rows, columns in self.shapes]

    def start(self, rng: np.random.Generator) -> Array:
        """Zeros for softmax regression, else normal numbers of variance 2 / inputs, then zeros."""
        if len(self.shapes) == 1:
            return np.zeros(self.sizes[0], np.float32)
        first = rng.standard_normal(self.sizes[0], np.float32) * np.sqrt(2.0 / self.shapes[0][0])
        return np.concatenate([first, np.zeros(self.sizes[1])]).astype(np.float32)

    def layers(self, weights: Array) -> list[Array]:
        parts = np.split(weights, np.cumsum(self.sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def scores(self, layers: list[Array], x: Array) -> tuple[list[Array], Array]:
        """Inputs of the layers, and the scores of the classes."""
        inputs = [x]
        if len(layers) == 2:
            rows = np.maximum(x @ layers[0], 0.0)
            inputs.append(np.concatenate([rows, np.ones((len(x), 1), np.float32)], axis=1))
        return inputs, inputs[-1] @ layers[-1]

    def clipped_sum(self, weights: Array, x: Array, y: NDArray[np.int64]) -> Array:
        layers = self.layers(weights)
        inputs, scores = self.scores(layers, x)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        back = scores / scores.sum(axis=1, keepdims=True)
        back[np.arange(len(y)), y] -= 1.0
        backs = [back]
        if len(layers) == 2:
            backs.insert(0, (back @ layers[1][:-1].T) * (inputs[1][:, :-1] > 0.0))
        squares = sum(
            np.square(a).sum(axis=1) * np.square(b).sum(axis=1) for a, b in zip(inputs, backs, strict=True)
        )
        factors = 1.0 / np.maximum(1.0, np.sqrt(squares))[:, None]
        return np.concatenate([(a.T @ (b * factors)).reshape(-1) for a, b in zip(inputs, backs, strict=True)])


def trained(
    network: Network, data: tuple[Array, NDArray[np.int64]], noise: Array, rate: float, arm: str, seed: int
) -> Array:
    momentum, schedule, _ = ARMS[arm]
    weights = network.start(np.random.default_rng(seed))
    velocity, rates = np.zeros_like(weights), rate * named_rates(schedule, STEPS)
    for t in range(STEPS):
        rows = slice(t * BATCH, (t + 1) * BATCH)
        with np.errstate(all="ignore"):
            gradient = (network.clipped_sum(weights, data[0][rows], data[1][rows]) + noise[t]) / BATCH
        velocity = momentum * velocity + gradient
        weights = weights - np.float32(rates[t]) * velocity
    return weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--model", choices=("softmax", "hidden"), default="softmax")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[2.0**-k for k in range(3, 12)])
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    options = parser.parse_args()
    images, labels, held, held_labels = fashion_mnist(options.data_dir)
    flat = [np.c_[x.reshape(len(x), -1), np.ones(len(x))].astype(np.float32) for x in (images, held)]
    network = Network(flat[0].shape[1], 32 if options.model == "hidden" else 0)
    print("| ε | arm | accuracy | rate | predicted | bands |\n|---|---|---|---|---|---|", flush=True)
    for epsilon in options.epsilon:
        for arm in options.arms:
            momentum, schedule, told = ARMS[arm]
            asked = dict(told)
            if asked.pop("aware", False):
                asked |= {"optimizer": UpdateRule("sgd", momentum), "scheduler": schedule}
            chosen = plan(
                examples=STEPS * BATCH, batch_size=BATCH, epochs=1, epsilon=epsilon, delta=DELTA,
                random_sampling=False, **asked,
            ).chosen  # fmt: skip
            found = np.zeros((len(options.rates), options.seeds))
            for seed in range(options.seeds):
                rng = np.random.default_rng(1000 + seed)
                order = rng.permutation(len(images))[: STEPS * BATCH]
                fresh = chosen.noise_std * rng.standard_normal((STEPS, sum(network.sizes)))
                noise = chosen.mechanism.strategy.correlate(fresh).astype(np.float32)
                data = (flat[0][order], labels[order])
                for i, rate in enumerate(options.rates):
                    weights = trained(network, data, noise, rate, arm, seed)
                    _, scores = network.scores(network.layers(weights), flat[1])
                    found[i, seed] = float((scores.argmax(axis=1) == held_labels).mean())
            best = int(found.mean(axis=1).argmax())
            error = found[best].std(ddof=1) / np.sqrt(options.seeds) if options.seeds > 1 else 0.0
            print(
                f"| {epsilon:g} | {arm} | {found[best].mean():.3f} ± {error:.3f} | {options.rates[best]:g} |"
                f" {chosen.predicted:.3g} | {chosen.name} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

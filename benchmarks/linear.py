"""Estimators beside diffprivlib, Opacus and scikit-learn: python benchmarks/linear.py [--peer PYTHON]

Every arm has the same (epsilon, delta) with delta = N^-1.1 (diffprivlib's is 0), the same splits, and the
same bounds, which count as public: the least and largest value of each feature of the whole data set. Nothing
of ours is tuned. Opacus trains by DP-SGD under Poisson sampling; of three learning rates the best of each
cell is shown, which it could not know. diffprivlib is told the largest norm of a row, and runs in an
environment of its own, whose Python `--peer` names. Scores are accuracies (AUC for flights), and R^2 for
numbers, of the test part, not below -1. `--fit` times one fit of all flights instead, and its peak memory.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets, linear_model
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import train_test_split

from anechoic.demo.flights import flights_design
from anechoic.linear import LogisticRegression, Ridge

HERE = Path(__file__).parent
WORKER = HERE / "peers" / "diffprivlib_worker.py"
EPSILONS = (0.1, 0.5, 2.0, 8.0)
RATES = (0.3, 1.0, 3.0)
#: Of Opacus: passes, and a share of the data that a batch is.
EPOCHS, SHARE = 20, 0.1

Array = NDArray[Any]


@dataclass(frozen=True)
class Data:
    """One data set with its public bounds."""

    name: str
    kind: str
    x: Array
    y: Array

    @property
    def bounds(self) -> tuple[Array, Array]:
        low, high = self.x.min(axis=0), self.x.max(axis=0)
        return low, np.where(high > low, high, low + 1.0)

    @property
    def target(self) -> tuple[float, float]:
        return float(self.y.min()), float(self.y.max())

    def scaled(self, x: Array) -> Array:
        low, high = self.bounds
        return np.asarray((2 * x - low - high) / (high - low))


def data_sets(flights: int) -> list[Data]:
    classes = [
        ("breast cancer", datasets.load_breast_cancer(return_X_y=True)),
        ("wine", datasets.load_wine(return_X_y=True)),
        ("iris", datasets.load_iris(return_X_y=True)),
        ("digits", datasets.load_digits(return_X_y=True)),
        ("made, 2 classes", datasets.make_classification(4000, 20, n_informative=8, random_state=0)),
        (
            "made, 5 classes",
            datasets.make_classification(6000, 40, n_informative=12, n_classes=5, random_state=1),
        ),
    ]
    numbers = [
        ("diabetes", datasets.load_diabetes(return_X_y=True)),
        ("Friedman 1", datasets.make_friedman1(5000, noise=1.0, random_state=0)),
        ("made, linear", datasets.make_regression(3000, 20, n_informative=8, noise=20.0, random_state=0)),
    ]
    x, late = flights_design()
    return [
        *(Data(name, "classes", *each) for name, each in classes),
        Data("flights", "ranks", x[:flights].astype(np.float64), late[:flights].astype(np.int64)),
        *(Data(name, "numbers", *each) for name, each in numbers),
    ]


def score_of(data: Data, model: Any, x: Array, y: Array) -> float:
    if data.kind == "ranks":
        return float(roc_auc_score(y, model.decision_function(x)))
    if data.kind == "classes":
        return float(model.score(x, y))
    return float(r2_score(y, np.clip(model.predict(x), *data.target)))


def ours(data: Data, epsilon: float, seed: int, x: Array, y: Array) -> Iterator[tuple[str, Any]]:
    """(arm, fitted model); the default estimator is the first."""
    options: dict[str, Any] = {"epsilon": epsilon, "delta": len(x) ** -1.1, "random_state": seed}
    options["feature_bounds"] = data.bounds
    if data.kind == "numbers":
        options["target_bounds"] = data.target
        yield "Ridge", Ridge(**options).fit(x, y)
        return
    options["classes"] = np.unique(data.y)
    yield "LogisticRegression", LogisticRegression(**options).fit(x, y)


def plain(data: Data, x: Array, y: Array) -> Any:
    if data.kind == "numbers":
        return linear_model.Ridge(alpha=1e-3).fit(x, y)
    return linear_model.LogisticRegression(max_iter=2000).fit(x, y)


@cache
def multiplier_of(epsilon: float, count: int, size: int) -> float:
    """Of Opacus's own accountant."""
    from opacus.accountants.utils import get_noise_multiplier

    steps = EPOCHS * math.ceil(count / size)
    found = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=count**-1.1, sample_rate=1 / math.ceil(count / size), steps=steps
    )
    return float(found)


class ByOpacus:
    """DP-SGD on the same scaled features, with the interface that scores need."""

    def __init__(self, data: Data, epsilon: float, rate: float, seed: int) -> None:
        self.data, self.epsilon, self.rate, self.seed = data, epsilon, rate, seed

    def fit(self, x: Array, y: Array) -> ByOpacus:
        import torch
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(self.seed)
        numbers = self.data.kind == "numbers"
        low, high = self.data.target
        targets = (2 * y - low - high) / (high - low) if numbers else y
        rows = torch.tensor(self.data.scaled(x), dtype=torch.float32)
        given = torch.tensor(targets, dtype=torch.float32 if numbers else torch.long)
        model: Any = torch.nn.Linear(rows.shape[1], 1 if numbers else int(self.data.y.max()) + 1)
        torch.nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=self.rate)
        loader: Any = DataLoader(TensorDataset(rows, given), batch_size=max(1, round(SHARE * len(x))))
        multiplier = multiplier_of(self.epsilon, len(x), max(1, round(SHARE * len(x))))
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0,
            noise_multiplier=multiplier,
        )  # fmt: skip
        loss = torch.nn.MSELoss() if numbers else torch.nn.CrossEntropyLoss()
        for _ in range(EPOCHS):
            for some, wanted in loader:
                if len(some):
                    optimizer.zero_grad()
                    found = model(some)
                    loss(found[:, 0] if numbers else found, wanted).backward()
                    optimizer.step()
        self.weight = model._module.weight.detach().double().numpy()
        self.bias = model._module.bias.detach().double().numpy()
        return self

    def _scores(self, x: Array) -> Array:
        return np.asarray(self.data.scaled(x) @ self.weight.T + self.bias)

    def decision_function(self, x: Array) -> Array:
        return np.asarray(self._scores(x)[:, 1] - self._scores(x)[:, 0])

    def predict(self, x: Array) -> Array:
        low, high = self.data.target
        if self.data.kind == "numbers":
            return np.asarray((self._scores(x)[:, 0] * (high - low) + low + high) / 2)
        return np.asarray(self._scores(x).argmax(axis=1))

    def score(self, x: Array, y: Array) -> float:
        return float((self.predict(x) == y).mean())


class Peer:
    """diffprivlib in its own Python."""

    def __init__(self, python: str) -> None:
        self._pipe = subprocess.Popen(
            [python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._folder = tempfile.TemporaryDirectory()

    def score(self, data: Data, epsilon: float, split: list[Array]) -> float:
        """Nan where it fails."""
        return float(self._asked(data, epsilon, split).get("score", math.nan))

    def fitted(self, data: Data, epsilon: float, split: list[Array]) -> tuple[Array, Array] | None:
        """(probabilities of the test part, coefficients for scaled features); None where it fails."""
        found = self._asked(data, epsilon, split)
        if "coefficients" not in found:
            return None
        return np.array(found["probabilities"]), np.array(found["coefficients"])

    def _asked(self, data: Data, epsilon: float, split: list[Array]) -> dict[str, Any]:
        train, test, y, truth = split
        low, high = data.bounds
        file = f"{self._folder.name}/split.npz"
        norm = float(np.linalg.norm(data.scaled(data.x), axis=1).max())
        np.savez(file, train=train, test=test, y=y, truth=truth, low=low, high=high, norm=norm)
        kind = "numbers" if data.kind == "numbers" else "classes"
        bounds = dict(zip(("target_low", "target_high"), data.target, strict=True))
        assert self._pipe.stdin and self._pipe.stdout
        print(json.dumps({"file": file, "kind": kind, "epsilon": epsilon, **bounds}), file=self._pipe.stdin)
        self._pipe.stdin.flush()
        answer: dict[str, Any] = json.loads(self._pipe.stdout.readline())
        return answer


def cells(data: Data, splits: int, peer: Peer | None, opacus: bool) -> Iterator[dict[str, Any]]:
    """Scores of every arm at every epsilon, over the splits."""
    for epsilon in EPSILONS:
        found: dict[str, list[float]] = {}

        def add(arm: str, score: float, found: dict[str, list[float]] = found) -> None:
            found.setdefault(arm, []).append(max(-1.0, score))

        for seed in range(splits):
            kept = data.y if data.kind == "classes" else None
            split = train_test_split(data.x, data.y, test_size=0.3, random_state=seed, stratify=kept)
            x, test, y, truth = split
            for arm, model in ours(data, epsilon, seed, x, y):
                add(arm, score_of(data, model, test, truth))
            add("not private", score_of(data, plain(data, x, y), test, truth))
            if peer is not None and data.kind != "ranks":
                add("diffprivlib", peer.score(data, epsilon, split))
            for rate in RATES if opacus else ():
                add(
                    f"Opacus {rate:g}",
                    score_of(data, ByOpacus(data, epsilon, rate, seed).fit(x, y), test, truth),
                )
        yield {"data": data.name, "epsilon": epsilon, "scores": best_of_opacus(found)}


def best_of_opacus(found: dict[str, list[float]]) -> dict[str, list[float]]:
    """The best learning rate in hindsight stands for all."""
    rates = {arm: scores for arm, scores in found.items() if arm.startswith("Opacus")}
    rest = {arm: scores for arm, scores in found.items() if arm not in rates}
    return rest | (
        {"Opacus": max(rates.values(), key=lambda scores: float(np.mean(scores)))} if rates else {}
    )


def shown(scores: list[float]) -> str:
    """Mean and standard error."""
    values = np.array(scores)
    if not np.isfinite(values).all():
        return "–"
    return f"{values.mean():.3f} ± {values.std(ddof=1) / math.sqrt(len(values)):.3f}"


def fit_flights() -> None:
    """Processor time, wall clock and peak memory of one fit of all flights."""
    x, late = flights_design()
    high = np.where(np.arange(x.shape[1]) == x.shape[1] - 1, 5.0, 1.0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.perf_counter()
    model = LogisticRegression(1.0, len(x) ** -1.1, feature_bounds=(0.0, high), classes=[0.0, 1.0]).fit(
        x, late
    )
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    more = (after.ru_maxrss - before.ru_maxrss) * 1024 / (x.nbytes + late.nbytes)
    auc = roc_auc_score(late, model.decision_function(x))
    print(f"{len(x):,} flights: {spent:.2f} s of processor time, {wall:.2f} s, AUC {auc:.4f};")
    print(f"peak memory above what there was: {more:.2f} times the data")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--flights", type=int, default=20_000, help="how many of them are a data set")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with diffprivlib")
    parser.add_argument("--no-opacus", action="store_true")
    parser.add_argument("--fit", action="store_true", help="time one fit of all flights")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.fit:
        fit_flights()
        return
    peer = Peer(options.peer) if options.peer else None
    record = []
    for data in data_sets(options.flights):
        for cell in cells(data, options.splits, peer, not options.no_opacus):
            record.append(cell)
            if options.json:
                options.json.write_text(json.dumps(record), encoding="utf-8")
            line = " | ".join(f"{arm} {shown(scores)}" for arm, scores in cell["scores"].items())
            print(f"{data.name} | {cell['epsilon']:g} | {line}", flush=True)


if __name__ == "__main__":
    main()

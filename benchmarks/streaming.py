"""Streaming: error against t with and without horizon, against a binary tree, and releases per second.

python benchmarks/streaming.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import numpy as np

import anechoic as an
from anechoic import streaming

TIMES = (1, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
EXACT = 2**20  # coefficients of the log-perturbed root that are computed; beyond, their asymptotics


#: What --json writes.
FOUND: dict[str, float] = {}


def finite_loss(n: int) -> float:
    """Max loss of the best BLT planned for n steps: what knowing the horizon is worth."""
    return float(an.optimize.blt(an.workloads.prefix_sum(n), buffers=6 if n > 64 else 3, loss="max").loss)


def horizon_free(accurate_to: int, buffers: int) -> list[float]:
    strategy = an.endless.rational(buffers, accurate_to=accurate_to)
    return [strategy.limiting_norm * an.error(an.workloads.prefix_sum(t), strategy.at(t)).last for t in TIMES]


def doubling() -> list[float]:
    """Restarts at 1, 2, 4, …: one participation touches one block, and errors of finished blocks add up."""
    found = []
    for t in TIMES:
        squares = 0.0
        for k in range((t + 1).bit_length()):
            steps = 2**k
            if steps > t:
                break
            best = an.optimize.blt(an.workloads.prefix_sum(steps), buffers=5, loss="max")
            done = min(steps, t - steps + 1)
            error = an.error(an.workloads.prefix_sum(done), best.strategy.truncate(done)).last
            squares += (best.strategy.largest_column_norm() * error) ** 2
        found.append(math.sqrt(squares))
    return found


def log_perturbed(alpha: float) -> list[float]:
    """C = (1 - x)^(-1/2) (log(1/(1 - x)) / x)^(-1/2 - alpha), square-summable, and B = 1 / ((1 - x) C)."""
    points = 4 * EXACT
    radius = math.exp(-24 / points)
    x = radius * np.exp(2j * np.pi * np.arange(points) / points)
    logs = -np.log1p(-x) / x

    def coefficients(power: float) -> np.ndarray:
        values = (1 - x) ** -0.5 * logs**power
        return (np.fft.fft(values).real / points)[:EXACT] / radius ** np.arange(EXACT)

    c, b = coefficients(-0.5 - alpha), coefficients(0.5 + alpha)
    log_n = math.log(EXACT)
    # beyond: c_s^2 ~ (log s)^(-1 - 2 alpha) / (pi s), its sum from EXACT on
    norm = math.sqrt(float(c @ c) + log_n ** (-2 * alpha) / (2 * alpha * math.pi))
    squares = np.cumsum(np.square(b))
    scale = b[-1] ** 2 * math.pi * EXACT / log_n ** (1 + 2 * alpha)
    found = []
    for t in TIMES:
        if t <= EXACT:
            found.append(norm * math.sqrt(squares[t - 1]))
            continue
        rest = (math.log(t) ** (2 + 2 * alpha) - log_n ** (2 + 2 * alpha)) / (2 + 2 * alpha) / math.pi
        found.append(norm * math.sqrt(squares[-1] + scale * rest))
    return found


def print_horizons() -> None:
    print("Error of a running sum at step t, times the sensitivity (rho-zCDP: divide by sqrt(2 rho)).\n")
    rows = {
        "horizon t known": [finite_loss(t) for t in TIMES],
        "horizon-free, 1e6 (default)": horizon_free(10**6, 10),
        "horizon-free, 1e9": horizon_free(10**9, 15),
        "doubling restarts": doubling(),
        "log-perturbed, alpha 0.1": log_perturbed(0.1),
        "log-perturbed, alpha 0.3": log_perturbed(0.3),
        "log-perturbed, alpha 0.5": log_perturbed(0.5),
    }
    print("| |" + "|".join(f"{t:g}" for t in TIMES) + "|")
    print("|---|" + "---|" * len(TIMES))
    for name, values in rows.items():
        print(f"| {name} |" + "|".join(f"{v:.3g}" for v in values) + "|")


def print_tree() -> None:
    """Max error beside a binary tree whose prefix sums add up its nodes, as in most libraries."""
    print("\n| n | binary tree | Honaker | planned | ratio to the binary tree | to Honaker |")
    print("|---|---|---|---|---|---|")
    for n in (8760, 10**6):
        levels = n.bit_length()  # a record is in one node a level, a prefix the sum of at most as many
        binary = math.sqrt(levels) * math.sqrt(max(t.bit_count() for t in range(1, n + 1)))
        tree = an.strategies.Tree(n)
        honaker = an.loss(an.workloads.prefix_sum(n), tree, an.participation.Single(), "max")
        ours = finite_loss(n)
        ratios = f"{binary / ours:.2f} | {honaker / ours:.2f}"
        print(f"| {n:,} | {binary:.2f} | {honaker:.2f} | {ours:.2f} | {ratios} |")
        FOUND[f"error of a binary tree over ours, n={n}"] = binary / ours


def seconds_of(count: int, make: object, batch: object, group: int) -> float:
    stream = make()  # type: ignore[operator]
    began = time.perf_counter()
    for _ in range(0, count, group):
        stream.steps([batch] * group)
    return (time.perf_counter() - began) / count


def print_speed(quick: bool) -> None:
    scale = 1 if quick else 10
    print("\n| releases | seconds each | a second |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "count, in memory": (1000 * scale, lambda: streaming.Count(epsilon=1.0, horizon=10**6), 3, 500),
            "count, state file, groups of 500": (
                500 * scale,
                lambda: streaming.Count(epsilon=1.0, horizon=10**6, state=Path(folder) / "a"),
                3,
                500,
            ),
            "count, state file, one by one": (
                100 * scale,
                lambda: streaming.Count(epsilon=1.0, horizon=10**6, state=Path(folder) / "b"),
                3,
                1,
            ),
            "histogram of 1e5 categories, in memory": (
                5 * scale,
                lambda: streaming.Histogram(range(10**5), epsilon=1.0, horizon=10**4),
                np.arange(1000),
                5,
            ),
        }
        for name, (count, make, batch, group) in cases.items():
            each = seconds_of(count, make, batch, group)
            print(f"| {name} | {each:.2e} | {1 / each:,.0f} |")
            FOUND[f"seconds of a release: {name}"] = each


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    print_horizons()
    print_tree()
    print_speed(options.quick)
    if options.json:
        options.json.write_text(json.dumps(FOUND, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""How far each class of strategies goes, and what its noise costs: python benchmarks/reach.py [--plot FILE]

Two tables, the measured counterparts of the monograph's Tables 4.1 (optimisation) and 2.1 (noise generation).
Every optimisation runs in a process of its own, so that its peak memory is its own: the resident peak less
what the imports take.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from anechoic import optimize, strategies, workloads
from anechoic.noise import NoiseStream
from anechoic.optimize.result import Optimized
from anechoic.participation import MinSep

SIZES: dict[str, list[int]] = {
    "banded_toeplitz, 64 bands": [10**3, 10**4, 10**5, 10**6, 10**7],
    "blt, k = 10": [10**3, 10**5, 10**7, 10**9],
    "blt, k = 1": [10**3, 10**6, 10**9],
    "banded_inverse, 16 bands": [10**3, 10**4, 10**5, 10**6],
    "toeplitz": [10**3, 10**4, 10**5],
    "banded, 32 bands": [10**3, 10**4, 10**5],
    "dense": [256, 512, 1024, 2048, 4096],
}
SLOW = {("banded, 32 bands", 10**5), ("dense", 4096), ("banded_toeplitz, 64 bands", 10**7)}


def optimise(name: str, n: int) -> Optimized:
    a = workloads.prefix_sum(n)
    match name.split(",")[0]:
        case "banded_toeplitz":
            return optimize.banded_toeplitz(a, bands=64)
        case "blt" if name.endswith("10"):
            return optimize.blt(a, participation=MinSep(n // 10, 10), loss="max")
        case "blt":
            return optimize.blt(a, loss="max")
        case "banded_inverse":
            return optimize.banded_inverse(a, bands=16)
        case "toeplitz":
            return optimize.toeplitz(a, loss="rms")
        case "banded":
            return optimize.banded(a, bands=32)
        case _:
            return optimize.dense(a, gap=1e-4)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(name: str, n: int) -> dict[str, Any]:
    """Run by a process of its own."""
    optimise(name, min(n, 64))  # imports and caches
    before, started = peak_mib(), time.perf_counter()
    found = optimise(name, n)
    seconds = time.perf_counter() - started
    return {
        "class": name,
        "n": n,
        "loss": found.loss,
        "lower_bound": found.lower_bound,
        "gap": found.gap,
        "evaluations": found.evaluations,
        "seconds": seconds,
        "mib": peak_mib() - before,
    }


def optimisation(quick: bool) -> list[dict[str, Any]]:
    print(
        f"{'class':<26}{'n':>12}{'loss':>14}{'lower bound':>14}{'gap':>9}{'evaluations':>13}"
        f"{'s':>10}{'MiB':>9}"
    )
    records = []
    for name, sizes in SIZES.items():
        for n in sizes:
            if quick and (name, n) in SLOW:
                continue
            command = [sys.executable, __file__, "--one", name, str(n)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            record = json.loads(done.stdout)
            bound = "" if record["lower_bound"] is None else f"{record['lower_bound']:.6f}"
            gap = "" if record["gap"] is None else f"{record['gap']:.1e}"
            print(
                f"{name:<26}{n:>12}{record['loss']:>14.6f}{bound:>14}{gap:>9}{record['evaluations']:>13}"
                f"{record['seconds']:>10.3f}{record['mib']:>9.0f}",
                flush=True,
            )
            records.append(record)
    return records


def noise(n: int, dimension: int) -> list[dict[str, Any]]:
    """Seconds of the last of n steps, and rows of memory, for each class."""
    a = workloads.prefix_sum(n)
    classes = {
        "input perturbation": strategies.Identity(n),
        "output perturbation": strategies.Output(a),
        "dense": optimize.dense(a).strategy,
        "Toeplitz": strategies.Toeplitz.square_root(a),
        "banded Toeplitz, 32 bands": optimize.banded_toeplitz(a, bands=32).strategy,
        "banded inverse, 16 bands": optimize.banded_inverse(a, bands=16).strategy,
        "BLT, 4 buffers": optimize.blt(a, buffers=4).strategy,
        "tree, streaming": strategies.Tree(n),
        "tree, full": strategies.FullTree(n),
    }
    print(f"\nnoise, n = {n}, dimension {dimension:,}, float32: mean of the last 64 steps")
    print(f"{'class':<28}{'ms a step':>11}{'rows kept':>11}")
    records = []
    for name, strategy in classes.items():
        stream = NoiseStream(strategy, dimension, key=bytes(32))
        state, out = stream.init(), np.empty(dimension, dtype=np.float32)
        for t in range(n):
            if t == n - 64:
                started = time.perf_counter()
            _, state = stream.next(state, out=out)
        seconds = (time.perf_counter() - started) / 64
        rows = stream.memory_bytes // (4 * dimension)
        print(f"{name:<28}{1e3 * seconds:>11.3f}{rows:>11}", flush=True)
        records.append({"class": name, "seconds": seconds, "rows": rows})
    return records


def plot(records: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for name in dict.fromkeys(record["class"] for record in records):
        mine = [record for record in records if record["class"] == name]
        axes.loglog([r["n"] for r in mine], [r["seconds"] for r in mine], "o-", ms=4, lw=1.2, label=name)
    axes.set(xlabel="steps n", ylabel="seconds", title="Time to optimise a strategy")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw seconds against n")
    parser.add_argument("--quick", action="store_true", help="leave out the rows that take minutes")
    parser.add_argument("--one", nargs=2, metavar=("CLASS", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]))))
        return
    optimised = optimisation(options.quick)
    made = noise(512, 100_000)
    if options.json:
        options.json.write_text(json.dumps({"optimisation": optimised, "noise": made}, indent=1) + "\n")
    if options.plot:
        plot(optimised, options.plot)


if __name__ == "__main__":
    main()

"""Speed of one noise step, against the least work that it could be: one randn and one matrix-vector product.

    python benchmarks/noise.py [--json PATH] [--dimension 10000000] [--repeats 15]

A banded inverse is also timed without memory, making the fresh rows of earlier steps again ("made again").

The floor draws m normal numbers and multiplies the same (rows, m) buffer by a vector, both into memory that
is there already, with the plain calls of torch or NumPy. The step does that too, keeps its row or updates
its buffers, and returns the row in new memory. Both are timed in turn: a noisy machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anechoic.noise import NoiseStream
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, Strategy, Toeplitz
from anechoic.workloads import prefix_sum

STEPS = 10_000
TARGET = 1.3  # for 64 bands on torch, by the project's own rule


def strategies() -> dict[str, tuple[Strategy, str]]:
    """What is measured, and with what memory: roots, cut or inverted and cut, and a BLT with four buffers."""
    root = Toeplitz.square_root(prefix_sum(64)).coefficients
    found: dict[str, tuple[Strategy, str]] = {
        "64 bands": (BandedToeplitz(STEPS, root), "store"),
        "16 bands": (BandedToeplitz(STEPS, root[:16]), "store"),
        "BLT, 4 buffers": (BLT(STEPS, [0.12, 0.13, 0.15, 0.1], [0.998, 0.95, 0.7, 0.2]), "store"),
    }
    for bands in (4, 16):
        inverse = BandedInverse.square_root(prefix_sum(STEPS), bands)
        found[f"inverse, {bands} bands"] = (inverse, "store")
        found[f"{bands} bands, made again"] = (inverse, "regenerate")
    return found


def floor_of(backend: str, rows: Any, dimension: int) -> Callable[[], None]:
    """One randn and one matrix-vector product over `rows`, in the plain calls of the backend."""
    if backend == "torch":
        import torch

        fresh, product = torch.zeros(dimension), torch.zeros(dimension)
        weights = torch.full((len(rows),), 0.01)

        def floor() -> None:
            fresh.normal_()
            torch.mv(rows.t(), weights, out=product)

        return floor

    source = np.random.Generator(np.random.Philox())
    fresh, product = np.zeros(dimension, np.float32), np.zeros(dimension, np.float32)
    weights = np.full(len(rows), 0.01, np.float32)

    def numpy_floor() -> None:
        source.standard_normal(out=fresh, dtype=np.float32)
        np.dot(weights, rows, out=product)

    return numpy_floor


def measure(
    name: str, strategy: Strategy, memory: str, backend: str, dimension: int, repeats: int
) -> dict[str, Any]:
    """Median seconds of the step and of its floor, measured in turn."""
    stream = NoiseStream(strategy, dimension, backend=backend, key=bytes(32), memory=memory)
    state = stream.init()
    for _ in range(strategy.recurrence().rows + 1):  # until the ring buffer, or the window, is full
        _, state = stream.next(state)
    floor = floor_of(backend, state._memory, dimension)
    floor()
    seconds: dict[str, list[float]] = {"step": [], "floor": []}
    for _ in range(repeats):
        start = time.perf_counter()
        row, state = stream.next(state)
        middle = time.perf_counter()
        floor()
        seconds["floor"].append(time.perf_counter() - middle)
        seconds["step"].append(middle - start)
        del row
    step, least = statistics.median(seconds["step"]), statistics.median(seconds["floor"])
    return {
        "strategy": name,
        "backend": backend,
        "step_seconds": step,
        "floor_seconds": least,
        "ratio": step / least,
        "step_spread": [min(seconds["step"]), max(seconds["step"])],
        "floor_spread": [min(seconds["floor"]), max(seconds["floor"])],
        "memory_bytes": stream.memory_bytes,
    }


def setting(dimension: int, repeats: int) -> dict[str, Any]:
    """Where and with what the figures were measured."""
    import torch

    return {
        "dimension": dimension,
        "dtype": "float32",
        "repeats": repeats,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print a table, write JSON where asked to; returns what the JSON holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dimension", type=int, default=10**7, help="entries of one row, m")
    parser.add_argument("--repeats", type=int, default=15, help="timed steps for each strategy")
    parser.add_argument("--backends", nargs="+", default=["torch", "numpy"], choices=["torch", "numpy"])
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args(arguments)

    about = setting(options.dimension, options.repeats)
    print(
        f"Noise step, m = {options.dimension:,} float32, torch {about['torch']}, NumPy {about['numpy']}, "
        f"{about['torch_threads']} threads; medians of {options.repeats}"
    )
    print(f"{'backend':9}{'strategy':20}{'step':>10}{'floor':>10}{'ratio':>8}{'memory':>11}")
    results = []
    for backend in options.backends:
        for name, (strategy, memory) in strategies().items():
            result = measure(name, strategy, memory, backend, options.dimension, options.repeats)
            results.append(result)
            step, least = result["step_seconds"] * 1e3, result["floor_seconds"] * 1e3
            kept = result["memory_bytes"] / 1e9
            print(
                f"{backend:9}{name:20}{step:7.1f} ms{least:7.1f} ms{result['ratio']:7.2f}x{kept:8.2f} GB",
                flush=True,
            )
    print("floor: one randn and one matrix-vector product over the same buffer, into memory already there")
    figures = {"benchmark": "noise", "target_ratio": TARGET, "setting": about, "results": results}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])

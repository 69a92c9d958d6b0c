"""Speed of fresh rows and of a noise step, against the least work that they could be.

    python benchmarks/noise.py [--json PATH] [--dimension 10000000] [--repeats 16]

A fresh row is compared with `normal_` of torch into float32 memory, which is made by a Mersenne Twister that
one row gives away. A step is compared with a fresh row and one pass over the memory: one matrix-vector
product over the same (rows, m) buffer by torch, into memory that is there already. A banded inverse is also
timed without memory, making the fresh rows of earlier steps again ("made again"); on a grid, where that gives
the same integers, beside the stored one. A step that is rounded to a grid is compared with the same step in
float32, on rows of a tenth of the length.

Where long windows are passed over once in several steps, whole cycles of such steps are timed.

What is compared is timed in turn, in seconds of the processor (all threads together), as a noisy machine
disturbs both; seconds of the clock stand beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anechoic.noise import NoiseStream
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, Identity, Toeplitz
from anechoic.strategies.base import Strategy
from anechoic.workloads import prefix_sum

STEPS = 10_000
TARGETS = {  # by the project's own rule
    "fresh row": 1.6,
    "64 bands": 1.15,
    "16 bands": 1.15,
    "64 bands, on a grid": 2.0,
    "16 bands, on a grid": 2.0,
}
GRID = 2.0**-22
RANDOM = ("AES-256", "ChaCha20")


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


def in_turn(works: dict[str, Callable[[], None]], repeats: int) -> dict[str, dict[str, float]]:
    """Mean and median seconds of each, of the processor and of the clock: steps are not all alike."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            processor, clock = time.process_time(), time.perf_counter()
            work()
            spent = time.process_time() - processor, time.perf_counter() - clock
            seconds[name].append(spent)
    return {
        name: {
            "processor": statistics.fmean(first for first, _ in spent),
            "clock": statistics.fmean(second for _, second in spent),
            "median": statistics.median(first for first, _ in spent),
        }
        for name, spent in seconds.items()
    }


def measure_fresh(backend: str, dimension: int, repeats: int, cipher: str) -> dict[str, Any]:
    """A fresh row beside torch's."""
    stream = NoiseStream(Identity(STEPS), dimension, backend=backend, key=bytes(32), cipher=cipher)
    out, reference = stream.arrays.empty(dimension), torch.zeros(dimension)
    states = [stream.init()]

    def fresh() -> None:
        states.append(stream.next(states.pop(), out=out)[1])

    fresh()
    reference.normal_()
    found = in_turn({"ours": fresh, "torch": lambda: (reference.normal_(), None)[1]}, repeats)
    name = "fresh row" if cipher == RANDOM[0] else f"fresh row, {cipher}"
    return result(name, backend, found["ours"], found["torch"], stream.memory_bytes)


def measure_on_grid(backend: str, dimension: int, repeats: int) -> list[dict[str, Any]]:
    """A banded inverse on a grid that is made again beside the same one stored: time, and peak memory."""
    found: list[dict[str, Any]] = []
    for bands in (2, 4):
        inverse = BandedInverse.square_root(prefix_sum(STEPS), bands)
        works, peaks = {}, {}
        for memory in ("store", "regenerate"):
            tracemalloc.start()
            stream = NoiseStream(inverse, dimension, backend=backend, key=bytes(32), grid=GRID, memory=memory)
            works[memory] = steps_of(stream, bands + 1)
            peaks[memory] = tracemalloc.get_traced_memory()[1] - 8 * dimension  # without the row itself
            tracemalloc.stop()
        times = in_turn(works, repeats)
        line = result(
            f"{bands} bands again, on a grid",
            backend,
            times["regenerate"],
            times["store"],
            peaks["regenerate"],
        )
        found.append(line | {"memory_bytes_stored": peaks["store"]})
    return found


def steps_of(stream: NoiseStream, first: int) -> Callable[[], None]:
    """A function that makes the next row, after the first ones."""
    out, states = stream.arrays.empty(stream.dimension), [stream.init()]

    def step() -> None:
        states.append(stream.next(states.pop(), out=out)[1])

    for _ in range(first):
        step()
    return step


def measure_step(
    name: str, strategy: Strategy, memory: str, backend: str, dimension: int, repeats: int
) -> dict[str, Any]:
    """A step beside a fresh row and one pass over its memory."""
    stream = NoiseStream(strategy, dimension, backend=backend, key=bytes(32), memory=memory)
    plain = NoiseStream(Identity(STEPS), dimension, backend=backend, key=bytes(32))
    out, states, rows = stream.arrays.empty(dimension), [stream.init()], [plain.init()]
    for _ in range(strategy.recurrence().rows + 1):  # until the ring buffer, or the window, is full
        states.append(stream.next(states.pop(), out=out)[1])
    buffer = torch.as_tensor(states[0]._memory)
    weights, product = torch.full((len(buffer),), 0.01), torch.zeros(dimension)

    def step() -> None:
        states.append(stream.next(states.pop(), out=out)[1])

    def row() -> None:
        rows.append(plain.next(rows.pop(), out=out)[1])

    def one_pass() -> None:
        if len(buffer):
            torch.mv(buffer.t(), weights, out=product)

    row(), one_pass()
    found = in_turn({"step": step, "row": row, "pass": one_pass}, whole_cycles(repeats, stream))
    floor = {kind: found["row"][kind] + found["pass"][kind] for kind in found["row"]}
    return result(name, backend, found["step"], floor, stream.memory_bytes)


def measure_rounded(
    name: str, strategy: Strategy, backend: str, dimension: int, repeats: int
) -> dict[str, Any]:
    """A step on a grid beside the same one in float32."""
    streams = [
        NoiseStream(strategy, dimension, backend=backend, key=bytes(32), grid=grid) for grid in (GRID, None)
    ]

    works = {
        name: steps_of(stream, strategy.recurrence().rows + 1)
        for name, stream in zip(("grid", "float"), streams, strict=True)
    }
    found = in_turn(works, whole_cycles(repeats, *streams))
    return result(f"{name}, on a grid", backend, found["grid"], found["float"], streams[0].memory_bytes)


def whole_cycles(repeats: int, *streams: NoiseStream) -> int:
    """`repeats`, or a few more: a multiple of the steps after which each stream does the same work again."""
    cycle = math.lcm(*(max(1, getattr(stream.filter, "ahead", 1)) for stream in streams))
    return -(-repeats // cycle) * cycle


def result(
    name: str, backend: str, ours: dict[str, float], floor: dict[str, float], memory: int
) -> dict[str, Any]:
    """One line of the table."""
    return {
        "what": name,
        "backend": backend,
        "seconds": ours,
        "floor": floor,
        "ratio": ours["processor"] / floor["processor"],
        "ratio_of_medians": ours["median"] / floor["median"],
        "target": TARGETS.get(name),
        "memory_bytes": memory,
    }


def setting(dimension: int, repeats: int) -> dict[str, Any]:
    """Where and with what the figures were measured."""
    return {
        "dimension": dimension,
        "dtype": "float32",
        "repeats": repeats,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def show(line: dict[str, Any]) -> None:
    """Print one line of the table."""
    ours, floor = line["seconds"], line["floor"]
    target = "" if line["target"] is None else f"{line['target']:8.2f}x"
    print(
        f"{line['backend']:7}{line['what']:22}{ours['processor'] * 1e3:8.1f}{floor['processor'] * 1e3:8.1f}"
        f"{line['ratio']:7.2f}x{line['ratio_of_medians']:7.2f}x{target:9}{ours['clock'] * 1e3:9.1f}"
        f"{line['memory_bytes'] / 1e9:8.2f}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print a table, write JSON where asked to; returns what the JSON holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dimension", type=int, default=10**7, help="entries of one row, m")
    parser.add_argument("--repeats", type=int, default=16, help="timed steps for each strategy")
    parser.add_argument("--backends", nargs="+", default=["torch", "numpy"], choices=["torch", "numpy"])
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args(arguments)

    about = setting(options.dimension, options.repeats)
    print(
        f"Noise, m = {options.dimension:,} float32, torch {about['torch']}, NumPy {about['numpy']}, "
        f"{about['threads']} threads; means of {options.repeats}, ms of the processor"
    )
    print(f"{'':7}{'':22}{'ours':>8}{'floor':>8}{'ratio':>8}{'median':>8}{'target':>9}{'clock':>9}{'GB':>8}")
    results = []
    for backend in options.backends:
        for cipher in RANDOM:
            results.append(measure_fresh(backend, options.dimension, options.repeats, cipher))
            show(results[-1])
        for name, (strategy, memory) in strategies().items():
            results.append(measure_step(name, strategy, memory, backend, options.dimension, options.repeats))
            show(results[-1])
        for name in ("64 bands", "16 bands", "BLT, 4 buffers"):
            results.append(
                measure_rounded(
                    name, strategies()[name][0], backend, options.dimension // 10, options.repeats
                )
            )
            show(results[-1])
        for line in measure_on_grid(backend, options.dimension // 10, options.repeats):
            results.append(line)
            show(line)
    print(
        "floor: torch's normal_ for a fresh row; a fresh row and one pass over the memory for a step;\n"
        "the step in float32 for one on a grid; the stored one for one that is made again on a grid,\n"
        "whose GB are the most that was allocated besides the row"
    )
    figures = {"benchmark": "noise", "targets": TARGETS, "setting": about, "results": results}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])

"""What privacy costs a model, by arm, at each arm's best learning rate: python benchmarks/grid.py --out FILE

    python benchmarks/grid.py --out benchmarks/records/grid.jsonl            # resumable: hours of one core
    python benchmarks/grid.py --out … --seeds 5 digits mlp                   # more seeds for two tasks
    python benchmarks/grid.py --out … --tables > benchmarks/records/grid.md  # of what is there, no training
    python benchmarks/grid.py --quick                                        # one cell, a minute
    python benchmarks/grid.py --claim 300                                    # predictions only, minutes

Cells, in the order of `cells`: a task of `adaptive/tasks.py`, epsilon, batches in a fixed order or drawn, an
optimizer and a schedule. Arms: DP-SGD (Poisson sampling; in a fixed order it is what these batches would have
if they might be drawn in secret), the best of it and of banded noise under cyclic Poisson sampling,
independent noise in the same scheme (drawn: random allocation), the plan, no noise, the plan that reads the
best rate of independent noise from the optimizer, trained at it alone, and the plan by
`make_private_with_epsilon` at the rate of its advice. The others have six learning rates, two apart, and more
until none has its best one at an end. That the best is chosen on test examples flatters all arms alike.
Metric: accuracy of the last iterate, or the area under the ROC curve.

Noise is drawn by NumPy but in the engine: this is a study of utility, not a release.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
from adaptive.cells import Arm, Cell, Order, Results
from adaptive.claim import claim
from adaptive.table import compared, settings, tables
from adaptive.tasks import TASKS

ORDERS: tuple[Order, ...] = ("fixed", "drawn")
EPSILONS = (1.0, 3.0, 0.3, 8.0)
MOMENTUM, ADAM = ("momentum", "cooldown"), ("Adam", "constant")
LATER = tuple(product(("SGD", "momentum", "Adam", "AdamW"), ("cooldown", "constant")))
ARMS: tuple[Arm, ...] = ("DP-SGD", "independent", "default", "no noise")
QUICK = [Cell("digits", 3.0, "fixed", *ADAM, arm) for arm in (*ARMS, "engine")]


def group(
    task: str, epsilon: float, optimizer: str, schedule: str, *, engine: bool = False
) -> Iterator[Cell]:
    orders = ORDERS if task != "flights" else ORDERS[:1]
    for arm, order in product(ARMS, orders):
        if order == "fixed" or arm in ("independent", "default"):  # the others have one order
            yield Cell(task, epsilon, order, optimizer, schedule, arm)
    if len(orders) > 1:
        yield Cell(task, epsilon, "drawn", optimizer, schedule, "banded")
    if engine:
        yield Cell(task, epsilon, "fixed", optimizer, schedule, "engine")


def cells(results: Results) -> Iterator[Cell]:
    """The most telling ones first."""
    yield from at_rates(results)  # of runs before this one
    for epsilon in (2.0, 3.0, 8.0, 0.5, 1.0):
        yield from group("mlp", epsilon, *MOMENTUM, engine=epsilon == 2.0)
    for task, epsilon in product(("digits", "mlp"), (3.0, 2.0)):
        yield from group(task, epsilon, *ADAM, engine=True)
    for epsilon in (0.3, 1.0, 0.1, 3.0):
        yield from group("flights", epsilon, *MOMENTUM)
    yield from slopes(results)
    yield from clips()
    small = ("digits", "table", "softmax")
    for task, epsilon, way in product(small, EPSILONS, (MOMENTUM, ADAM)):
        yield from group(task, epsilon, *way)
    for epsilon, task, way in product((3.0, 1.0), ("lora", "transformer", "cnn"), (MOMENTUM, ADAM)):
        yield from group(task, epsilon, *way)
    for epsilon, task, way in product((3.0, 8.0), (*small, "mlp", "lora", "cnn", "transformer"), LATER):
        yield from group(task, epsilon, *way)
    yield from at_rates(results)


def at_rates(results: Results) -> Iterator[Cell]:
    """Plans at the best rate of independent noise: first where noise planned for sums is below it there."""
    found = []
    for one, order in product(settings(results), ORDERS):
        alone = replace(one, order=order, arm="independent")
        if results.of(alone) and results.of(plan := replace(alone, arm="default")):
            cell = results.at_rate(alone)
            below = cell.rate in results.of(plan) and compared(results, plan, alone, cell.rate)[1] < 0
            found.append((not below, cell.task in ("cnn", "lora", "transformer"), cell))
    yield from (cell for *_, cell in sorted(found, key=lambda one: one[:2]))


def slopes(results: Results) -> Iterator[Cell]:
    """The same mechanisms with more and less noise, and clipping to a norm that nothing reaches.

    And independent noise, made so small that its predicted error is that of the plan.
    """
    for task, epsilon in (("mlp", 2.0), ("digits", 3.0)):
        for order, scale in product(ORDERS, (1.0, 0.5, 0.7, 1.4)):
            yield Cell(task, epsilon, order, *MOMENTUM, "default", scale=scale)
        for order in ORDERS:
            cell = Cell(task, epsilon, order, *MOMENTUM, "independent")
            yield cell
            if results.of(cell) and results.of(plan := replace(cell, arm="default")):
                yield replace(cell, scale=round(results.predicted(plan) / results.predicted(cell), 3))
        for scale in (1.0, 0.5, 0.7, 1.4):
            yield Cell(task, epsilon, "drawn", *MOMENTUM, "DP-SGD", scale=scale)
        yield Cell(task, epsilon, "fixed", *MOMENTUM, "no noise", clip=1e6)


def clips() -> Iterator[Cell]:
    settings = (("digits", 1.0), ("digits", 8.0), ("mlp", 1.0), ("table", 1.0), ("softmax", 1.0))
    for (task, epsilon), power in product(settings, (0, -4, -2, 2, 4)):
        yield Cell(task, epsilon, "drawn", *MOMENTUM, "default", clip=2.0**power)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, default=Path("data/fashion-mnist"))
    parser.add_argument("--out", type=Path, help="a file in a temporary folder if not given")
    parser.add_argument("--minutes", type=float, default=480.0, help="in all; the rest is for the next run")
    parser.add_argument("--cell-minutes", type=float, default=10.0, help="for each arm of a cell")
    parser.add_argument("--quick", action="store_true", help="one cell of all arms")
    parser.add_argument("--tables", action="store_true", help="of what is in --out, without training")
    parser.add_argument("--claim", type=int, metavar="SETTINGS", help="banded, amplified, beside DP-SGD")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"task {sorted(unknown)[0]!r} is unknown: choose from {', '.join(TASKS)}.")
    if options.claim:
        print(claim(options.claim))
        return 0
    results = Results(options.out or Path(tempfile.mkdtemp()) / "grid.jsonl", options.data_dir)
    began = time.monotonic()
    for cell in [] if options.tables else QUICK if options.quick else cells(results):
        at = time.monotonic()
        if cell.task in options.tasks and at < (end := began + 60.0 * options.minutes):
            results.until = min(end, at + 60.0 * options.cell_minutes)
            try:
                results.complete(cell, options.seeds, alike(results, cell))
            except TimeoutError as left:
                print(f"{cell}: {left}", file=sys.stderr)
            print(f"{cell}: {time.monotonic() - at:.0f} s", file=sys.stderr, flush=True)
    print(tables(results))
    return 0


def alike(results: Results, cell: Cell) -> list[float]:
    """The best rate of independent noise in the same scheme, or that of clip norm 1."""
    if cell.arm != "default":
        return []
    other = replace(cell, clip=1.0) if cell.clip != 1.0 else replace(cell, arm="independent", scale=1.0)
    return [results.best(other)] if results.of(other) else []


if __name__ == "__main__":
    sys.exit(main())

"""Which way to the norms of a layer's rows is the cheapest, beside the rule that the code follows.

    python benchmarks/ghost_ways.py [--shapes 768x8 8x2304 …] [--tokens 32 128 …] [--rows 4 16] [--json F]

Norms and sum of one linear layer under ghost clipping, by all three ways of
`anechoic.torch.sources.ghost.factored_gradients` and the rule of earlier versions (entries in float64, from
T (I + O) >= 2 I O on). Ways take turns; milliseconds of processor time, medians over rounds. *Rule* is the
way that the code takes, *over best* what it costs in units of the best one, *over before* in units of the
earlier rule. What memory has no room for is not kept: then *entries* or *products* are taken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.sources.ghost.factored_gradients import (
    CachedGradients,
    MemoryAllowance,
    NormStrategy,
    OuterProducts,
    RowGradients,
    Sizes,
    cheapest,
)

#: Inputs by outputs: both matrices of adapters of rank 8, and full layers of GPT-2's and smaller.
SHAPES = ("768x8", "8x768", "8x2304", "256x8", "256x256", "256x1024", "768x768", "768x2304")
#: Products of matrices above which a cell is left out: it takes too long.
MOST = 4e10
BEFORE = "before"


def before(positions: int, inputs: int, outputs: int) -> NormStrategy:
    """What earlier versions took."""
    small = positions * (inputs + outputs) >= 2 * inputs * outputs
    return NormStrategy.ENTRIES if small else NormStrategy.PRODUCTS


def made(x: Tensor, a: Tensor, way: NormStrategy, *, room: bool) -> RowGradients:
    """The rows' gradients by one way; with `room`, what is made in float64 may be kept."""
    sizes = Sizes(*x.shape, a.shape[2])

    def restore(total: Tensor) -> Tensor:
        return total[0]

    def left(part: slice) -> tuple[Tensor, Tensor]:
        return x[part], a[part]

    def wide(part: slice) -> tuple[Tensor, Tensor]:
        return x[part].double().unsqueeze(0), a[part].double().unsqueeze(0)

    if way is NormStrategy.KEPT:
        return CachedGradients(left, sizes, restore, lambda: NotImplemented)
    return OuterProducts(wide, sizes, restore, MemoryAllowance() if room else MemoryAllowance(0), way)


def cell(inputs: int, outputs: int, positions: int, rows: int, rounds: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    x, a = (torch.randn(rows, positions, size, generator=draw) for size in (inputs, outputs))
    factors = torch.rand(rows, dtype=torch.float64, generator=draw)
    arms: dict[str, Callable[[], RowGradients]] = {
        way.value: lambda way=way: made(x, a, way, room=False) for way in NormStrategy
    }
    arms[BEFORE] = lambda: made(x, a, before(positions, inputs, outputs), room=True)
    found: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        for name in list(arms)[:: -1 if turn % 2 else 1]:
            begun = time.process_time()
            part = arms[name]()
            part.squared_norms()
            part.weighted_sum(factors)
            found[name].append(1e3 * (time.process_time() - begun))
    middle = {name: statistics.median(times[1:]) for name, times in found.items()}
    rule = cheapest(positions, inputs, outputs)
    return {
        "shape": f"{inputs}x{outputs}",
        "tokens": positions,
        "rows": rows,
        "ms": middle,
        "rule": rule.value,
        "over best": middle[rule.value] / min(middle[way.value] for way in NormStrategy),
        "over before": middle[rule.value] / middle[BEFORE],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--tokens", nargs="+", type=int, default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--rows", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| inputs x outputs | tokens | rows | products | entries | kept | before | rule | over best |"
        " over before |"
    )
    print("|---" * 10 + "|", flush=True)
    records = []
    for shape, positions, rows in itertools.product(options.shapes, options.tokens, options.rows):
        inputs, outputs = map(int, shape.split("x"))
        if rows * positions * max(inputs * outputs, positions * (inputs + outputs)) > MOST:
            continue
        record = cell(inputs, outputs, positions, rows, options.rounds)
        times = " | ".join(
            f"{record['ms'][name]:.1f}" for name in (*(way.value for way in NormStrategy), BEFORE)
        )
        print(
            f"| {shape} | {positions} | {rows} | {times} | {record['rule']} | {record['over best']:.2f} |"
            f" {record['over before']:.2f} |",
            flush=True,
        )
        records.append(record)
    if options.json:
        options.json.write_text(json.dumps(records))


if __name__ == "__main__":
    main()

"""The published tables, computed again and beside what is printed: python benchmarks/tables.py [--up-to N]

    make tables                              # everything up to n = 4096, written to docs/papers.md
    python benchmarks/tables.py --up-to 8192 --out docs/papers.md --json tables.json

Every number is the loss of a strategy that this library returned, by `anechoic.loss`, with the lower bound of
its optimiser where there is one. A cell differs where the printed one is not reproduced to its last digit.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from anechoic import optimize, workloads
from anechoic.optimize.result import Optimized
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.participation.base import Participation
from anechoic.strategies import (
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    FullTree,
    Identity,
    Output,
    Toeplitz,
    Tree,
)
from anechoic.strategies.base import Strategy

sys.path.insert(0, str(Path(__file__).parent))
from monograph import published

from anechoic.losses.dispatch import loss

SINGLE = Single()


@dataclass(frozen=True)
class Cell:
    """One number: ours, the printed one, a certified lower bound of the best possible, and its cost."""

    table: str
    row: str
    column: str
    value: float
    printed: float | None
    digits: int
    lower_bound: float | None = None
    seconds: float = 0.0
    slack: float = 0.0  # relative, where the setting itself is known to some digits only

    @property
    def agrees(self) -> bool:
        """Whether ours rounds to the printed digits."""
        if self.printed is None:
            return True
        return abs(self.value - self.printed) <= 0.5001 * 10**-self.digits + self.slack * self.value

    @property
    def impossible(self) -> bool:
        """Whether the printed value lies below what any factorisation can reach."""
        bound = self.lower_bound
        return (
            self.printed is not None and bound is not None and self.printed + 0.5 * 10**-self.digits < bound
        )

    def text(self) -> str:
        shown = f"{self.value:.{self.digits}f}"
        if self.printed is None:
            return f"**{shown}**"
        if self.agrees:
            return shown
        mark = " ✗" if self.impossible else ""
        return f"{shown} ({self.printed:.{self.digits}f}{mark})"


def loss_of(strategy: Strategy, kind: str, schema: Participation = SINGLE) -> float:
    return loss(workloads.prefix_sum(strategy.n), strategy, schema, kind)


def streaming(kind: str, n: int) -> Iterable[tuple[str, Callable[[], float | Optimized]]]:
    """The columns of Table 2.2 (max) or 2.3 (rms), cheapest first."""
    a = workloads.prefix_sum(n)
    yield "Identity", lambda: loss_of(Identity(n), kind)
    yield "Workload", lambda: loss_of(Output(a), kind)
    yield "Streaming H2", lambda: loss_of(Tree(n), kind)
    yield "Full H2", lambda: loss_of(FullTree(n), kind)
    buffers = published.BUFFERS_MAX[n] if kind == "max" else None
    yield "BLT", lambda: optimize.blt(a, buffers=buffers, loss=kind)
    yield "BLT, ours", lambda: optimize.blt(a, loss=kind)
    yield "Toeplitz", lambda: optimize.toeplitz(a, loss=kind)
    # Table 2.3 normalises the RMS-optimal Toeplitz strategy, Table 2.2 the square root
    yield (
        "Col-Norm Toep",
        lambda: loss_of(
            ColumnNormalized(
                Toeplitz.square_root(a) if kind == "max" else optimize.toeplitz(a, loss=kind).strategy
            ),
            kind,
        ),
    )
    yield "normalised root", lambda: loss_of(ColumnNormalized(Toeplitz.square_root(a)), kind)
    yield "Dense", lambda: optimize.dense(a, loss=kind)


def streaming_table(name: str, kind: str, rows: published.Cells, up_to: int) -> list[Cell]:
    cells = []
    for n, printed in rows.items():
        if n > up_to:
            continue
        known = dict(zip(published.MAX_COLUMNS, printed, strict=True))
        for column, compute in streaming(kind, n):
            digits = 3
            started = time.perf_counter()
            found = compute()
            seconds = time.perf_counter() - started
            value = found.loss if isinstance(found, Optimized) else found
            bound = found.lower_bound if isinstance(found, Optimized) and column == "Dense" else None
            cells.append(Cell(name, str(n), column, value, known.get(column), digits, bound, seconds))
            report(cells[-1])
    return cells


# Rows of the federated table whose strategy is optimised for the loss of the column; the others have one.
BY_LOSS = ("banded Toeplitz, 342 bands", "BLT", "banded inverse p = 16")


def federated_table() -> list[Cell]:
    """The table of arXiv 2408.08868: n = 2052, b = 342, k = 6, by RMS and max loss."""
    n, b, k = 2052, 342, 6
    a, schema = workloads.prefix_sum(n), MinSep(b, k)
    makers: dict[str, Callable[[str], Strategy]] = {
        "independent noise": lambda kind: Identity(n),
        "tree (full Honaker)": lambda kind: FullTree(n),
        "BSR, 342 bands": lambda kind: BandedToeplitz.square_root(a, b),
        "BISR, 342 bands": lambda kind: BandedInverse.square_root(a, b),
        "one parameter": lambda kind: BandedInverse.one_parameter(n, 0.97),
        "BIFR p = 4, gamma = .92": lambda kind: BandedInverse.fractional(a, 0.92, 4),
        "BIFR p = 16, gamma = .74": lambda kind: BandedInverse.fractional(a, 0.74, 16),
        "BandMF, 342 bands": lambda kind: optimize.banded(a, bands=b, participation=schema).strategy,
        "banded Toeplitz, 342 bands": lambda kind: (
            optimize.banded_toeplitz(a, bands=b, participation=schema, loss=kind).strategy
        ),
        "BLT": lambda kind: optimize.blt(a, participation=schema, loss=kind).strategy,
        "banded inverse p = 16": lambda kind: (
            optimize.banded_inverse(a, bands=16, participation=schema, loss=kind).strategy
        ),
        "dense, cyclic": lambda kind: optimize.dense(a, participation=Cyclic(b)).strategy,
    }
    cells = []
    for row, make in makers.items():
        for place, kind in enumerate(("rms", "max")):
            started = time.perf_counter()
            if kind == "rms" or row in BY_LOSS:
                strategy = make(kind)
            value = loss_of(strategy, kind, Cyclic(b) if row == "dense, cyclic" else schema)
            printed = published.FEDERATED.get(row, (None, None))[place]
            seconds = time.perf_counter() - started
            cells.append(Cell("n = 2052, b = 342, k = 6", row, kind, value, printed, 2, None, seconds))
            report(cells[-1])
    return cells


def multi_epoch_table() -> list[Cell]:
    """The table of arXiv 2601.22334: n = 3900, b = 390, k = 10, RMS loss times sigma."""
    n, b, k = 3900, 390, 10
    a, schema = workloads.prefix_sum(n), MinSep(b, k)
    makers: dict[str, Callable[[], Strategy]] = {"independent noise": lambda: Identity(n)}
    for decay in (0.975, 0.95, 0.9):
        makers[f"lambda = {decay}"] = lambda decay=decay: BandedInverse.one_parameter(n, decay)
    for p in (2, 4, 16, 64, 390):
        makers[f"BISR p = {p}"] = lambda p=p: BandedInverse.square_root(a, p)
    for p in (2, 4, 16, 64, 390):
        makers[f"BSR p = {p}"] = lambda p=p: BandedToeplitz.square_root(a, p)
    makers["BandMF, 390 bands"] = lambda: optimize.banded(a, bands=b, participation=schema).strategy
    makers["BLT"] = lambda: optimize.blt(a, participation=schema, loss="rms").strategy
    for p in (2, 4, 16, 390):
        makers[f"banded inverse p = {p}"] = lambda p=p: (
            optimize.banded_inverse(a, bands=p, participation=schema).strategy
        )
    cells = []
    for row, make in makers.items():
        started = time.perf_counter()
        value = loss_of(make(), "rms", schema) * published.MULTI_EPOCH_SIGMA
        seconds = time.perf_counter() - started
        name = "n = 3900, b = 390, k = 10, sigma = 0.6003"
        cells.append(Cell(name, row, "RMS × σ", value, published.MULTI_EPOCH[row], 2, None, seconds, 2e-4))
        report(cells[-1])
    return cells


def report(cell: Cell) -> None:
    bound = "" if cell.lower_bound is None else f"  certified >= {cell.lower_bound:.6f}"
    print(
        f"{cell.table:<10.10} {cell.row:<28} {cell.column:<16} {cell.value:>12.6f}"
        f" {'' if cell.printed is None else cell.printed:>9} {cell.seconds:>8.2f} s"
        f"{'' if cell.agrees else '  differs'}{bound}",
        flush=True,
    )


def markdown(cells: list[Cell]) -> str:
    """The tables as Markdown: ours, and in brackets what is printed where it differs."""
    parts = []
    for name in dict.fromkeys(cell.table for cell in cells):
        mine = [cell for cell in cells if cell.table == name]
        columns = list(dict.fromkeys(cell.column for cell in mine))
        rows = list(dict.fromkeys(cell.row for cell in mine))
        by_place = {(cell.row, cell.column): cell for cell in mine}
        bounds = any(cell.lower_bound is not None for cell in mine)
        parts += [f"### {name}", ""]
        first = "n" if bounds else "strategy"
        parts.append("| " + " | ".join([first, *columns, *(["certified ≥"] if bounds else [])]) + " |")
        parts.append("|" + "---|" * (len(columns) + 1 + bounds))
        for row in rows:
            line = [by_place[row, column].text() if (row, column) in by_place else "" for column in columns]
            if bounds:
                best = [by_place[row, column].lower_bound for column in columns if (row, column) in by_place]
                known = [bound for bound in best if bound is not None]
                line.append(f"{np.floor(max(known) * 1e6) / 1e6:.6f}" if known else "")
            parts.append("| " + " | ".join([row, *line]) + " |")
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--up-to", type=int, default=4096, metavar="N", help="largest n (default: 4096)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="replace the tables between its markers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every cell to FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="tables whose name contains TEXT")
    options = parser.parse_args()
    makers: dict[str, Callable[[], list[Cell]]] = {
        "Table 2.2, max loss": lambda: streaming_table(
            "Table 2.2, max loss", "max", published.TABLE_2_2, options.up_to
        ),
        "Table 2.3, RMS loss": lambda: streaming_table(
            "Table 2.3, RMS loss", "rms", published.TABLE_2_3, options.up_to
        ),
        "federated": federated_table,
        "multi-epoch": multi_epoch_table,
    }
    cells = [cell for name, make in makers.items() if options.only in name for cell in make()]
    text = markdown(cells)
    print("\n" + text)
    if options.out:
        start, end = "<!-- tables -->", "<!-- /tables -->"
        page = options.out.read_text(encoding="utf-8")
        if start not in page or end not in page:
            parser.error(f"{options.out} has no {start} … {end}: the tables are written between these marks")
        head, tail = page.split(start)[0], page.split(end)[1]
        options.out.write_text(f"{head}{start}\n\n{text}\n{end}{tail}", encoding="utf-8")
    if options.json:
        record = {
            "machine": f"{platform.machine()}, python {platform.python_version()}, numpy {np.__version__}",
            "cells": [asdict(cell) for cell in cells],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""plan() against a search over every number of bands, in 60 settings: python benchmarks/choosing.py

    python benchmarks/choosing.py --ratios 117 --epochs 1 10 --out docs/measured.md  # between its marks
    python benchmarks/choosing.py --ratios 20 --epochs 1 10  # a part of the grid

A cell is a setting (N, B, epochs, epsilon). The search computes loss * sigma for the best column-normalised
banded Toeplitz strategy of every b = 1, 2, … N / B bands under cyclic Poisson sampling with b groups. Its
sigma is the estimate of `accounting.poisson_search`, which is held against the pessimistic privacy loss
distribution at some b; the largest difference is printed. plan() is called as a user calls it.
Exit status 1 if a choice is more than 1 % worse than the search, or not better than amplified independent
noise where the search found something better.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from anechoic import plan
from anechoic.accounting import poisson_noise_multiplier
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.planning.designs import Designs
from anechoic.planning.families import family
from anechoic.planning.objective import PlanObjective
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.workloads import prefix_sum

DELTA = 1e-6
SIZES = {20: (10_000, 500), 117: (60_000, 512), 500: (50_000, 100)}  # N / B, rounded: N, B
EPOCHS = (1, 3, 10, 30)
EPSILONS = (0.25, 1.0, 3.0, 8.0, 16.0)
MARKS = ("<!-- grid -->", "<!-- end of grid -->")
HEAD = (
    "| N | B | epochs | ε | best b | loss·σ | plan() takes | sampling | plan / search | same class |"
    " vs DP-SGD |"
)


@dataclass(frozen=True)
class Cell:
    """One setting: what the search found, and what plan() chose. Errors are loss * sigma, not over B."""

    examples: int
    batch_size: int
    epochs: int
    epsilon: float
    bands: int
    searched: float
    independent: float
    chosen: str
    sampling: str
    planned: float
    same_class: float

    @property
    def ratio(self) -> float:
        """plan()'s error over that of the search: at most 1.01."""
        return self.planned / self.searched

    @property
    def good(self) -> bool:
        beaten = self.planned < self.independent or self.searched >= self.independent
        return self.ratio <= 1.01 and self.same_class <= 1.01 * self.searched and beaten

    def line(self) -> str:
        cells = (
            f"{self.examples}",
            f"{self.batch_size}",
            f"{self.epochs}",
            f"{self.epsilon:g}",
            f"{self.bands}",
            f"{self.searched:.4g}",
            self.chosen,
            self.sampling,
            f"{self.ratio:.4f}",
            f"{self.same_class / self.searched:.4f}",
            f"{self.planned / self.independent:.3f}",
        )
        return "| " + " | ".join(cells) + " |"


def search(
    designs: Designs, examples: int, batch_size: int, epsilon: float
) -> tuple[dict[int, float], float]:
    """loss * sigma of every number of bands, and the largest difference of sigma from the fine one."""
    n = designs.workload.n
    most = min(n, examples // batch_size)
    sigmas = {
        b: poisson_noise_multiplier_estimate(epsilon, DELTA, min(1.0, batch_size * b / examples), -(-n // b))
        for b in range(1, most + 1)
    }
    found = {b: designs.error(b) * sigma for b, sigma in sigmas.items()}
    best = min(found, key=lambda b: found[b])
    worst = 0.0
    for b in {best, max(1, best // 3)}:
        fine = poisson_noise_multiplier(epsilon, DELTA, min(1.0, batch_size * b / examples), -(-n // b))
        worst = max(worst, abs(sigmas[b] / fine - 1))
    return found, worst


def cell_of(
    designs: Designs, examples: int, batch_size: int, epochs: int, epsilon: float
) -> tuple[Cell, float]:
    """The search and plan() in one setting, and how far the estimates of the search were off."""
    found, worst = search(designs, examples, batch_size, epsilon)
    best = min(found, key=lambda b: found[b])
    made = plan(examples=examples, batch_size=batch_size, epochs=epochs, epsilon=epsilon, delta=DELTA)
    chosen = next(row for row in made.rows if row.chosen)
    of_class = [
        row
        for row in made.rows
        if isinstance(row.mechanism.sampling, (CyclicPoisson, FixedOrder, Poisson))
        and family(row.mechanism.strategy) in ("identity", "banded_toeplitz")
    ]
    plain = next(
        row
        for row in made.rows
        if isinstance(row.mechanism.strategy, Identity) and isinstance(row.mechanism.sampling, Poisson)
    )
    return (
        Cell(
            examples,
            batch_size,
            epochs,
            epsilon,
            best,
            found[best],
            plain.predicted * batch_size,
            chosen.name,
            chosen.sampling,
            chosen.predicted * batch_size,
            min(row.predicted for row in of_class) * batch_size,
        ),
        worst,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratios", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--epochs", type=int, nargs="+", default=list(EPOCHS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table between the marks of FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    cells: list[Cell] = []
    off = 0.0
    print(HEAD, flush=True)
    for ratio in options.ratios:
        examples, batch_size = SIZES[ratio]
        for epochs in options.epochs:
            designs = Designs(PlanObjective.of(prefix_sum(epochs * -(-examples // batch_size)), "last"))
            for epsilon in options.epsilons:
                cell, worst = cell_of(designs, examples, batch_size, epochs, epsilon)
                cells.append(cell)
                off = max(off, worst)
                print(cell.line() + ("" if cell.good else "  <-- FAILS"), flush=True)
    ratios = np.array([cell.ratio for cell in cells])
    wins = sum(cell.searched < cell.independent for cell in cells)
    summary = (
        f"{len(cells)} settings, δ = {DELTA:g}. plan() over the search: largest {ratios.max():.4f}, median"
        f" {np.median(ratios):.4f}, least {ratios.min():.4f}. The search found something better than"
        f" independent noise under Poisson sampling in {wins} settings, plan() in"
        f" {sum(cell.planned < cell.independent for cell in cells)}. σ of the search differs from the"
        f" pessimistic one by at most {off:.1e} where both were computed."
    )
    print(f"\n{summary}", flush=True)
    if options.out:
        text = options.out.read_text(encoding="utf-8")
        head, rest = text.split(MARKS[0])
        rule = "|" + "---|" * (HEAD.count("|") - 1)
        body = "\n".join([summary, "", HEAD, rule, *(cell.line() for cell in cells)])
        options.out.write_text(
            f"{head}{MARKS[0]}\n\n{body}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1), encoding="utf-8")
    return 0 if all(cell.good for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())

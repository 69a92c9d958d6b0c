"""The two pictures and the table of docs/why.md: python benchmarks/why.py --out docs/images

One hundred steps, and each person takes part in one. All noises give the same guarantee. Noise is counted in
units of what independent noise adds in a step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import anechoic as an
from anechoic.plots.curves import Axis, Line, line_figure
from anechoic.plots.style import as_svg

STEPS = 100
ONCE = an.participation.Single()
TOTALS = an.workloads.prefix_sum(STEPS)
#: Name -> role in the pictures, strategy.
NOISES = {
    "independent": ("independent", an.strategies.Identity(STEPS)),
    "half taken back": ("damped", an.strategies.BandedInverse.one_parameter(STEPS, 0.5)),
    "nine tenths taken back": ("banded", an.strategies.BandedInverse.one_parameter(STEPS, 0.9)),
    "the best of all": ("planned", an.optimize.dense(TOTALS, participation=ONCE).strategy),
}


def figures_of(strategy: an.strategies.Strategy) -> tuple[np.ndarray, np.ndarray]:
    """Return the noise of each step and that of each running total, at the guarantee of all."""
    larger = an.sensitivity(strategy, ONCE).value
    steps = np.linalg.norm(np.linalg.inv(strategy.to_dense()), axis=1)
    return larger * steps, larger * an.error(TOTALS, strategy).per_step


def table() -> str:
    """Return the table of the page."""
    lines = [
        "| noise | in step 1 | in step 50 | in the total of 10 steps | of 100 steps |",
        "|---|---|---|---|---|",
    ]
    for name, (_, strategy) in NOISES.items():
        steps, totals = figures_of(strategy)
        numbers = (steps[0], steps[49], totals[9], totals[99])
        lines.append(f"| {name} | " + " | ".join(f"{one:.2f}" for one in numbers) + " |")
    return "\n".join(lines)


def path(strategy: an.strategies.Strategy) -> np.ndarray:
    """Return the noise in the running totals of one run, from a key that is always the same."""
    larger = an.sensitivity(strategy, ONCE).value
    fresh = np.random.default_rng(0).normal(scale=larger, size=STEPS)
    return np.cumsum(strategy.solve(fresh))


def draw(out: Path) -> None:
    """Write the two pictures."""
    totals = {name: figures_of(strategy)[1] for name, (_, strategy) in NOISES.items()}
    ends = ", ".join(f"{name} {one[-1]:.1f}" for name, one in totals.items())
    picture(
        out / "why-totals.svg",
        totals,
        Axis("noise in the total so far (std)", zero=True),
        f"Noise in the running total over {STEPS} steps at one guarantee; at the end: {ends}.",
    )
    paths = {name: path(NOISES[name][1]) for name in ("independent", "nine tenths taken back")}
    far = ", ".join(f"{name} {np.abs(one).max():.1f}" for name, one in paths.items())
    title = f"The noise in the total in one run, from the same random numbers; farthest from 0: {far}."
    picture(out / "why-run.svg", paths, Axis("noise in the total so far"), title)


def picture(file: Path, curves: dict[str, np.ndarray], axis: Axis, title: str) -> None:
    """Write curves over the steps, each by its name in `NOISES`."""
    places = range(1, STEPS + 1)
    lines = [Line(name, NOISES[name][0], places, one.tolist(), markers=False) for name, one in curves.items()]
    file.write_text(as_svg(line_figure(lines, x=Axis("step"), y=axis, title=title), title), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"), metavar="DIR")
    draw(parser.parse_args().out)
    print(table())

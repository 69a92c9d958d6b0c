"""What offices publish: open categories and distinct units; error and coverage.

    python benchmarks/offices.py [--runs 500] [--only PART …] [--json FILE]

Errors are in units (persons); coverage is the share of 95% intervals that hold the true figure.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
from pathlib import Path

import numpy as np

from anechoic import streaming
from anechoic.accounting import gaussian_mu
from anechoic.participation import OncePerEpoch, Single
from anechoic.streaming.mechanisms import planned_mechanism

STEPS, EPSILON, DELTA = 24, 1.0, 1e-6
#: What --json writes.
FOUND: dict[str, float] = {}


def planned(participation, dimension=1, **how):
    return planned_mechanism(
        over=streaming.Running(),
        horizon=STEPS,
        participation=participation,
        epsilon=EPSILON,
        delta=DELTA,
        dimension=dimension,
        **how,
    )


def told(name, values):
    for key, value in values.items():
        FOUND[f"{name}, {key}"] = float(value)


def categories(runs):
    """Categories are independent, so that one stream holds all runs: each size as often as there are runs."""
    print(f"\nOpen categories: {STEPS} steps, epsilon {EPSILON:g}, delta {DELTA:g}, {runs} runs of each size")
    print("units a step | released | at step | error if released | coverage if released | stated error")
    sizes = [0, 1, 2, 3, 4, 8, 32]
    stream = streaming.PartitionSelectionHistogram(epsilon=EPSILON, delta=DELTA, horizon=STEPS)
    first: dict[str, int] = {}
    for step in range(STEPS):
        stream.update([f"{size}:{run}" for size in sizes for run in range(runs) for _ in range(size)])
        if step == 0:
            stream.update([f"0:{run}" for run in range(runs)])  # one unit in all
        made = stream.release()
        for name in made.named():
            first.setdefault(name, step)
    named, one = made.named(), made["units"]
    half = (one.high - one.low)[0] / 2
    for size in sizes:
        names = [f"{size}:{run}" for run in range(runs) if f"{size}:{run}" in named]
        off = np.array([named[name] - STEPS * size for name in names])
        share = len(names) / runs
        at = np.median([first[name] for name in names]) if names else math.nan
        error = math.sqrt(np.mean(off**2)) if names else math.nan
        inside = np.mean(np.abs(off) <= half) if names else math.nan
        label = "1 in all" if size == 0 else f"{size}"
        print(
            f"{label:>12} | {share:8.3f} | {at:7.0f} | {error:17.2f} | {inside:20.3f} |"
            f" {stream.standard_error(STEPS - 1):.2f}"
        )
        told(f"{label} a step", {"released": share, "error": error, "coverage": inside})
    z = (stream.threshold(STEPS - 1) - 1) / stream.standard_error(STEPS - 1)
    once = 1 / gaussian_mu(EPSILON, DELTA / 2)
    print(
        f"threshold at the first step {stream.threshold(0):.1f},"
        f" at the last {stream.threshold(STEPS - 1):.1f}"
    )
    print(
        f"a single release of the last step alone, with all of epsilon: {1 + 4.89 * once:.1f};"
        f" {STEPS} independent ones: {1 + z * once * math.sqrt(STEPS):.1f}"
    )


def distinct(runs):
    print(f"\nDistinct units, {STEPS} steps, {runs} runs: error, stated error, coverage at the last step")
    rng = np.random.default_rng(0)
    for name, participation, begin in (("ever", Single(), 0), ("of the last 8 steps", OncePerEpoch(8), 16)):
        mechanism, off, inside = planned(participation), [], []
        for _ in range(runs):
            stream = streaming.Stream(streaming.Count(), mechanism=mechanism, participation=participation)
            batches = [rng.integers(300, size=40).tolist() for _ in range(STEPS)]
            stream.steps(batches, unit_ids=batches)
            found = stream.between(begin)
            true = len({unit for batch in batches[begin:] for unit in batch})
            off.append(found.estimate - true)
            inside.append(found.interval[0] <= true <= found.interval[1])
        print_distinct(name, off, inside, found.standard_error)


def print_distinct(name, off, inside, stated):
    error = math.sqrt(np.mean(np.square(off)))
    print(f"{name:>36} | {error:6.2f} | {stated:6.2f} | {np.mean(inside):.3f}")
    told(f"distinct {name}", {"error": error, "coverage": np.mean(inside)})


def within(runs):
    """Units of the last 8 steps, at every step; of those who come too often some are left out."""
    print(
        f"\nUnits of the last 8 steps at each of {STEPS} steps: error, stated error, coverage; of all steps"
    )
    rng, mechanism = np.random.default_rng(4), planned(Single(), buffered=True)
    for visits in (1, 2, 3):  # more than 3 do not fit
        off, inside = [], []
        for _ in range(runs):
            stream = streaming.Stream(streaming.Count(within=8, visits=visits), mechanism=mechanism)
            batches = [rng.integers(300, size=40).tolist() for _ in range(STEPS)]
            for t, made in enumerate(stream.steps(batches, unit_ids=batches)):
                true = len({unit for batch in batches[max(0, t - 7) : t + 1] for unit in batch})
                off.append(made.estimate - true)
                inside.append(made.interval[0] <= true <= made.interval[1])
        stated = np.mean([stream.standard_deviations(t)["count"] for t in range(STEPS)])
        print_distinct(f"of the last 8 steps, {visits} visits", off, inside, stated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", metavar="PART", help="categories distinct within")
    options = parser.parse_args()
    for part in (categories, distinct, within):
        if options.only is None or part.__name__ in options.only:
            part(options.runs)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"\n{used.ru_utime + used.ru_stime:.0f} s of processor time")
    if options.json:
        options.json.write_text(json.dumps(FOUND, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

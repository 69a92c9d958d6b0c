"""plan() against its own subsets and a search over every number of bands: python benchmarks/planning.py

    python benchmarks/planning.py --settings 200          # the whole grid (an hour)
    python benchmarks/planning.py --settings 24 --skip 24 # the second 24 of it

A setting is drawn, from a fixed seed, from N, B, passes, epsilon, delta, parameters (10^4 to 10^9) and a
budget of 0.5 to 8 models or none. plan() with everything permitted is held against plan() without sampling,
with each class alone and with half the memory, and against loss * sigma of the best banded strategy of every
number of bands that fits, under cyclic Poisson sampling and in a fixed order. Times are of the processor.
Exit status 1 if a subset has less error by more than a tie, or the search by 1 % more than that.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from anechoic import plan
from anechoic.accounting import gaussian_mu
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.planning.choice import ALIKE
from anechoic.planning.designs import Designs
from anechoic.planning.memory_budget import BYTES, memory_limit
from anechoic.planning.objective import PlanObjective
from anechoic.workloads import prefix_sum

EXAMPLES = (2000, 10_000, 60_000, 1_000_000)
RATIOS = (10, 20, 117, 500, 2000)  # N / B
PASSES = (1, 2, 4, 10, 30)
EPSILONS = (0.25, 1.0, 2.0, 4.0, 8.0, 16.0)
DELTAS = (1e-5, 1e-7)
DIMENSIONS = (10**4, 10**6, 10**8, 10**9)
MODELS = (0.5, 1.0, 2.0, 4.0, 8.0, None)
SEARCHED_UP_TO = 3000  # steps, beyond which only subsets are compared


def settings(count: int, skip: int) -> list[dict[str, float]]:
    """Distinct settings in a fixed random order."""
    draw, found = np.random.default_rng(12), []
    while len(found) < skip + count:
        examples, ratio, passes = (int(draw.choice(values)) for values in (EXAMPLES, RATIOS, PASSES))
        dimension, models = int(draw.choice(DIMENSIONS)), MODELS[draw.integers(len(MODELS))]
        setting = {
            "examples": examples,
            "batch_size": max(1, examples // ratio),
            "epochs": passes,
            "epsilon": float(draw.choice(EPSILONS)),
            "delta": float(draw.choice(DELTAS)),
            "dimension": dimension,
            "memory_budget": None if models is None else int(models * BYTES * dimension),
        }
        if ratio <= examples and setting not in found:
            found.append(setting)
    return found[skip:]


def searched(setting: dict[str, float]) -> float:
    """Predicted error of the best number of bands within the room."""
    examples, size, passes = (int(setting[key]) for key in ("examples", "batch_size", "epochs"))
    epsilon, delta = setting["epsilon"], setting["delta"]
    period = -(-examples // size)
    n = passes * period
    if n > SEARCHED_UP_TO:
        return float("inf")
    rows = memory_limit(int(setting["dimension"]), setting["memory_budget"]).rows
    designs, best = Designs(PlanObjective.of(prefix_sum(n), "last")), float("inf")
    fixed = np.sqrt(passes) / gaussian_mu(epsilon, delta)
    for bands in range(1, period + 1):
        if bands > 1 and rows is not None and bands > rows:
            break
        sigma = fixed
        if bands <= examples // size:
            rate = min(1.0, size * bands / examples)
            sigma = min(fixed, poisson_noise_multiplier_estimate(epsilon, delta, rate, -(-n // bands)))
        best = min(best, designs.error(bands) * sigma / size)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    options = parser.parse_args()
    seconds, beaten, ratios = [], 0, []
    for setting in settings(options.settings, options.skip):
        started = time.process_time()
        chosen = plan(**setting).chosen
        seconds.append(time.process_time() - started)
        subsets: dict[str, dict[str, object]] = {"no sampling": {"random_sampling": False}}
        subsets |= {name: {"strategy": name} for name in ("identity", "banded", "blt")}
        if setting["memory_budget"] is not None:
            subsets["half the memory"] = {"memory_budget": setting["memory_budget"] // 2}
        found = {}
        for name, fewer in subsets.items():
            try:
                found[name] = plan(**{**setting, **fewer}).chosen.predicted
            except ValueError as error:
                if "raise the budget" not in str(error):
                    raise
        worst = min(found, key=lambda name: found[name])
        ratio = chosen.predicted / searched(setting)
        ratios.append(ratio)
        bad = (1 + ALIKE) * found[worst] < chosen.predicted or ratio > 1.01 + ALIKE
        beaten += bad
        print(
            f"{setting} {chosen.name} {chosen.sampling} {chosen.predicted:.4g} best subset"
            f" {found[worst] / chosen.predicted:.4f} ({worst}) over the search {ratio:.4f}"
            f" {seconds[-1]:.1f} s{'  <-- BEATEN' if bad else ''}",
            flush=True,
        )
    print(
        f"{len(seconds)} settings, {beaten} beaten; over the search at most {max(ratios):.4f}; plan() took"
        f" {np.median(seconds):.1f} s of the processor (median), {max(seconds):.1f} s at most."
    )
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())

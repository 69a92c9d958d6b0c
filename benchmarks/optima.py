"""Each class of strategies beside the best matrix of all: python benchmarks/optima.py

    python benchmarks/optima.py --steps 128 --keep 0.2  # minutes
    python benchmarks/optima.py --long 100000           # times what takes O(n bands)

For sums, momentum, and momentum with a cosine, and for 1, 3 and 10 participations in a fixed order: the loss
of each optimiser over that of `optimize.dense`, the gap that `dense` proves of itself, and the best of the
banded strategies and BLTs that `plan` compares. With one participation the optimum of `dense` is found once
more by a fixed point that shares no code with it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from anechoic import optimize
from anechoic.participation import Cyclic, Single
from anechoic.participation.base import Participation
from anechoic.planning.designs import Designs
from anechoic.planning.families import PLAN_CHOICES, label
from anechoic.planning.fixed_order_candidates import FixedOrderCandidates
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.objective import PlanObjective
from anechoic.planning.update import UpdateRule, with_schedule
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.workloads.base import Workload

#: Steps beyond which free columns take minutes, and fewer bands are tried of the others.
LONG = 5000
UPDATES = {
    "sums": UpdateRule(),
    "momentum .9": UpdateRule("sgd", 0.9),
    "momentum .9, cosine": with_schedule(UpdateRule("sgd", 0.9), "cosine", "step"),
}


def classes(separation: int, n: int) -> dict[str, Callable[..., object]]:
    """Optimisers by the name of their class; bands are those of one pass, or at most 32."""
    long = n > LONG
    bands, wide = min(separation, n, 8 if long else 32), min(separation, n, 32 if long else n)
    free = {} if long else {"banded": lambda *a, **k: optimize.banded(*a, bands=bands, **k)}
    return {
        **free,
        "banded Toeplitz": lambda *a, **k: optimize.banded_toeplitz(*a, bands=wide, **k),
        "BLT": lambda *a, **k: optimize.blt(*a, buffers=4, **k),
        "banded inverse": lambda *a, **k: optimize.banded_inverse(*a, bands=8, **k),
    }


def planned(objective: PlanObjective, schema: Participation) -> tuple[float, str]:
    """The least loss of what a plan compares in any room, the best matrix apart, and whose it is."""
    designs = Designs(objective)
    compared = FixedOrderCandidates(designs, schema, MemoryBudget(None, None)).of(
        PLAN_CHOICES["auto"] - {"dense"}
    )
    return min((designs.of(one) * sensitivity(one, schema).value, label(one)) for one in compared)


def fixed_point(workload: Workload, weights: np.ndarray) -> float:
    """The least loss of one participation: tr of the root of D^1/2 A^T W A D^1/2, greatest over tr D = 1."""
    a = workload.to_dense()
    form = a.T @ (weights[:, None] * a)
    d = np.full(len(form), 1.0 / len(form))
    for _ in range(400):
        root = np.sqrt(d)
        values, vectors = np.linalg.eigh(root[:, None] * form * root)
        part = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        d = part.diagonal() / np.trace(part)
    return float(np.trace(part))


def settings(n: int, keep: float) -> Iterator[tuple[str, int, Workload, PlanObjective, Participation, int]]:
    for name, update in UPDATES.items():
        for count in (1, 3, 10):
            period = -(-n // count)
            workload = update.workload(n, period)
            schema: Participation = Single() if count == 1 else Cyclic(period)
            yield name, count, workload, PlanObjective.of(workload, keep), schema, period


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("--long", type=int, default=0)
    options = parser.parse_args()
    n = options.long or options.steps
    for name, count, workload, objective, schema, period in settings(n, options.keep):
        best = None
        if not options.long:
            best = optimize.dense(workload, participation=schema, loss=objective.loss)
            line = f"{name}, {count} participations: dense {best.loss:.5g}, proven to {best.gap:.1e}"
            if count == 1:
                line += f", fixed point {fixed_point(workload, objective.weights) / best.loss - 1:+.1e}"
            print(line, flush=True)
        for kind, optimiser in classes(period, n).items():
            started = time.process_time()
            try:
                found = optimiser(workload, participation=schema, loss=objective.loss)
            except ValueError as error:
                print(f"    {kind}: refused: {error}"[:110])
                continue
            measure = f"loss {found.loss:.6g}" if best is None else f"{found.loss / best.loss - 1:+.2%}"
            print(f"    {kind}: {measure}, {time.process_time() - started:.2f} s", flush=True)
        started = time.process_time()
        if best is not None:
            least, name = planned(objective, schema)
            spent = time.process_time() - started
            print(f"    plan: {least / best.loss - 1:+.2%}, {name}, {spent:.2f} s", flush=True)


if __name__ == "__main__":
    main()

"""What a plan should minimise, by training: python benchmarks/grid.py --data-dir DIR --out grid.jsonl

    python benchmarks/grid.py mlp --quick                     # one task, minutes: what `make bench` runs
    python benchmarks/grid.py --out grid.jsonl                # all of it, days of one core
    python benchmarks/grid.py --out grid.jsonl --tables       # of what is in --out, without training

Tasks of `adaptive/tasks.py`, those of 120 steps in three passes and those of one pass of 1,024 steps; batches
in a fixed order, or drawn as each mechanism draws them; SGD, momentum .9 and Adam under several schedules.
Every arm has a plan of its own (`adaptive/objectives.py`: no noise, independent noise, the plan for plain
sums, weights of the last iterate, a discount) and its own learning rate, the best of powers of two with worse
ones to either side; then each is trained at the best rate of independent noise too. Metric of the last
iterate on test examples: accuracy, or the area under the ROC curve for flights.

Arms whose plan takes the same mechanism are trained once. Each result is a line of --out: a run that was
stopped goes on where it was. The noise is drawn by NumPy: this is a study of utility, not a release.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
from adaptive.cells import Results, best_rate, complete
from adaptive.objectives import INDEPENDENT, NOISELESS, PLANS, SCHEDULES, Optimizer, Run
from adaptive.objectives_table import advice, summary, table
from adaptive.tasks import LONG_TASKS, TASKS

ALL = {**LONG_TASKS, **TASKS}
QUICK = {
    "epsilons": [1.0],
    "optimizers": ["momentum"],
    "schedules": ["cooldown"],
    "plans": ["independent", "sums", "default"],
    "seeds": 2,
}


def train(results: Results, run: Run, seeds: int) -> str:
    """An arm at its own best rate and at that of independent noise; what is to be said of it."""
    planned = run.plan not in (INDEPENDENT, NOISELESS)
    if planned and run.row.mechanism == replace(run, plan=INDEPENDENT).row.mechanism:
        return "takes independent noise"
    inside = complete(results, run.key, run.trained, run.guess, seeds)
    if alone := results.of(replace(run, plan=INDEPENDENT).key):
        results.train(run.key, [best_rate(alone)], run.trained, seeds)
    return "" if inside else "the best rate lies at an end"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(ALL), help=f"of {', '.join(ALL)}")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0, 8.0])
    parser.add_argument("--orders", nargs="+", choices=("fixed", "drawn"), default=["fixed", "drawn"])
    parser.add_argument("--optimizers", nargs="+", choices=get_args(Optimizer), default=get_args(Optimizer))
    parser.add_argument("--schedules", nargs="+", choices=tuple(SCHEDULES), default=list(SCHEDULES))
    parser.add_argument("--plans", nargs="+", choices=tuple(PLANS), default=list(PLANS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, default=Path("data/fashion-mnist"))
    parser.add_argument("--out", type=Path, help="a file in a temporary folder if not given")
    parser.add_argument("--quick", action="store_true", help="a small part of it")
    parser.add_argument("--tables", action="store_true", help="of what is in --out, without training")
    parser.set_defaults(**(QUICK if "--quick" in sys.argv else {}))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(options.tasks) - set(ALL):
        parser.error(f"task {sorted(unknown)[0]!r} is unknown: choose from {', '.join(ALL)}.")
    results = Results(options.out or Path(tempfile.mkdtemp()) / "grid.jsonl")
    runs = [
        Run(task, epsilon, order == "drawn", optimizer, schedule, plan)
        for task in [ALL[name](options.data_dir) for name in options.tasks]
        for epsilon, order, optimizer, schedule, plan in product(
            options.epsilons,
            options.orders,
            options.optimizers,
            options.schedules,
            sorted(options.plans, key=lambda name: name != INDEPENDENT),
        )
    ]
    for run in [] if options.tables else runs:
        began = time.monotonic()
        said = train(results, run, options.seeds)
        words = " ".join(str(value) for name, value in run.key.items() if name != "size")
        print(f"{words}: {time.monotonic() - began:.0f} s {said}".rstrip(), file=sys.stderr, flush=True)
    print(table(results, runs), summary(results, runs), advice(results, runs), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which optimiser gains from correlated noise, and at which learning rates: python benchmarks/optimizers.py

    python benchmarks/optimizers.py --data-dir data/fashion-mnist --out optimizers.jsonl
    python benchmarks/optimizers.py --out optimizers.jsonl --tables

Four small models of `adaptive/tasks.py`, gradients of examples clipped to norm 1, noise that plan()
calibrates: independent noise, and the mechanism of least predicted error; batches in a fixed order, and drawn
as each mechanism draws them. Every arm of `adaptive/arms.py` computes the same number of gradients (in
expectation, where batches are drawn), and has its own learning rates, powers of two with a cosine schedule to
0. Metric: accuracy on test examples (area under the ROC curve for the flights), at the rate of the best mean
over seeds.

Each result is a line of --out: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
from adaptive.arms import ARMS
from adaptive.cells import Results, Setting, best_rate, complete, trained
from adaptive.table import tables
from adaptive.tasks import TASKS

REFERENCE = "Adam, independent"
#: Where a grid begins at the first epsilon; later from the best rate at the nearest one.
GUESSES = {"momentum, independent": 0.5, "momentum": 2.0, REFERENCE: 0.032}
SAME_RATE = ("Adam", "CorrectedAdam")  # these are trained at the best rate of REFERENCE too


def guess(results: Results, setting: Setting, arm: str, epsilons: list[float]) -> float:
    for epsilon in sorted(epsilons, key=lambda other: abs(other - setting.epsilon)):
        for sampled in (setting.sampled, not setting.sampled):
            found = results.of(Setting(setting.task, epsilon, sampled).arm(arm))
            if found:
                return best_rate(found)
    return GUESSES.get(arm, 0.128)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0, 1.0, 4.0])
    parser.add_argument("--schemes", nargs="+", choices=("fixed", "sampled"), default=["fixed", "sampled"])
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, default=Path("data/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=Path("optimizers.jsonl"))
    parser.add_argument("--tables", action="store_true", help="of what is in --out, without training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"task {sorted(unknown)[0]!r} is unknown: choose from {', '.join(TASKS)}.")
    results = Results(options.out)
    tasks = [TASKS[name](options.data_dir) for name in options.tasks]
    settings = [
        Setting(task, epsilon, scheme == "sampled")
        for epsilon in options.epsilons
        for scheme in options.schemes
        for task in tasks
    ]
    if not options.tables:
        for setting in settings:
            for arm in sorted(options.arms, key=lambda name: name != REFERENCE):
                began = time.monotonic()
                known = results.of(setting.arm(REFERENCE)) if arm in SAME_RATE else {}
                also = best_rate(known) if known else None
                near = guess(results, setting, arm, options.epsilons)
                train = partial(trained, setting, arm)
                inside = complete(results, setting.arm(arm), train, near, options.seeds, also)
                what = (
                    f"{setting.task.name} eps={setting.epsilon:g} {'sampled' if setting.sampled else 'fixed'}"
                )
                end = "" if inside else ": the best rate lies at an end"
                print(f"{what} {arm}: {time.monotonic() - began:.0f} s{end}", file=sys.stderr, flush=True)
    print(tables(results, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Private fine-tuning by examples/finetune.py, independent noise beside the plan.

    python benchmarks/finetune.py [--adapt full lora] [--epsilon 8] [--seeds 3] [--out FILE]

Held-out loss of a small GPT-2 that was trained on public topics of Python's help before, three passes of 20
steps over 2,560 windows of other topics, in nats a token. Learning rates are those of independent noise: the
best of a grid, for each way to adapt, order and optimiser, on a seed that the table does not use. The plan
gets the same rate. Arms of one seed share base, adapters and the key of the batches, so that differences are
paired. The choice of the rate is outside the guarantee. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))  # forked by people, measured here
from finetune import Choices, Windows, finetune, loss_on, prepared

SWEEP_SEED = 100
#: Arm: optimizer, mechanism. The second of each stands beside the first. For plain AdamW "auto" plans
#: independent noise here, so that it is no arm.
ARMS = {
    "AdamW": {
        "independent": ("adamw", "identity"),
        "plan, CorrectedAdam": ("corrected", "auto"),
    },
    "SGD, momentum .9": {"independent": ("sgd", "identity"), "plan": ("sgd", "auto")},
}
RATES = {
    ("full", "AdamW"): (1e-3, 2e-3, 4e-3),
    ("lora", "AdamW"): (4e-3, 8e-3, 16e-3),
    ("full", "SGD, momentum .9"): (0.025, 0.05, 0.1),
    ("lora", "SGD, momentum .9"): (0.05, 0.1, 0.2),
}


class Study:
    """Runs on one base model; a mechanism is planned once for all seeds and rates of an arm."""

    def __init__(self, base: torch.nn.Module, data: Windows) -> None:
        self.base, self.data = base, data
        self.planned: dict[tuple[Any, ...], Any] = {}

    def loss(self, choices: Choices) -> float:
        """Held-out loss after a run: its batches follow from the seed, its noise from all it is asked."""
        name = (choices.adapt, choices.order, choices.epsilon, choices.optimizer, choices.mechanism)
        # one noise key for two runs is refused: their difference would show gradients without noise
        keys = {
            "noise_key": hashlib.sha256(f"noise {choices}".encode()).digest(),
            "sampling_key": hashlib.sha256(f"batches {choices.seed}".encode()).digest(),
        }
        asked = replace(choices, mechanism=self.planned.get(name, choices.mechanism))
        engine, model = finetune(self.base, self.data, asked, **keys)
        self.planned[name] = engine.mechanism
        return loss_on(model, self.data.held_out)

    def best_rate(self, choices: Choices, rates: tuple[float, ...]) -> tuple[float, bool]:
        """The best rate, and whether worse ones lie on both sides of it; goes on past the ends twice."""
        found = {rate: self.loss(replace(choices, rate=rate, seed=SWEEP_SEED)) for rate in rates}
        for _ in range(2):
            best = min(found, key=found.__getitem__)
            beyond = best * 2 if best == max(found) else best / 2 if best == min(found) else None
            if beyond is None:
                break
            found[beyond] = self.loss(replace(choices, rate=beyond, seed=SWEEP_SEED))
        best = min(found, key=found.__getitem__)
        return best, min(found) < best < max(found)


def cells(study: Study, adapt: str, order: str, epsilon: float, seeds: int) -> Iterator[dict[str, Any]]:
    """One record an optimiser and arm: losses by seed, and the difference from independent noise."""
    for optimizer, arms in ARMS.items():
        start = Choices(adapt=adapt, order=order, epsilon=epsilon)
        first = replace(start, optimizer=arms["independent"][0], mechanism="identity")
        rate, inside = study.best_rate(first, RATES[adapt, optimizer])
        beside: list[float] = []
        for arm, (kind, mechanism) in arms.items():
            chosen = replace(start, optimizer=kind, mechanism=mechanism, rate=rate)
            losses = [study.loss(replace(chosen, seed=seed)) for seed in range(seeds)]
            beside = beside or losses
            off = [mine - other for mine, other in zip(losses, beside, strict=True)]
            mechanism_of = study.planned[adapt, order, epsilon, kind, mechanism]
            yield {
                "adapt": adapt,
                "order": order,
                "epsilon": epsilon,
                "optimizer": optimizer,
                "arm": arm,
                "rate": rate,
                "inside": inside,
                "losses": losses,
                "off": mean(off),
                "error": stdev(off) / len(off) ** 0.5 if len(off) > 1 else float("nan"),
                "strategy": f"{mechanism_of.strategy}, {type(mechanism_of.sampling).__name__}",
            }


def row(record: dict[str, Any]) -> str:
    off = "" if record["arm"] == "independent" else f"{record['off']:+.3f} ({record['error']:.3f})"
    rate = f"{record['rate']:g}" + ("" if record["inside"] else " (end of the grid)")
    return (
        f"| {record['adapt']} | {record['order']} | {record['epsilon']:g} | {record['optimizer']} | {rate} |"
        f" {record['arm']} | {mean(record['losses']):.3f} | {off} | {record['strategy']} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapt", nargs="+", choices=("full", "lora"), default=["full", "lora"])
    parser.add_argument("--order", nargs="+", choices=("fixed", "drawn"), default=["fixed", "drawn"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append one JSON record a line")
    options = parser.parse_args()
    study = Study(*prepared("small", 32, 2560, 0))
    print(f"before: {loss_on(study.base, study.data.held_out):.3f}")
    print(
        "| adapted | batches | ε | optimizer | rate | noise | loss | beside independent (s.e.) | mechanism |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for epsilon in options.epsilon:
        for adapt in options.adapt:
            for order in options.order:
                for record in cells(study, adapt, order, epsilon, options.seeds):
                    print(row(record), flush=True)
                    if options.out:
                        with options.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Accuracy over the clip norm, rate times clip norm kept: python benchmarks/clip_norm.py

Digits of scikit-learn, the task `digits` of the grid: 1,500 rows, a hidden layer of 32, batches of 30, five
passes, SGD with momentum 0.9, delta 1e-5, the plan's mechanism. The rate is that of `plan.advice` over the
clip norm; "at the rate of clip norm 1" leaves it. "no noise" has a millionth of the noise. Accuracy on the
other 297 rows, mean over seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anechoic as an
from anechoic.torch import PrivacyEngine

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
from adaptive.tasks import digits

TASK = digits(Path())


def planned(epsilon: float) -> Any:
    """The plan of a run at clip norm 1."""
    return an.plan(
        examples=TASK.examples,
        batch_size=TASK.batch_size,
        epochs=TASK.epochs,
        epsilon=epsilon,
        delta=TASK.delta,
        optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0, momentum=0.9),
        random_sampling=True,
    )


def trained(mechanism: Any, rate: float, clipping: str, seed: int, name: str) -> float:
    """Accuracy on the other rows."""
    x, y, other, targets = TASK.data
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    # keys follow from the seed, so that figures can be reproduced: a run that protects anyone passes none
    run = f"benchmarks/clip_norm.py: {name}, {mechanism.noise_std}, {mechanism.clip_norm}, {seed}"
    keys = [hashlib.sha256(f"{kind}: {run}".encode()).digest() for kind in ("noise", "sampling")]
    private, optimizer, loader = PrivacyEngine(noise_key=keys[0], sampling_key=keys[1]).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=TASK.batch_size, shuffle=True),
        mechanism=mechanism,
        max_grad_norm=mechanism.clip_norm,
        clipping=clipping,
    )
    for _ in range(TASK.epochs):
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(rows), labels).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(other).argmax(-1) == targets).float().mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--powers", nargs="+", type=int, default=list(range(-4, 5)))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    norms = [2.0**power for power in options.powers]
    print(f"{'clip norm':34}", *(f"{norm:>7g}" for norm in norms), flush=True)

    def row(name: str, mechanism: Any, rate: float, *, scaled: bool = True, clipping: str = "flat") -> None:
        cells = []
        for norm in norms if clipping == "flat" else [1.0]:
            made = replace(mechanism, clip_norm=norm)
            used = rate / norm if scaled else rate
            cells.append(np.mean([trained(made, used, clipping, s, name) for s in range(options.seeds)]))
        print(f"{name:34}", *(f"{cell:7.3f}" for cell in cells), flush=True)

    for epsilon in options.epsilons:
        plan = planned(epsilon)
        made, rate = plan.chosen.mechanism, plan.advice.rate
        print(f"epsilon {epsilon:g}: {plan.chosen.name}, {plan.chosen.sampling}, rate {rate:.3f}")
        row("rate over clip norm", made, rate)
        row("at the rate of clip norm 1", made, rate, scaled=False)
        row("clipping='automatic'", made, rate, clipping="automatic")
        if epsilon == options.epsilons[-1]:
            row("no noise, rate over clip norm", replace(made, noise_std=made.noise_std * 1e-6), rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The monograph's claim: banded noise with amplification is never predicted above DP-SGD."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import anechoic as an
from anechoic.planning.update import UpdateRule

EXAMPLES, RATIOS, PASSES = (2000, 10_000, 60_000, 1_000_000), (10, 20, 50, 117, 500), (1, 2, 4, 10, 30)
EPSILONS, DELTAS, OPTIMIZERS = (0.1, 0.3, 1.0, 3.0, 8.0, 16.0), (1e-5, 1e-7), (0.0, 0.9)
LONGEST = 3000  # steps


def claim(count: int) -> str:
    """Of so many settings at random: banded strategies under cyclic Poisson sampling over DP-SGD."""
    draw, began = np.random.default_rng(15), time.process_time()
    settings: list[dict[str, Any]] = []
    while len(settings) < count:
        examples, ratio, epochs = (int(draw.choice(values)) for values in (EXAMPLES, RATIOS, PASSES))
        setting = {
            "examples": examples,
            "batch_size": examples // ratio,
            "epochs": epochs,
            "epsilon": float(draw.choice(EPSILONS)),
            "delta": float(draw.choice(DELTAS)),
            "optimizer": UpdateRule("sgd", float(draw.choice(OPTIMIZERS))),
            "scheduler": str(draw.choice(["constant", "cooldown"])),
        }
        if ratio * epochs <= LONGEST and setting not in settings:
            settings.append(setting)
    chosen, banded = np.zeros(count), np.zeros(count)
    for i, setting in enumerate(settings):
        alone = an.plan(**setting, strategy="identity", sampling="poisson").chosen
        rows = an.plan(
            **setting, strategy=["identity", "banded_toeplitz"], sampling=["poisson", "cyclic_poisson"]
        ).rows
        correlated = [row for row in rows if row.family != "identity"]
        chosen[i] = min(row.predicted for row in rows) / alone.predicted
        banded[i] = min((row.predicted for row in correlated), default=np.nan) / alone.predicted
    lines = [
        f"{count} settings, {time.process_time() - began:.0f} s of the processor.",
        f"Predicted error of the best amplified row, one band among them, over that of DP-SGD: median"
        f" {np.median(chosen):.3f}, least {chosen.min():.3f}, largest {chosen.max():.4f}.",
        f"Of two bands or more: below DP-SGD in {int((banded < 1.0).sum())}, least {np.nanmin(banded):.3f},"
        f" largest {np.nanmax(banded):.3f}.",
        "| ε | settings | two bands or more below DP-SGD | median ratio of the best row | of the least |",
        "|---|---|---|---|---|",
    ]
    for epsilon in EPSILONS:
        here = np.array([setting["epsilon"] == epsilon for setting in settings])
        lines.append(
            f"| {epsilon:g} | {here.sum()} | {int((banded[here] < 1.0).sum())} |"
            f" {np.median(chosen[here]):.3f} | {chosen[here].min():.3f} |"
        )
    return "\n".join(lines)

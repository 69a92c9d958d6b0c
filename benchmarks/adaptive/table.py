"""Tables of the grid: every cell, where the plan loses, advice alone, clip norms, and more or less noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from adaptive.cells import AT_RATE, Arm, Cell, Order, Results

HEAD = ["task", "ε", "optimizer, schedule"]
ORDERS: tuple[Order, ...] = ("fixed", "drawn")
NAMES = {"fixed": "fixed order", "drawn": "drawn", "default": "plan", "independent": "independent noise"}
NAMES |= {"banded": "DP-SGD or banded", "DP-SGD": "DP-SGD", AT_RATE: "plan that reads the rate"}
PAIRS: tuple[tuple[Order, Arm, Arm], ...] = (
    ("fixed", "default", "independent"),
    ("fixed", AT_RATE, "independent"),
    ("fixed", "default", "DP-SGD"),
    ("drawn", "default", "independent"),
    ("drawn", AT_RATE, "independent"),
    ("drawn", "default", "DP-SGD"),
    ("drawn", "banded", "DP-SGD"),
)


def rows(*lines: Iterable[str]) -> str:
    head, *others = (list(line) for line in lines)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *others))


def error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def named(cell: Cell) -> list[str]:
    return [cell.task, f"{cell.epsilon:g}", f"{cell.optimizer}, {cell.schedule}"]


def shown(values: np.ndarray) -> str:
    """Mean, and standard error in thousandths."""
    return f"{values.mean():.3f} ({1000 * error(values):.0f})"


def best(results: Results, cell: Cell, advised: bool = False) -> str:
    """The metric at the best rate, with a star if that is at an end, and the mean at the advised one."""
    found = results.of(cell)
    if not found:
        return ""
    text = shown(found[results.best(cell)]) + ("*" if results.at_end(cell) else "")
    if cell.arm == "DP-SGD" and cell.task == "flights":
        text = f"not permitted ({text})"
    rate = results.plans[cell]["advised"]
    return f"{text}, {found[rate].mean():.3f}" if advised and rate in found else text


def settings(results: Results) -> list[Cell]:
    """The plan's cells of clip norm 1 and its own noise, as those of a fixed order, sorted."""
    found = {
        replace(cell, order="fixed", arm="default")
        for cell in results.cells
        if cell.clip == cell.scale == 1.0 and cell.arm in ("default", "independent")
    }
    return sorted(found, key=lambda cell: (cell.task, cell.optimizer, cell.schedule, cell.epsilon))


def grid(results: Results) -> str:
    """Every cell; *ratio* is the plan's predicted error over that of DP-SGD."""
    pairs = [f"{order}: {what}" for order in ORDERS for what in ("independent", "plan", "ratio")]
    lines = [[*HEAD, "seeds", "DP-SGD", "DP-SGD or banded, amplified", *pairs, "no noise"]]
    for cell in settings(results):
        alone, silent = replace(cell, arm="DP-SGD"), replace(cell, arm="no noise")
        arms = [alone, replace(cell, arm="banded", order="drawn")]
        line = [best(results, arm) for arm in arms]
        for mine in (replace(cell, order=order) for order in ORDERS):
            known = {"predicted"} if mine in results.plans and alone in results.plans else ()
            ratio = [f"{results.predicted(mine) / results.predicted(alone):.2f}" for _ in known] or [""]
            arms += [replace(mine, arm="independent"), mine]
            line += [best(results, arms[-2]), best(results, mine, advised=True), *ratio]
        counts = {len(metrics) for arm in (*arms, silent) for metrics in results.of(arm).values()}
        seeds = "–".join(str(count) for count in sorted(counts))
        lines.append([*named(cell), seeds, *line, best(results, silent)])
    return rows(*lines)


def compared(results: Results, cell: Cell, other: Cell, rate: float | None = None) -> tuple[float, int]:
    """Metric less that of another cell, each at its best rate or the first at `rate`.

    And 1 or -1 if that is more than two standard errors, else 0.
    """
    mine = results.of(cell)[results.best(cell) if rate is None else rate]
    theirs = results.of(other)[results.best(other)]
    gain, off = float(mine.mean() - theirs.mean()), 2.0 * float(np.hypot(error(mine), error(theirs)))
    return gain, int(gain > off) - int(gain < -off)


def summary(results: Results) -> str:
    """Cells in which an arm is above or below another one by two standard errors, and the gain where below.

    Each at its own best rate, or at the one that it reads; "at its rate": the first at that of the other.
    """
    lines, lost = [["batches", "arm", "less", "cells", "median", "above", "below", "below at its rate"]], []
    for order, arm, less in PAIRS:
        found, there, names = [], [], [NAMES[name] for name in (order, arm, less)]
        for cell in (replace(one, order=order, arm=arm) for one in settings(results)):
            other = replace(cell, arm=less)
            cell = results.at_rate(other) if arm == AT_RATE and results.of(other) else cell
            if results.of(cell) and results.of(other):
                found.append(compared(results, cell, other))
                rate = results.best(other)
                same = [compared(results, cell, other, rate)] if rate in results.of(cell) else []
                there += same
                known = same if (arm, less) == ("default", "independent") else []
                kinds = [("", found[-1]), *((" at its rate", one) for one in known)]
                text = f"- {names[0]}, {' '.join(named(cell))}, {names[1]} less {names[2]}"
                lost += [f"{text}{kind}: {gain:+.3f}" for kind, (gain, sign) in kinds if sign < 0]
        if found:
            gains, signs = zip(*found, strict=True)
            counts = [len(gains), f"{np.median(gains):+.3f}", signs.count(1), signs.count(-1)]
            below = f"{sum(sign < 0 for _, sign in there)} of {len(there)}"
            lines.append([*names, *map(str, counts), below])
    return "\n".join([rows(*lines), "", *lost])


def at_first(results: Results) -> str:
    """The plan at the advised rate: what it loses to its best rate, and beside DP-SGD at its best one."""
    lines = [["batches", "cells", "median loss", "largest loss", "above DP-SGD", "within", "below"]]
    for order in ORDERS:
        lost, signs = [], []
        for cell in (replace(one, order=order) for one in settings(results)):
            if (advised := results.plans.get(cell, {}).get("advised")) in results.of(cell):
                lost.append((-compared(results, cell, cell, advised)[0], f"{cell.task}, {cell.epsilon:g}"))
                if results.of(alone := replace(cell, arm="DP-SGD")):
                    signs.append(compared(results, cell, alone, advised)[1])
        if lost:
            most, where = max(lost)
            median = f"{np.median([loss for loss, _ in lost]):.3f}"
            counts = [str(signs.count(sign)) for sign in (1, 0, -1)]
            lines.append([NAMES[order], str(len(lost)), median, f"{most:.3f} ({where})", *counts])
    return rows(*lines)


def engine(results: Results) -> str:
    """`make_private_with_epsilon` at the advised rate, beside tuned arms."""
    lines = [[*HEAD, "batches", "advice alone", "rate", "plan, tuned", "independent, tuned", "DP-SGD"]]
    for cell in (one for one in results.cells if one.arm == "engine"):
        found = [cell.order, shown(results.of(cell)[0.0]), f"{results.plans[cell]['advised']:.2g}"]
        arms: tuple[Arm, ...] = ("default", "independent", "DP-SGD")
        lines.append([*named(cell), *found, *(best(results, replace(cell, arm=arm)) for arm in arms)])
    return rows(*lines)


def clips(results: Results) -> str:
    """By clip norm: at the rate times clip norm that is best at clip norm 1, and at its own best one."""
    found = sorted({cell.clip for cell in results.cells if cell.clip < 1e5})
    lines = [["task", "ε", "norms at the start: 10, 50, 90 %", *(f"{clip:g}" for clip in found)]]
    for cell in (one for one in results.cells if one.clip == found[0] < 1.0):
        norms = " ".join(f"{norm:.2f}" for norm in results.norms.get(cell.task, []))
        line = [cell.task, f"{cell.epsilon:g}", norms]
        kept = results.best(replace(cell, clip=1.0))
        for one in (replace(cell, clip=clip) for clip in found):
            same = results.of(one).get(kept)
            line.append(best(results, one) + (f", {same.mean():.3f}" if same is not None else ""))
        lines.append(line)
    return rows(*lines)


def slopes(results: Results) -> str:
    """By scale of the noise, and points for each halving of it: a line fitted to the scales.

    Below, independent noise that is made so small that its predicted error is the plan's.
    """
    scales = sorted({cell.scale for cell in results.cells if cell.arm == "default"})
    lines = [["task, ε", "arm", "predicted error", *(f"× {scale:g}" for scale in scales), "points a halving"]]
    others = [one for one in results.cells if one.scale < 1.0 or one.scale > 1.0]
    alone = [one for one in others if one.arm == "independent"]
    for cell in [*sorted({replace(one, scale=1.0) for one in others if one not in alone}, key=str), *alone]:
        at = [replace(cell, scale=scale * cell.scale) for scale in scales]
        known = [one for one in at if results.of(one)]
        arm = NAMES[cell.arm] + (f", {NAMES[cell.order]}" if cell.arm != "DP-SGD" else "")
        arm += f", × {cell.scale:g}" if cell in alone else ""
        line = [f"{cell.task}, {cell.epsilon:g}", arm, f"{results.predicted(cell):.3f}"]
        slope = ""
        if len(known) > 1:
            means = [float(results.of(one)[results.best(one)].mean()) for one in known]
            slope = f"{-100 * np.polyfit(np.log2([one.scale for one in known]), means, 1)[0]:.1f}"
        lines.append([*line, *(best(results, one) for one in at), slope])
    return rows(*lines)


def tables(results: Results) -> str:
    runs: dict[str, dict[str, None]] = defaultdict(dict)
    for run in results.runs:
        runs[f"{run['machine']}, torch {run['torch']}, {run['date']}, commits"][run["commit"]] = None
    parts = [f"{run} {', '.join(commits)}." for run, commits in runs.items()]
    count = sum(len(each) for rates in results.cells.values() for each in rates.values())
    parts.append(f"{len(results.cells)} arms in {len(settings(results))} cells, {count} runs.")
    for title, made in (
        ("Every cell", grid), ("Above and below", summary), ("At the advised rate", at_first),
        ("Advice alone", engine), ("Clip norms", clips), ("More and less noise", slopes),
    ):  # fmt: skip
        parts.append(f"### {title}\n\n{made(results)}")
    return "\n\n".join(parts)

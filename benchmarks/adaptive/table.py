"""Tables of the grid: every cell, where the plan loses, advice alone, clip norms, and more or less noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np
from adaptive.cells import Cell, Results

HEAD = ["task", "ε", "optimizer, schedule"]


def rows(*lines: Iterable[str]) -> str:
    head, *others = (list(line) for line in lines)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *others))


def error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def named(cell: Cell) -> list[str]:
    return [cell.task, f"{cell.epsilon:g}", f"{cell.optimizer}, {cell.schedule}"]


def best(results: Results, cell: Cell) -> str:
    """The metric at the best rate, standard error in thousandths, and a star if the rate is at an end."""
    found = results.of(cell)
    if not found:
        return ""
    values = found[results.best(cell)]
    return f"{values.mean():.3f} ({1000 * error(values):.0f}){'*' if results.at_end(cell) else ''}"


def at_advised(results: Results, cell: Cell) -> str:
    rate = results.plans[cell]["advised"]
    found = results.cells[cell].get(rate)
    return f", {np.mean([*found.values()]):.3f}" if found else ""


def settings(results: Results) -> list[Cell]:
    """The plan's cells of clip norm 1 and its own noise, as those of a fixed order, sorted."""
    found = {
        replace(cell, order="fixed", arm="default")
        for cell in results.cells
        if cell.clip == cell.scale == 1.0 and cell.arm in ("default", "independent")
    }
    return sorted(found, key=lambda cell: (cell.task, cell.optimizer, cell.schedule, cell.epsilon))


def pair(results: Results, cell: Cell) -> list[str]:
    """Independent noise, the plan and its metric at the advised rate, predicted error over DP-SGD's."""
    if not results.of(cell):
        return [best(results, replace(cell, arm="independent")), "", ""]
    plan, alone = results.plans[cell], results.plans.get(replace(cell, arm="DP-SGD"))
    ratio = f"{plan['predicted'] / alone['predicted']:.2f}" if alone else ""
    mine = best(results, cell) + at_advised(results, cell)
    return [best(results, replace(cell, arm="independent")), mine, ratio]


def grid(results: Results) -> str:
    lines = [[*HEAD, "DP-SGD", "DP-SGD or banded, amplified"]]
    lines[0] += [
        f"{order}: {arm}" for order in ("fixed", "drawn") for arm in ("independent", "plan", "ratio")
    ]
    lines[0] += ["no noise"]
    for cell in settings(results):
        banded = best(results, replace(cell, arm="banded", order="drawn"))
        line = [*named(cell), best(results, replace(cell, arm="DP-SGD")), banded]
        line += pair(results, cell) + pair(results, replace(cell, order="drawn"))
        lines.append([*line, best(results, replace(cell, arm="no noise"))])
    return rows(*lines)


def compared(results: Results, cell: Cell, other: Cell, rate: float | None = None) -> tuple[float, float]:
    """Metric less that of another cell, each at its best rate or the first at `rate`, and standard error."""
    mine = results.of(cell)[results.best(cell) if rate is None else rate]
    theirs = results.of(other)[results.best(other)]
    return float(mine.mean() - theirs.mean()), float(np.hypot(error(mine), error(theirs)))


def summary(results: Results) -> str:
    """Cells in which the plan is above or below others by more than two standard errors.

    Each at its own best rate; "at its rate": the plan too at the best rate of the other.
    """
    head = ["batches", "arm", "less", "cells", "median", "above by 2 s.e.", "below by 2 s.e.", "at its rate"]
    lines, lost = [head], []
    pairs = [*product(("fixed", "drawn"), ("default",), ("independent", "DP-SGD"))]
    for order, arm, less in [*pairs, ("drawn", "banded", "DP-SGD")]:
        gains, above, below, there = [], 0, 0, []
        for cell in (replace(one, order=order, arm=arm) for one in settings(results)):  # type: ignore[arg-type]
            other = replace(cell, arm=less)  # type: ignore[arg-type]
            if not results.of(cell) or not results.of(other):
                continue
            gain, off = compared(results, cell, other)
            gains.append(gain)
            above, below = above + (gain > 2.0 * off), below + (gain < -2.0 * off)
            if gain < -2.0 * off:
                lost.append(f"{order}, {' '.join(named(cell))}, {arm} less {less}: {gain:+.3f}")
            if (rate := results.best(other)) in results.of(cell):
                same, off = compared(results, cell, other, rate)
                there.append(cell.optimizer if same < -2.0 * off else "")
        known = [one for one in there if one]
        counts = [str(len(gains)), f"{np.median(gains):+.3f}" if gains else "", str(above), str(below)]
        where = f" ({', '.join(sorted({*known}))})" if known else ""
        lines.append([order, arm, less, *counts, f"below in {len(known)} of {len(there)}{where}"])
    return "\n".join([rows(*lines), "", *(f"- {line}" for line in lost)])


def at_first(results: Results) -> str:
    """The plan at the advised rate: what it loses to its best rate, and beside DP-SGD at its best one."""
    lines = [["batches", "cells", "median loss", "largest loss", "above DP-SGD", "within 2 s.e.", "below"]]
    for order in ("fixed", "drawn"):
        lost, signs = [], []
        for cell in (replace(one, order=order) for one in settings(results)):  # type: ignore[arg-type]
            if not (advised := results.plans.get(cell, {}).get("advised")) or advised not in results.of(cell):
                continue
            loss = -compared(results, cell, cell, advised)[0]
            lost.append((loss, f"{cell.task}, {cell.epsilon:g}"))
            if results.of(alone := replace(cell, arm="DP-SGD")):
                gain, off = compared(results, cell, alone, advised)
                signs.append(int(gain > 2.0 * off) - int(gain < -2.0 * off))
        if lost:
            most, where = max(lost)
            counts = [str(signs.count(sign)) for sign in (1, 0, -1)]
            median = f"{np.median([loss for loss, _ in lost]):.3f}"
            lines.append([order, str(len(lost)), median, f"{most:.3f} ({where})", *counts])
    return rows(*lines)


def engine(results: Results) -> str:
    """`make_private_with_epsilon` at the advised rate, beside tuned arms."""
    lines = [[*HEAD, "batches", "advice alone", "rate", "plan, tuned", "independent, tuned", "DP-SGD"]]
    for cell in (one for one in results.cells if one.arm == "engine"):
        values = np.array([*results.cells[cell][0.0].values()])
        text = f"{values.mean():.3f} ({1000 * error(values):.0f})"
        others = [best(results, replace(cell, arm=arm)) for arm in ("default", "independent", "DP-SGD")]  # type: ignore[arg-type]
        lines.append([*named(cell), cell.order, text, f"{results.plans[cell]['advised']:.2g}", *others])
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
    found = sorted({cell.scale for cell in results.cells if cell.arm == "default"})
    columns = [*(f"× {scale:g}" for scale in found), "points a halving"]
    lines = [["task", "ε", "batches", "noise", "predicted", *columns]]
    others = [one for one in results.cells if one.scale < 1.0 or one.scale > 1.0]
    for cell in sorted({replace(one, scale=1.0) for one in others if one.arm != "independent"}, key=str):
        at = [replace(cell, scale=scale) for scale in found]
        known = [one for one in at if results.of(one)]
        means = [float(results.of(one)[results.best(one)].mean()) for one in known]
        slope = -np.polyfit(np.log2([one.scale for one in known]), means, 1)[0]
        head = [cell.task, f"{cell.epsilon:g}", cell.order, cell.arm, f"{results.predicted(cell):.3f}"]
        lines.append([*head, *(best(results, one) for one in at), f"{100 * slope:.1f}"])
    for cell in (one for one in others if one.arm == "independent"):
        head = [cell.task, f"{cell.epsilon:g}", cell.order, f"{cell.arm}, × {cell.scale:g}"]
        blank = [best(results, cell) if column == "× 1" else "" for column in columns]
        lines.append([*head, f"{results.predicted(cell):.3f}", *blank])
    return rows(*lines)


def tables(results: Results) -> str:
    parts = ["; ".join(f"{name} {value}" for name, value in run.items()) for run in results.runs]
    count = sum(len(each) for rates in results.cells.values() for each in rates.values())
    parts.append(f"{len(results.cells)} arms in {len(settings(results))} cells, {count} runs.")
    for title, made in (
        ("Every cell", grid), ("Above and below", summary), ("At the advised rate", at_first),
        ("Advice alone", engine), ("Clip norms", clips), ("More and less noise", slopes),
    ):  # fmt: skip
        parts.append(f"### {title}\n\n{made(results)}")
    return "\n\n".join(parts)

"""The table of the grid of objectives: every cell, and how often each plan is below independent noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from adaptive.cells import Results, best_rate
from adaptive.objectives import INDEPENDENT, NOISELESS, PLANS, Run

#: Arms whose best rate says nothing of the advice: their plan is for other sums, or they have no noise.
UNADVISED = (NOISELESS, "sums")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def _metric(found: dict[float, list[float]], rate: float) -> tuple[float, float]:
    values = np.array(found[rate])
    return float(values.mean()), _error(values)


def _differences(results: Results, run: Run) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Metric less that of independent noise, and standard error: at the own best rate, and at the other's."""
    mine, alone = results.of(run.key), results.of(replace(run, plan=INDEPENDENT).key)
    if not mine or not alone:
        return None
    rate = best_rate(alone)
    if rate not in mine:
        return None
    base, of_base = _metric(alone, rate)
    found = [_metric(mine, at) for at in (best_rate(mine), rate)]
    own, same = ((value - base, float(np.hypot(error, of_base))) for value, error in found)
    return own, same


def _cell(results: Results, run: Run) -> str:
    """The metric at the best rate, its standard error in thousandths, and that at the other's best rate."""
    found = results.of(run.key)
    if not found:
        return ""
    best = best_rate(found)
    value, error = _metric(found, best)
    end = "*" if best in (min(found), max(found)) else ""
    text = f"{value:.3f} ({1000 * error:.0f}){end}"
    alone = results.of(replace(run, plan=INDEPENDENT).key)
    if run.plan == INDEPENDENT or not alone or best_rate(alone) not in found:
        return text
    return f"{text}, {_metric(found, best_rate(alone))[0]:.3f}"


def advice(results: Results, runs: list[Run]) -> str:
    """For each task: how far the advised rate is from the best one, and what of the metric is lost there.

    Between the rates that were trained both are interpolated over logarithms, the best one by a parabola
    through it and its neighbours.
    """
    head = ["task", "runs", "advised over best rate: median (range)", "within 2", "lost: median (largest)"]
    lines = [_row(head), "|" + "---|" * len(head)]
    for name in dict.fromkeys(run.task.name for run in runs):
        ratios, lost = [], []
        for run in runs:
            found = results.of(run.key)
            if run.task.name != name or run.plan in UNADVISED or len(found) < 3 or not run.advised:
                continue
            x, y = np.log2(list(found)), np.array([np.mean(found[rate]) for rate in found])
            i = min(max(int(y.argmax()), 1), len(x) - 2)
            curve = np.polyfit(x[i - 1 : i + 2], y[i - 1 : i + 2], 2)
            best = x[y.argmax()]
            if curve[0] < 0.0:
                best = float(np.clip(-curve[1] / (2.0 * curve[0]), x[i - 1], x[i + 1]))
            at = np.log2(run.advised)
            ratios.append(2.0 ** (at - best))
            lost.append(y.max() - np.interp(at, x, y))
        if ratios:
            within = sum(0.5 <= ratio <= 2.0 for ratio in ratios)
            cells = [
                name,
                str(len(ratios)),
                f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
            lines.append(_row([*cells, str(within), f"{np.median(lost):.3f} ({max(lost):.3f})"]))
    return "\n".join(lines)


def table(results: Results, runs: list[Run]) -> str:
    """A line for each setting, a column for each plan: own best rate, then at that of independent noise."""
    names = [name for name in PLANS if any(run.plan == name for run in runs)]
    lines = [
        _row(["task", "ε", "batches", "optimizer", "schedule", *names]),
        "|" + "---|" * (5 + len(names)),
    ]
    for run in dict.fromkeys(replace(run, plan=INDEPENDENT) for run in runs):
        cells = [_cell(results, replace(run, plan=name)) for name in names]
        if any(cells):
            order = "drawn" if run.drawn else "fixed"
            head = [run.task.name, f"{run.epsilon:g}", order, run.optimizer, run.schedule]
            lines.append(_row([*head, *cells]))
    return "\n".join(lines)


def summary(results: Results, runs: list[Run]) -> str:
    """For each plan: cells, gains over independent noise, and cells that are two standard errors below it."""
    head = [
        "plan",
        "cells",
        "gain: median (worst)",
        "below by 2 s.e.",
        "at its rate: median (worst)",
        "below",
    ]
    lines = [_row(head), "|" + "---|" * len(head)]
    for name in PLANS:
        each = (_differences(results, run) for run in runs if run.plan == name != INDEPENDENT)
        pairs = [pair for pair in each if pair is not None]
        if not pairs:
            continue
        cells = [name, str(len(pairs))]
        for side in (0, 1):
            gains = np.array([pair[side] for pair in pairs])
            below = int(np.sum(gains[:, 0] < -2.0 * gains[:, 1]))
            cells += [f"{np.median(gains[:, 0]):+.3f} ({gains[:, 0].min():+.3f})", str(below)]
        lines.append(_row(cells))
    return "\n".join(lines)

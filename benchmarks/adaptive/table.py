"""Tables of results: one for each task, and one of learning rates."""

from __future__ import annotations

from statistics import median

import numpy as np
from adaptive.arms import ARMS
from adaptive.cells import Results, Setting, best_rate

REFERENCE, PLAIN, CORRECTED = "Adam, independent", "Adam", "CorrectedAdam"


def tables(results: Results, settings: list[Setting]) -> str:
    ordered = sorted(settings, key=lambda setting: (setting.sampled, setting.epsilon))
    names = list(dict.fromkeys(setting.task.name for setting in settings))
    parts = [_of_task(results, [s for s in ordered if s.task.name == name]) for name in names]
    return "\n\n".join([*parts, _of_rates(results, ordered)])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _of_task(results: Results, settings: list[Setting]) -> str:
    lines = [_row(["batches", "ε", *ARMS]), "|" + "---|" * (2 + len(ARMS))]
    for setting in settings:
        found = {arm: results.of(setting.arm(arm)) for arm in ARMS}
        if any(found.values()):
            cells = [_cell(of_rates) for of_rates in found.values()]
            lines.append(_row([_batches(setting), f"{setting.epsilon:g}", *cells]))
    return f"{settings[0].task.name}\n\n" + "\n".join(lines)


def _batches(setting: Setting) -> str:
    return "drawn" if setting.sampled else "fixed"


def _cell(found: dict[float, list[float]]) -> str:
    """Mean at the best rate, and in brackets its standard error in units of the last digit."""
    if not found:
        return ""
    best = best_rate(found)
    values = np.array(found[best])
    end = "*" if best in (min(found), max(found)) else ""
    return f"{values.mean():.3f} ({_error(values) * 1000:.0f}){end}"


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def _of_rates(results: Results, settings: list[Setting]) -> str:
    head = ["batches", "ε", "planned", "error e", "step r", "Adam: best rate", "at the same rate"]
    head += ["CorrectedAdam: best rate", "at the same rate"]
    lines = [_row(head), "|" + "---|" * len(head)]
    for sampled, epsilon in dict.fromkeys((setting.sampled, setting.epsilon) for setting in settings):
        here = [s for s in settings if (s.sampled, s.epsilon) == (sampled, epsilon)]
        some = [s for s in here if all(results.of(s.arm(arm)) for arm in (REFERENCE, PLAIN, CORRECTED))]
        if some:
            best, alone = some[0].rows()
            cells = [_batches(some[0]), f"{epsilon:g}", f"{best.name}, {best.sampling}"]
            cells += [
                f"× {best.predicted / alone.predicted:.3f}",
                f"{best.step_noise / alone.step_noise:.2f}",
            ]
            cells += _against(results, some, PLAIN) + _against(results, some, CORRECTED)
            lines.append(_row(cells))
    return "\n".join(lines)


def _against(results: Results, settings: list[Setting], arm: str) -> list[str]:
    """Best rate over the reference's, and the metric at the reference's rate less its own: median (range)."""
    ratios, gained = [], []
    for setting in settings:
        alone, ours = results.of(setting.arm(REFERENCE)), results.of(setting.arm(arm))
        rate = best_rate(alone)
        ratios.append(best_rate(ours) / rate)
        gained.append(float(np.mean(ours[rate]) - np.mean(alone[rate])))
    return [
        f"× {median(ratios):g} ({min(ratios):g} to {max(ratios):g})",
        f"{median(gained):+.3f} ({min(gained):+.3f} to {max(gained):+.3f})",
    ]

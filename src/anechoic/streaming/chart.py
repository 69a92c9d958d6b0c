"""What a stream released, as pictures: estimates over the steps, with their bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anechoic.plots.curves import Axis, Line, draw_curves
from anechoic.plots.style import blank, in_style, shown
from anechoic.streaming.release import Release

#: Points of one curve, and entries of a statistic that have curves of their own.
_POINTS, CURVES = 600, 4


def entries_of(release: Release, name: str) -> list[int]:
    """The entries of a statistic that are drawn: all, or a few that are spread over them."""
    size = release[name].value.size
    return list(range(size)) if size <= CURVES else np.linspace(0, size - 1, CURVES).astype(int).tolist()


@dataclass(frozen=True)
class Panel:
    """One picture of several."""

    heading: str
    lines: Sequence[Line]
    x: Axis
    y: Axis


def panel_figure(panels: Sequence[Panel], title: str) -> Any:
    """Draw pictures in rows of two."""
    with in_style():
        columns = min(len(panels), 2)
        rows = -(-len(panels) // columns)
        figure = blank((5.2 * columns, 3.9 * rows))
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, place)
            draw_curves(axes, panel.lines, (), panel.x, panel.y, panel.heading)
            axes.set_title(panel.heading)
        return shown(figure, title)


def curve_of(name: str, entry: int, made: Sequence[Release], wide: Sequence[Release]) -> Panel:
    """One entry of a statistic over the steps.

    Args:
        made: the releases, with the intervals of single steps.
        wide: the same with those that hold for all steps together.
    """
    label = f"{name}: {made[0].labels_of(name)[entry]}" if made[0].labels_of(name)[entry] else name
    places = sorted(set(np.linspace(0, len(made) - 1, min(len(made), _POINTS)).astype(int).tolist()))

    def part(releases: Sequence[Release], which: str) -> list[float]:
        return [float(getattr(releases[place][name], which).ravel()[entry]) for place in places]

    curve = Line(label, "planned", places, part(made, "value"), markers=False)
    return Panel(f"{label}, by step", [curve], Axis("step"), Axis("", form=short))


def stream_figure(name: str, made: Sequence[Release], wide: Sequence[Release], level: float) -> Any:
    """Curves of a statistic beside one another: see `Stream.plot`."""
    panels = [curve_of(name, entry, made, wide) for entry in entries_of(made[0], name)]
    last = ", ".join(f"{panel.lines[0].label} {panel.lines[0].y[-1]:.4g}" for panel in panels)
    return panel_figure(
        panels,
        f"{name} over {len(made):,} steps. Dark bands hold for one step with probability {level:.0%}, light"
        f" ones for all together. At the last step: {last}.",
    )


_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float) -> str:
    """A number for an axis: 327.5k, 1.2M, 0.0035."""
    for size, letter in _LARGE:
        if abs(value) >= 10 * size or (size >= 1e6 and abs(value) >= size):
            return f"{value / size:.4g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

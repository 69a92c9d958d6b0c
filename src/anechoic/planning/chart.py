"""A plan as two pictures: the error of its rows against their memory, and over the steps of the run."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anechoic.planning.families import family
from anechoic.planning.records import PlanRow
from anechoic.planning.table import several_lengths, size
from anechoic.statement.charts import FRAME, GRID, INK, SOFT, in_style, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Width and height of both pictures beside each other, and of one of them, in inches.
BESIDE, ALONE = (11.4, 5.0), (5.7, 5.0)
#: Mark and name of the families of strategies.
_FAMILIES = {
    "identity": ("o", "independent"),
    "banded_toeplitz": ("s", "banded"),
    "blt": ("^", "BLT"),
    "dense": ("D", "dense"),
    "output": ("P", "output"),
    "": ("X", "other"),
}
#: Colour of the sampling schemes; those of others follow in the order in which they appear.
_SCHEMES = {
    "FixedOrder": "#104e8b",
    "External": "#104e8b",
    "Poisson": "#c44e12",
    "RandomAllocation": "#b8860b",
    "CyclicPoisson": "#3b7d3b",
    "BallsInBins": "#7a4fa3",
    "MinSepSampling": "#a8325e",
}
_MORE = ("#1f8a8a", "#6b4b2a", "#3d444d")
#: Lines over the steps: of the choice, of independent noise, and of others.
_LINES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (2, 1)), (0, (6, 1.5, 1.2, 1.5)))
#: Around the choice, and what is kept of it.
_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 14,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 1.4,
    "linestyle": "none",
    "zorder": 5,
}
#: Ratio of errors from which their axis is logarithmic.
_FAR = 12.0
#: Letters of a name in a legend.
_LETTERS = 46


def plan_figure(rows: Sequence[PlanRow], axes: Any = None) -> Figure:
    """Both pictures of a plan: see `Plan.plot`.

    Args:
        rows: of the plan, ranked.
        axes: two of matplotlib's, for the pictures; None for a figure of its own.

    Raises:
        ValueError: for anything else than two axes.
        AnechoicError: without matplotlib.
    """
    with in_style():
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure

        own = axes is None
        if own:
            axes = Figure(figsize=BESIDE, layout="constrained").subplots(1, 2)
        if np.shape(axes) != (2,) or not all(isinstance(one, Axes) for one in axes):
            raise ValueError(f"axes={axes!r} must be two axes of matplotlib, as of plt.subplots(1, 2)[1].")
        for one, draw in zip(axes, (draw_memory, draw_steps), strict=True):
            draw(one, rows)
        found: Figure = axes[0].figure
        return shown(found, f"{what_memory_shows(rows)} {what_steps_show(rows)}") if own else found


def one_figure(rows: Sequence[PlanRow], draw: Callable[[Axes, Sequence[PlanRow]], None]) -> Figure:
    """One of the two pictures alone, to be drawn and written `in_style`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=ALONE, layout="constrained")
    draw(figure.add_subplot(), rows)
    return figure


def what_memory_shows(rows: Sequence[PlanRow]) -> str:
    """The first picture in words."""
    best, plain, long = next(row for row in rows if row.chosen), independent_of(rows), several_lengths(rows)
    against = (
        f", with {_value(best, long) / _value(plain, long):.3g} times that of independent noise"
        if plain is not None and plain is not best
        else ""
    )
    held = f"{best.history} rows" if best.memory is None else size(best.memory)
    return (
        f"Predicted noise against noise state of {len(rows)} candidates. Chosen: {_described(best, True)},"
        f" with a noise state of {held}{against}."
    )


def what_steps_show(rows: Sequence[PlanRow]) -> str:
    """The second picture in words."""
    ends = (
        f"{_described(row, several_lengths(rows))}: {row.course.errors[-1]:.3g}"
        for row in drawn_over_steps(rows)
    )
    return f"Std of the noise over the steps; after the last one, in clip norms: {'; '.join(ends)}."


def independent_of(rows: Sequence[PlanRow]) -> PlanRow | None:
    """The best row of independent noise with the steps of the choice and, if there is one, its batches."""
    best = next(row for row in rows if row.chosen)
    plain = [row for row in rows if family(row.mechanism.strategy) == "identity"]
    alike = [row for row in plain if row.mechanism.steps == best.mechanism.steps]
    return min(alike, key=lambda row: abs(math.log(row.batch_size / best.batch_size)) > 0.02, default=None)


def drawn_over_steps(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """The choice, independent noise, and the best two others, of classes and schemes not drawn yet if any."""
    best, plain = next(row for row in rows if row.chosen), independent_of(rows)
    found = [best] if plain is None or plain is best else [best, plain]
    taken = {_kind(row) for row in found}
    others = [row for row in rows if not any(row is one for one in found)]
    first = {kind: row for row in reversed(others) if (kind := _kind(row)) not in taken}
    ids = {id(row) for row in first.values()}
    ranked = sorted(others, key=lambda row: (id(row) not in ids, not row.frontier))  # a stable sort
    return [*found, *ranked[:2]]


def draw_memory(axes: Axes, rows: Sequence[PlanRow]) -> None:
    """Predicted error against the noise state: a mark a family, a colour a scheme, the frontier as a line."""
    plain, long = independent_of(rows), several_lengths(rows)
    unit = 1.0 if plain is None else _value(plain, long)
    x, y = _places([_held(row) for row in rows]), [_value(row, long) / unit for row in rows]
    colors = _colors(rows)
    for row, a, b in zip(rows, x, y, strict=True):
        _mark(axes, row, (a, b), colors[row.sampling])
    axes.set_xscale("log")
    axes.set_yscale("log")
    _memory_axis(axes, rows, x)
    held, least = _least_within(x, y)
    held, least = [*held, axes.get_xlim()[1]], [*least, least[-1]]
    axes.step(held, least, where="post", color=SOFT, linewidth=1.0, zorder=1, label="_frontier")
    _error_axis(axes, y)
    _plain_ticks(axes)
    against = "(clip norms)" if plain is None else "(independent noise = 1)"
    axes.set_ylabel(f"predicted noise{' over steps' if long else ''}\n{against}")
    axes.set_title("Noise in the iterates against memory", loc="left", fontweight="bold")
    _marks_legend(axes, rows, colors)


def draw_steps(axes: Axes, rows: Sequence[PlanRow]) -> None:
    """Standard deviation of the noise in the iterates over the steps, and which of them is kept."""
    from matplotlib.ticker import MaxNLocator

    drawn, colors, sizes = drawn_over_steps(rows), _colors(rows), [row.batch_size for row in rows]
    several = max(sizes) > 1.05 * min(sizes)  # by more than the rounding of a scheme
    tops: list[float] = []
    for row, line in zip(drawn, _LINES, strict=False):
        course = row.course
        places = np.unique(np.linspace(0, len(course.steps) - 1, 6).round().astype(int))
        places = places[1:-1] if len(places) > 2 else places
        axes.plot(
            course.steps,
            course.errors,
            color=colors[row.sampling],
            linestyle=line,
            linewidth=2.6 if row.chosen else 1.4,
            marker=_FAMILIES[family(row.mechanism.strategy)][0],
            markevery=[int(place) for place in places],
            markerfacecolor="white" if row.estimated else colors[row.sampling],
            markeredgecolor=colors[row.sampling] if row.estimated else "white",
            zorder=4 if row.chosen else 3,
            label=f"{'chosen: ' if row.chosen else ''}{_described(row, several)}",
        )
        tops.append(float(course.errors.max()))
    _kept(axes, drawn[0])
    if max(tops) > _FAR * min(tops):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    _plain_ticks(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("std of the noise in the iterate\n(clip norms)")
    axes.set_title("Noise over the steps", loc="left", fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), fontsize=9.5, handlelength=3.4)


# -- parts of the pictures -----------------------------------------------------------------------


def _kind(row: PlanRow) -> tuple[str, str]:
    strategy = row.mechanism.strategy
    return family(strategy) or type(strategy).__name__, row.sampling


def _value(row: PlanRow, long: bool) -> float:
    """What rows are ranked by."""
    return row.relative if long else row.predicted


def _held(row: PlanRow) -> int:
    """Noise state in bytes, or in rows where the dimension is unknown."""
    return row.history if row.memory is None else row.memory


def _mark(axes: Axes, row: PlanRow, place: tuple[float, float], color: str) -> None:
    """One row of the plan, hollow where its noise is an estimate, in a ring where it is the choice."""
    mark, _ = _FAMILIES[family(row.mechanism.strategy)]
    axes.plot(
        *place,
        marker=mark,
        markersize=7,
        markerfacecolor="white" if row.estimated else color,
        markeredgecolor=color if row.estimated else "white",
        markeredgewidth=1.4 if row.estimated else 0.8,
        zorder=4 if row.chosen else 3,
        label="_row",
    )
    if row.chosen:
        axes.plot(*place, **_RING, label="_chosen")
        axes.annotate(
            "chosen",
            place,
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=9.5,
            fontweight="bold",
            zorder=6,
        )


def _described(row: PlanRow, several: bool) -> str:
    """Its name in a legend, with the batch size where there are `several`."""
    batch = f", B = {row.batch_size:.4g}" if several else ""
    about = "≈ " if row.estimated else ""  # as in the table
    return f"{about}{textwrap.shorten(row.name, _LETTERS, placeholder=' …')}, {row.sampling}{batch}"


def _colors(rows: Sequence[PlanRow]) -> dict[str, str]:
    """Of the schemes of these rows, in the order of `_SCHEMES`."""
    found = {row.sampling for row in rows}
    others = [name for name in dict.fromkeys(row.sampling for row in rows) if name not in _SCHEMES]
    extra = {name: _MORE[place % len(_MORE)] for place, name in enumerate(others)}
    return {name: color for name, color in (_SCHEMES | extra).items() if name in found}


def _places(held: Sequence[int]) -> list[float]:
    """Where memory stands on a logarithmic axis; none stands to the left of the least."""
    some = [one for one in held if one > 0]
    none = min(some) / max(2.0, (max(some) / min(some)) ** 0.2) if some else 1.0
    return [float(one) if one else none for one in held]


def _least_within(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """The corners of the frontier: places where less error is to be had for more memory."""
    found: list[tuple[float, float]] = []
    for a, b in sorted(zip(x, y, strict=True)):
        if not found or b < found[-1][1]:
            found.append((a, b))
    return [a for a, _ in found], [b for _, b in found]


def _memory_axis(axes: Axes, rows: Sequence[PlanRow], x: Sequence[float]) -> None:
    """Ticks at powers of two, and at 0 where rows hold nothing."""
    from matplotlib.ticker import NullLocator

    held = [_held(row) for row in rows]
    known = all(row.memory is not None for row in rows)
    some = [one for one in held if one > 0]
    ticks = dict.fromkeys(_powers(min(some), max(some)), "") if some else {}
    labels = {tick: size(tick) if known else f"{tick:g}" for tick in ticks}
    if 0 in held:
        labels = {min(x): "0", **labels}
    axes.set_xticks(list(labels), labels=list(labels.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    wide = max(1.5, (max(x) / min(x)) ** 0.08)
    axes.set_xlim(min(x) / wide, max(x) * wide)
    axes.set_xlabel("noise state" if known else "noise state (rows, each as large as the model)")


def _plain_ticks(axes: Axes) -> None:
    """The house's ticks and grid, whatever style rules when the figure is written."""
    axes.tick_params(color=FRAME, labelcolor=SOFT, labelsize=10.5)
    axes.tick_params(axis="y", which="both", left=False)
    axes.grid(visible=True, axis="y", color=GRID)


def _powers(least: float, most: float) -> list[float]:
    """At most six powers of two from `least` to `most`, equally far apart; `least` where there is none."""
    first, last = math.ceil(math.log2(least) - 1e-9), math.floor(math.log2(most) + 1e-9)
    apart = max(1, -(-(last - first) // 5))
    return [2.0**power for power in range(first, last + 1, apart)] or [least]


def _error_axis(axes: Axes, y: Sequence[float]) -> None:
    """Ticks at round numbers of a logarithmic axis, with room for the name of the choice below."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = min(y), max(y)
    wide = max(1.15, (high / low) ** 0.12)
    bottom, top = low / wide**2.2, high * wide
    if top / bottom < 5:
        ticks = [
            tick for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(bottom, top) if tick > 0
        ]
    else:
        marks = (1, 2, 5) if top / bottom < 1000 else (1,)
        powers = range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
        ticks = [mark * 10.0**power for power in powers for mark in marks]
    axes.set_yticks([tick for tick in ticks if bottom <= tick <= top])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.set_ylim(bottom, top)


def _kept(axes: Axes, best: PlanRow) -> None:
    """Marks the iterates that are kept, in the run of the choice."""
    objective, n, course = best.objective, best.mechanism.steps, best.course
    if objective.worst:
        place = int(course.errors.argmax())
        axes.plot(course.steps[place], course.errors[place], **_RING, label="the largest counts")
    elif objective.averaged:
        axes.axvspan(
            n - objective.kept + 1, n, color=GRID, alpha=0.7, linewidth=0, zorder=0, label="kept: their mean"
        )
    elif objective.weight:
        label = f"kept: the last iterate, weight {objective.weight:g}"
        axes.plot(n, course.errors[-1], **_RING, label=label)


def _marks_legend(axes: Axes, rows: Sequence[PlanRow], colors: dict[str, str]) -> None:
    """What colours, marks and the line mean: those that are there."""
    from matplotlib.lines import Line2D

    def entry(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, **{"linestyle": "none", **style})

    found = {family(row.mechanism.strategy) for row in rows}
    handles = [entry(name, marker="o", color=color) for name, color in colors.items()]
    handles += [
        entry(name, marker=mark, color=SOFT) for key, (mark, name) in _FAMILIES.items() if key in found
    ]
    handles.append(entry("best within memory", linestyle="solid", color=SOFT, linewidth=1.0))
    if any(row.estimated for row in rows):
        handles.append(entry("≈ estimate", marker="o", markerfacecolor="white", color=SOFT))
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.16),
        fontsize=9.5,
        ncols=3,
        columnspacing=0.9,
        handlelength=1.2,
    )

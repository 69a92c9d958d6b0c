"""A plan as two pictures: the error of its rows against their memory, and over the steps of the run."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anechoic.plots import style
from anechoic.plots.style import SOFT, as_image, blank, in_style, shown
from anechoic.statement.rounding import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Mark and name of the families of strategies, colour of the schemes, and lines over the steps.
_MARKS = {
    "identity": ("o", "independent"),
    "banded_toeplitz": ("s", "banded"),
    "blt": ("^", "BLT"),
    "dense": ("D", "dense"),
    "output": ("P", "output"),
    "": ("X", "other"),
}
_SCHEMES = {
    "FixedOrder": style.BLUE,
    "External": style.BLUE,
    "Poisson": style.ORANGE,
    "FixedSize": "#5b7c99",
    "RandomAllocation": "#b8860b",
    "CyclicPoisson": style.GREEN,
    "BallsInBins": style.VIOLET,
    "MinSepSampling": "#a8325e",
}
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (2, 1)), (0, (6, 1.5, 1.2, 1.5)))
_RING: dict[str, Any] = {"marker": "o", "ms": 14, "mfc": "none", "mec": style.INK, "ls": "none", "zorder": 5}


def plan_figure(rows: Sequence[Any]) -> Figure:
    """Draw noise against memory, and noise over the steps: see `Plan.plot`."""
    with in_style():
        figure = blank((11.4, 5.0))
        left, right = figure.subplots(1, 2)
        return shown(figure, f"{draw_memory(left, rows)} {draw_steps(right, rows)}")


def plan_images(rows: Sequence[Any]) -> list[tuple[str, str]]:
    """Return both pictures of a plan as elements of a page, each with its words."""
    with in_style():
        figures = blank((5.7, 5.0)), blank((5.7, 5.0))
        words = [
            draw(f.add_subplot(), rows) for draw, f in zip((draw_memory, draw_steps), figures, strict=True)
        ]
        return [(as_image(figure, said), said) for figure, said in zip(figures, words, strict=True)]


def draw_memory(axes: Axes, rows: Sequence[Any]) -> str:
    """Draw predicted error against noise state, and the frontier of both; returns the words for it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    best, plain = next(row for row in rows if row.chosen), independent_of(rows)
    long = len({row.mechanism.steps for row in rows}) > 1
    known = all(row.memory is not None for row in rows)
    errors = {id(row): row.relative if long else row.predicted for row in rows}
    unit = 1.0 if plain is None else errors[id(plain)]
    held = [row.memory if known else row.history for row in rows]
    least, most = min(filter(None, held), default=1), max(1, *held)
    nothing = least / max(2.0, (most / least) ** 0.2)  # where rows without noise state stand
    x, y = [count or nothing for count in held], [errors[id(row)] / unit for row in rows]
    colors = _colors(rows)
    for row, *point in zip(rows, x, y, strict=True):
        look: dict[str, Any] = {"ms": 7, "color": colors[row.sampling], "mec": "white", "zorder": 3}
        axes.plot(*point, _MARKS[row.family][0], **look, label="_row")
        if row.chosen:
            axes.plot(*point, **_RING, label="_chosen")
            below: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top"}
            axes.annotate("chosen", (point[0], point[1]), (0, -12), weight="bold", **below)
    low, high, wide = min(y), max(y), 1.4 * (max(x) / min(x)) ** 0.08
    axes.set(xscale="log", xlim=(min(x) / wide, max(x) * wide))
    axes.set(yscale="log", ylim=(low / 1.3 * (low / high) ** 0.2, 1.15 * high * (high / low) ** 0.1))
    ends = [*sorted(zip(x, y, strict=True)), (max(x) * wide, math.inf)]
    corners, frontier = [a for a, _ in ends], np.minimum.accumulate([b for _, b in ends])
    axes.step(corners, frontier, where="post", color=SOFT, lw=1.0, zorder=1, label="_frontier")
    first, last = math.log2(least), math.log2(most)
    powers = 2.0 ** np.arange(round(first), last + 0.5, max(1, round((last - first) / 4)))
    ticks = [power for power in powers.tolist() if any(held) and power > 0.99 * least]
    axes.set_xticks([nothing] * (0 in held) + ticks)
    form = size if known else "{:g}".format
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: "0" if v < 0.9 * least else form(v)))
    few = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]) if high < 5 * low else LogLocator(subs=(1, 2, 5))
    axes.yaxis.set(major_locator=few, major_formatter=FuncFormatter(lambda v, _: f"{v:.3g}"))
    for drawn in (axes.xaxis, axes.yaxis):
        drawn.set_minor_locator(NullLocator())
    axes.set_title("Noise in the iterates against memory")
    axes.set_xlabel("noise state" if known else "noise state (rows, each as large as the model)")
    against = "(clip norms)" if plain is None else "(independent noise = 1)"
    axes.set_ylabel(f"predicted noise{' over steps' if long else ''}\n{against}")
    _name_marks(axes, rows, colors)
    ratio = errors[id(best)] / unit
    share = "" if plain is None or plain is best else f", with {ratio:.3g} times that of independent noise"
    return (
        f"Predicted noise against noise state of {len(rows)} candidates. Chosen: {best.name},"
        f" {best.sampling}, with a noise state of {form(best.memory if known else best.history)}{share}."
    )


def _name_marks(axes: Axes, rows: Sequence[Any], colors: dict[str, str]) -> None:
    """Name the colours, marks and the line that are there."""
    from matplotlib.lines import Line2D

    named = [(name, "o", color) for name, color in colors.items()]
    named += [(_MARKS[key][1], _MARKS[key][0], SOFT) for key in dict.fromkeys(row.family for row in rows)]
    handles = [Line2D([], [], label=name, ls="none", marker=mark, color=color) for name, mark, color in named]
    handles.append(Line2D([], [], label="best within memory", color=SOFT, lw=1.0))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.16), ncols=3, columnspacing=0.9)


def draw_steps(axes: Axes, rows: Sequence[Any]) -> str:
    """Draw the std of the noise in the iterates over the steps; returns the words for it."""
    from matplotlib.ticker import MaxNLocator

    drawn, colors, sizes = drawn_over_steps(rows), _colors(rows), [row.batch_size for row in rows]
    several, ends, tops = max(sizes) > 1.05 * min(sizes), list[str](), list[float]()
    for row, dashes in zip(drawn, _DASHES, strict=False):
        steps, errors = row.noise_over_time()
        batch = f", B = {row.batch_size:.4g}" if several else ""
        label = f"{textwrap.shorten(row.name, 46, placeholder=' …')}, {row.sampling}{batch}"
        look: dict[str, Any] = {"color": colors[row.sampling], "ls": dashes, "lw": 2.6 if row.chosen else 1.4}
        look |= {"marker": _MARKS[row.family][0], "markevery": max(1, len(steps) // 4), "mec": "white"}
        name = f"{'chosen: ' * row.chosen}{label}"
        axes.plot(steps, errors, **look, zorder=4 if row.chosen else 3, label=name)
        ends.append(f"{label}: {errors[-1]:.3g}")
        tops.append(float(errors.max()))
    _mark_kept(axes, drawn[0])
    if max(tops) > 12 * min(tops):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set(xlabel="step", title="Noise over the steps")
    axes.set_ylabel("std of the noise in the iterate\n(clip norms)")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), handlelength=3.4)
    return f"Std of the noise over the steps; after the last one, in clip norms: {'; '.join(ends)}."


def _mark_kept(axes: Axes, best: Any) -> None:
    """Mark the iterates that are kept, in the run of the choice."""
    objective, n, (steps, errors) = best.objective, best.mechanism.steps, best.noise_over_time()
    if objective.worst:
        place = int(errors.argmax())
        axes.plot(steps[place], errors[place], **_RING, label="the largest counts")
    elif objective.averaged:
        first = n - objective.kept + 1
        axes.axvspan(first, n, color=style.GRID, alpha=0.7, lw=0, zorder=0, label="kept: their mean")
    elif objective.weight:
        axes.plot(n, errors[-1], **_RING, label=f"kept: the last iterate, weight {objective.weight:g}")


def independent_of(rows: Sequence[Any]) -> Any:
    """Return the best row of independent noise with the steps and batches of the choice, if any, or None."""
    best = next(row for row in rows if row.chosen)
    plain = [row for row in rows if row.family == "identity" and row.mechanism.steps == best.mechanism.steps]
    return min(plain, key=lambda row: abs(math.log(row.batch_size / best.batch_size)) > 0.02, default=None)


def drawn_over_steps(rows: Sequence[Any]) -> list[Any]:
    """Return the choice, independent noise, and the best two others, of kinds not drawn yet if there are."""
    best, plain = next(row for row in rows if row.chosen), independent_of(rows)
    found = [best] if plain is None or plain is best else [best, plain]
    firsts = {(row.family, row.sampling): row for row in reversed([*found, *rows])}  # the best of each kind
    others = [row for row in rows if not any(row is one for one in found)]
    others.sort(key=lambda row: (firsts[row.family, row.sampling] is not row, not row.frontier))
    return [*found, *others[:2]]


def _colors(rows: Sequence[Any]) -> dict[str, str]:
    """Return the colour of each scheme of these rows."""
    return {row.sampling: _SCHEMES.get(row.sampling, "#1f8a8a") for row in rows}

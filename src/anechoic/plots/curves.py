"""Pictures of curves and of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic.plots.style import BLUE, ORANGE, ROLES, blank, in_style, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line:
    """One curve: its name, its role (a key of `ROLES`), its points, half-lengths of error bars, or None."""

    label: str
    role: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    markers: bool = True


@dataclass(frozen=True)
class Level:
    """A horizontal line across the picture."""

    label: str
    role: str
    y: float


@dataclass(frozen=True)
class Axis:
    """One axis: label, whether it is logarithmic, ticks where they are given, tick format, start at 0."""

    label: str
    log: bool = False
    ticks: Sequence[float] | None = None
    form: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    zero: bool = False


def line_figure(
    lines: Sequence[Line], *, x: Axis, y: Axis, levels: Sequence[Level] = (), title: str
) -> Figure:
    """Draw curves with error bars and levels.

    Args:
        title: what is shown, for readers who cannot see it.

    Raises:
        ValueError: if there is nothing to draw, or a value is not finite.
        AnechoicError: without matplotlib.
    """
    with in_style():
        figure = blank((5.3, 3.7))
        handles = draw_curves(figure.add_subplot(), lines, levels, x, y, title)
        columns = 2 if len(handles) <= 4 else 3  # two rows
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, borderaxespad=0)
        return shown(figure, title)


def heat_figure(matrix: ArrayLike, *, label: str, title: str) -> Figure:
    """Draw one coloured cell an entry, and a colour bar symmetric about zero.

    Colours follow the signed square root of the entries, so that small ones stay visible.

    Args:
        matrix: shape (rows, columns), finite.
        label: caption above the map.
        title: what it shows, for readers who cannot see it.

    Raises:
        ValueError: if the matrix is empty or not finite.
        AnechoicError: without matplotlib.
    """
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"heat map {title!r} needs a finite matrix; it has shape {values.shape}.")
    with in_style():
        from matplotlib.colors import FuncNorm, LinearSegmentedColormap

        bound = float(np.abs(values).max()) or 1.0
        figure = blank((5.0, 4.4))
        axes = figure.add_subplot()
        colours = LinearSegmentedColormap.from_list("anechoic", [ORANGE, "white", BLUE], N=255)  # 0 is white
        scales = (lambda v: np.sign(v) * np.sqrt(np.abs(v)), lambda v: np.sign(v) * np.square(v))
        norm = FuncNorm(scales, vmin=-bound, vmax=bound, clip=True)
        image = axes.imshow(values, cmap=colours, norm=norm, interpolation="none")
        axes.set(title=label, xlabel="step of the fresh noise")
        for drawn, count in zip((axes.yaxis, axes.xaxis), values.shape, strict=True):
            drawn.set_ticks(sorted({0, count // 2, count - 1}))
        axes.grid(False)
        axes.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
        ticks = [share * bound for share in (1.0, 0.5, 0.25, 0.0, -0.25, -0.5, -1.0)]
        bar.set_ticks(ticks, labels=[f"{tick:.3g}".replace("-", "−") for tick in ticks])
        bar.ax.minorticks_off()
        bar.ax.grid(False)
        return shown(figure, title)


def draw_curves(
    axes: Axes, lines: Sequence[Line], levels: Sequence[Level], x: Axis, y: Axis, title: str
) -> list[Any]:
    """Draw curves with error bars, levels and axes; returns what a legend names."""
    numbers = [v for line in lines for v in (*line.x, *line.y, *(line.error or ()))]
    if not numbers or not all(map(math.isfinite, [*numbers, *(level.y for level in levels)])):
        raise ValueError(f"chart {title!r} needs at least one point, and finite values only.")
    handles: list[Any] = []
    for line in lines:
        bars = line.error if line.error is not None and any(line.error) else None
        drawn = axes.errorbar(
            line.x,
            line.y,
            bars,
            marker="o" if line.markers else "",
            markeredgecolor="white",
            elinewidth=1.2,
            capsize=3.5,
            zorder=3,
            **ROLES.get(line.role, {}),
        )
        drawn.lines[0].set_label(line.label)
        handles.append(drawn.lines[0])
    for level in levels:
        handles.append(axes.axhline(level.y, label=level.label, zorder=2, **ROLES.get(level.role, {})))
    _axis(axes, "x", x)
    _axis(axes, "y", y)
    return handles


def _axis(axes: Axes, which: str, axis: Axis) -> None:
    """Set scale, label, ticks and start of one axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.set(**{f"{which}scale": "log" if axis.log else "linear", f"{which}label": axis.label})
    drawn = axes.xaxis if which == "x" else axes.yaxis
    if axis.zero:
        axes.set(**{f"{which}lim": (0, None)})
    if axis.ticks is not None:
        drawn.set_ticks(list(axis.ticks))
    elif not axis.log:
        drawn.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    drawn.set_minor_locator(NullLocator())
    drawn.set_major_formatter(FuncFormatter(lambda value, _: axis.form(value).replace("-", "−")))

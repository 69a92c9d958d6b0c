"""Charts as SVG, drawn by matplotlib without pyplot; equal input gives equal text."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic.errors import AnechoicError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, FRAME, GRID = "#1c2128", "#57606a", "#9aa3ad", "#e8ebef"
_ORANGE, _BLUE = "#c44e12", "#104e8b"
#: How a role is drawn.
_ROLES: dict[str, dict[str, Any]] = {
    "independent": {"color": _ORANGE},
    "damped": {"color": "#3b7d3b"},
    "planned": {"color": _BLUE},
    "tree": {"color": "#3b7d3b", "linestyle": (0, (5, 1.5))},
    "blt": {"color": _BLUE},
    "banded": {"color": "#7a4fa3", "linestyle": (0, (2, 1))},
    "clipped": {"color": "#3d444d", "linestyle": (0, (4, 2.5)), "linewidth": 1.2},
    "plain": {"color": "#8b949e", "linestyle": (0, (1.2, 2)), "linewidth": 1.4},
}
_STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same layout everywhere
    "text.color": INK,
    "text.parse_math": False,  # a $ is a $
    "axes.edgecolor": FRAME,
    "axes.labelcolor": SOFT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.06,
    "axes.ymargin": 0.06,
    "grid.color": GRID,
    "xtick.color": FRAME,
    "xtick.labelcolor": SOFT,
    "ytick.left": False,
    "ytick.labelcolor": SOFT,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "figure.dpi": 72,
    "svg.fonttype": "path",  # letters as outlines: no typeface has to be there
    "svg.hashsalt": "anechoic",
}
#: Entries, as shares of the largest, that the colour bar names.
_SHARES = (1.0, 0.5, 0.25, 0.0, -0.25, -0.5, -1.0)


@dataclass(frozen=True)
class Line:
    """One curve.

    Args:
        label: name in the legend.
        role: how it is drawn: a key of `_ROLES`.
        x, y: values, of the same length.
        error: half-lengths of the error bars, or None.
        markers: whether points are marked.
        bands: (lower ends, upper ends) of areas behind the curve, the widest first.
    """

    label: str
    role: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    markers: bool = True
    bands: Sequence[tuple[Sequence[float], Sequence[float]]] = ()


@dataclass(frozen=True)
class Level:
    """A horizontal line across the chart, dashed."""

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


@dataclass(frozen=True)
class Panel:
    """One picture of a row: its curves, axes and levels, and the heading above it."""

    heading: str
    lines: Sequence[Line]
    x: Axis
    y: Axis
    levels: Sequence[Level] = ()


def line_figure(
    lines: Sequence[Line], *, x: Axis, y: Axis, levels: Sequence[Level] = (), title: str
) -> Figure:
    """What `line_chart` draws, as a matplotlib figure that a notebook shows; its `savefig` writes it."""
    with in_style():
        return shown(_line_figure(lines, x, y, levels, title), title)


def heat_figure(matrix: ArrayLike, *, label: str, title: str, limit: float | None = None) -> Figure:
    """What `heat_map` draws, as a matplotlib figure that a notebook shows."""
    with in_style():
        return shown(_heat_figure(_finite(matrix, title), label, limit), title)


def panel_figure(panels: Sequence[Panel], title: str) -> Figure:
    """Pictures in rows of two, as a matplotlib figure that a notebook shows.

    Args:
        panels: at least one; each has its own legend.
        title: what they show, for readers who cannot see it.

    Raises:
        ValueError: if there is nothing to draw, or a value is not finite.
        AnechoicError: without matplotlib.
    """
    with in_style():
        from matplotlib.figure import Figure

        columns = min(len(panels), 2)
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(5.2 * columns, 3.9 * rows), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, place)
            handles = _curves(axes, panel.lines, panel.levels, panel.heading)
            _axis(axes, "x", panel.x)
            _axis(axes, "y", panel.y)
            axes.set_title(panel.heading, loc="left", fontweight="bold")
            if len(handles) > 1:
                axes.legend(handles=handles, loc="best", fontsize=9.5)
        return shown(figure, title)


def shown(figure: Figure, title: str) -> Figure:
    """The figure, which notebooks show from now on as `inline` does: with `title` for who cannot see it."""
    vars(figure)["_repr_html_"] = partial(_cell, figure, title)
    return figure


def _cell(figure: Figure, title: str) -> str:
    with in_style():
        return inline(figure, title)


def line_chart(lines: Sequence[Line], *, x: Axis, y: Axis, levels: Sequence[Level] = (), title: str) -> str:
    """An <img> element for a page, with the curves, their error bars, the levels, the axes and a legend.

    Args:
        lines: at least one.
        x, y: axes.
        levels: horizontal lines, for instance what is reached without privacy.
        title: what the chart shows, for readers who cannot see it.

    Raises:
        ValueError: if there is nothing to draw, or a value is not finite.
        AnechoicError: without matplotlib.
    """
    with in_style():
        return inline(_line_figure(lines, x, y, levels, title), title)


def line_chart_file(
    lines: Sequence[Line], *, x: Axis, y: Axis, levels: Sequence[Level] = (), title: str
) -> str:
    """The text of an SVG file: as `line_chart`, with its title above it."""
    with in_style():
        return as_file(_line_figure(lines, x, y, levels, title, heading=True), title)


def heat_map(matrix: ArrayLike, *, label: str, title: str, limit: float | None = None) -> str:
    """An <img> element for a page: one coloured cell an entry, and a colour bar symmetric about zero.

    Colours follow the signed square root of the entries, so that small ones stay visible.

    Args:
        matrix: shape (rows, columns), finite.
        label: caption above the map.
        title: what it shows, for readers who cannot see it.
        limit: entry with the full colour; None for the largest absolute value.

    Raises:
        ValueError: if the matrix is empty or not finite.
        AnechoicError: without matplotlib.
    """
    with in_style():
        return inline(_heat_figure(_finite(matrix, title), label, limit), title)


# -- drawing -------------------------------------------------------------------------------------


def _line_figure(
    lines: Sequence[Line], x: Axis, y: Axis, levels: Sequence[Level], title: str, *, heading: bool = False
) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    pad = 0.15 if heading else 0.03
    figure = Figure(
        figsize=(7.0, 3.9) if heading else (5.3, 3.7), layout=ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    )
    axes = figure.add_subplot()
    handles = _curves(axes, lines, levels, title)
    _axis(axes, "x", x)
    _axis(axes, "y", y)
    columns = 2 if len(handles) <= 4 else 3  # two rows
    if heading:
        axes.set_title(title, loc="left", pad=46, fontweight="bold", fontsize=12.5)
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns)
    else:
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, borderaxespad=0)
    return figure


def _curves(axes: Axes, lines: Sequence[Line], levels: Sequence[Level], title: str) -> list[Any]:
    """Curves with bands and error bars, and levels; what a legend names."""
    drawn = [v for line in lines for v in (*line.x, *line.y, *(line.error or ()))]
    if not drawn or not all(map(math.isfinite, [*drawn, *(level.y for level in levels)])):
        raise ValueError(f"chart {title!r} needs at least one point, and finite values only.")
    handles: list[Any] = []
    for line in lines:
        style = _ROLES.get(line.role, {})
        (curve,) = axes.plot(
            line.x,
            line.y,
            label=line.label,
            marker="o" if line.markers else "",
            markeredgecolor="white",
            zorder=3,
            **style,
        )
        for depth, (low, high) in enumerate(line.bands):
            axes.fill_between(line.x, low, high, color=curve.get_color(), alpha=0.15 + 0.2 * depth, lw=0)
        if line.error is not None and any(line.error):
            axes.errorbar(
                line.x, line.y, line.error, fmt="none", ecolor=curve.get_color(), elinewidth=1.2, capsize=3.5
            )
        handles.append(curve)
    handles += [
        axes.axhline(level.y, label=level.label, zorder=2, **_ROLES.get(level.role, {})) for level in levels
    ]
    return handles


def _axis(axes: Axes, which: str, axis: Axis) -> None:
    """Scale, label, ticks and start of one axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.set(**{f"{which}scale": "log" if axis.log else "linear"})
    drawn = axes.xaxis if which == "x" else axes.yaxis
    drawn.set_label_text(axis.label)
    if axis.zero:
        axes.set(**{f"{which}lim": (0, None)})
    if axis.ticks is not None:
        drawn.set_ticks(list(axis.ticks))
    elif not axis.log:
        drawn.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    drawn.set_minor_locator(NullLocator())
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _minus(axis.form(value))))


def _finite(matrix: ArrayLike, title: str) -> NDArray[np.float64]:
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"heat map {title!r} needs a finite matrix; it has shape {values.shape}.")
    return values


def _heat_figure(values: NDArray[np.float64], label: str, limit: float | None) -> Figure:
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap
    from matplotlib.figure import Figure

    bound = float(limit if limit is not None else np.abs(values).max()) or 1.0
    figure = Figure(figsize=(5.0, 4.4), layout="constrained")
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("anechoic", [_ORANGE, "white", _BLUE], N=255)  # 0 is white
    image = axes.imshow(
        values / bound,
        cmap=colours,
        norm=FuncNorm((_signed_root, _signed_square), vmin=-1, vmax=1, clip=True),
        interpolation="none",
    )
    rows, columns = values.shape
    axes.set_title(label, loc="left", fontweight="bold")
    axes.set_xticks(sorted({0, columns // 2, columns - 1}))
    axes.set_yticks(sorted({0, rows // 2, rows - 1}))
    axes.set_xlabel("step of the fresh noise")
    axes.grid(False)
    axes.spines[:].set_visible(True)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    bar.set_ticks(_SHARES, labels=[_minus(f"{share * bound:.3g}") for share in _SHARES])
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.grid(False)
    return figure


def _signed_root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _signed_square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def _minus(text: str) -> str:
    return text.replace("-", "−")


# -- as text -------------------------------------------------------------------------------------


@contextmanager
def in_style() -> Iterator[None]:
    """matplotlib in the style of the charts, whatever the user's own is.

    Raises:
        AnechoicError: without matplotlib, naming what to install.
    """
    try:
        from matplotlib import style
    except ImportError as error:
        raise AnechoicError(
            "charts need matplotlib, which is not installed: pip install 'anechoic[plot]'"
        ) from error
    with style.context(_STYLE, after_reset=True):
        yield


def as_file(figure: Figure, title: str) -> str:
    """The text of an SVG file, on white.

    Args:
        figure: drawn, and to be written, in the style of `in_style`.
        title: what it shows, for readers who cannot see it.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    metadata = {"Title": title, "Date": None, "Creator": None, "Format": None, "Type": None}
    FigureCanvasSVG(figure).print_figure(out, format="svg", dpi=144, metadata=metadata, facecolor="white")
    return out.getvalue()


def inline(figure: Figure, title: str) -> str:
    """The same as an element of an HTML page: a picture that brings its own paper, whatever the page's is."""
    data = base64.b64encode(as_file(figure, title).encode()).decode()
    return f'<img class="chart" alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'

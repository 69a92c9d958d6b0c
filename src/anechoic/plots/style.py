"""The one style of all pictures, and how they reach a notebook, a page and a file.

Figures are drawn by matplotlib without pyplot. Equal input gives equal text.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from anechoic.errors import AnechoicError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, FRAME, GRID = "#1c2128", "#57606a", "#9aa3ad", "#e8ebef"
BLUE, ORANGE, GREEN, VIOLET = "#104e8b", "#c44e12", "#3b7d3b", "#7a4fa3"
#: How a role is drawn.
ROLES: dict[str, dict[str, Any]] = {
    "independent": {"color": ORANGE},
    "damped": {"color": GREEN},
    "planned": {"color": BLUE},
    "tree": {"color": GREEN, "linestyle": (0, (5, 1.5))},
    "blt": {"color": BLUE},
    "banded": {"color": VIOLET, "linestyle": (0, (2, 1))},
    "clipped": {"color": "#3d444d", "linestyle": (0, (4, 2.5)), "linewidth": 1.2},
    "plain": {"color": "#8b949e", "linestyle": (0, (1.2, 2)), "linewidth": 1.4},
}
_STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
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
    "grid.color": GRID,
    "xtick.color": FRAME,
    "xtick.labelcolor": SOFT,
    "ytick.left": False,
    "ytick.labelcolor": SOFT,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.dpi": 72,
    "svg.fonttype": "path",  # letters as outlines: no typeface has to be there
    "svg.hashsalt": "anechoic",
}


@contextmanager
def in_style() -> Iterator[None]:
    """Set matplotlib to the style of the pictures, whatever the user's own is.

    Raises:
        AnechoicError: without matplotlib, naming what to install.
    """
    try:
        from matplotlib import style
    except ImportError as missing:
        raise AnechoicError(
            "charts need matplotlib, which is not installed: pip install 'anechoic[plot]'"
        ) from missing
    with style.context(_STYLE, after_reset=True):
        yield


def blank(inches: tuple[float, float]) -> Figure:
    """Return an empty figure of a size."""
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def shown(figure: Figure, title: str) -> Figure:
    """Return the figure, which notebooks show from now on as `as_image` does."""
    vars(figure)["_repr_html_"] = partial(as_image, figure, title)
    return figure


def as_svg(figure: Figure, title: str) -> str:
    """Return the text of an SVG file, on white; `title` says what it shows, for who cannot see it."""
    with in_style():
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        out = io.StringIO()
        metadata = {"Title": title, "Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_figure(out, format="svg", dpi=144, metadata=metadata, facecolor="white")
        return out.getvalue()


def as_image(figure: Figure, title: str) -> str:
    """Return the same as an element of an HTML page: a picture that brings its own paper."""
    data = base64.b64encode(as_svg(figure, title).encode()).decode()
    return f'<img class="chart" alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'

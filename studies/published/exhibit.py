"""A figure or table of a paper, computed again: its data, its drawing, and what is to be said of it."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anechoic._validate import Array

#: Panels in one row; more stand in rows of two.
MOST_ACROSS = 3
#: Points of a curve in its data; of a longer one every second, third, … is written.
MOST_POINTS = 600
_COLOURS = (
    *("#104e8b", "#c44e12", "#2e7d32", "#6a1b9a", "#57606a", "#b8860b", "#00838f"),
    *("#ad1457", "#8b949e", "#5d4037", "#9ccc65", "#64b5f6", "#ff8a65", "#212121"),
)


@dataclass(frozen=True, eq=False)
class Curve:
    """One line: x and y of shape (points,), and the standard errors of y where there are some.

    Curves of one label have one colour in all panels, and that of the label `like`, if given. Points that are
    like a line stand in the legend once, in grey, by what their label says after that of the line.
    """

    label: str
    x: Array
    y: Array
    dashed: bool = False
    points: bool = False
    error: Array | None = None
    like: str = ""


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes; `log` holds the letters of the axes that are logarithmic.

    `matrix`, shape (rows, columns), is drawn in place of curves.
    """

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...] = ()
    log: str = ""
    matrix: Array | None = None


@dataclass(frozen=True, eq=False)
class Exhibit:
    """What a command regenerates.

    Attributes:
        name: as typed, such as "000-2".
        title: one line.
        source: paper and number.
        panels: drawn side by side; none for a table.
        table: header and rows, for a table; beside panels it is in the text only, their data in the file.
        remarks: what was published, what is found here, and why they differ; each one paragraph.
    """

    name: str
    title: str
    source: str
    panels: tuple[Panel, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()

    def write(self, folder: Path, *, draw: bool = True) -> list[Path]:
        """Write NAME.csv and, for a figure, NAME.svg into `folder`; returns what was written.

        Raises:
            ModuleNotFoundError: where matplotlib is missing, for a figure that is to be drawn.
        """
        folder.mkdir(parents=True, exist_ok=True)
        data, image = (folder / f"{self.name}.{kind}" for kind in ("csv", "svg"))
        with data.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(self._rows())
        if not (draw and self.panels):
            return [data]
        self._draw(image)
        return [data, image]

    def _rows(self) -> list[tuple[Any, ...]]:
        if not self.panels:
            return list(self.table)
        with_errors = any(curve.error is not None for panel in self.panels for curve in panel.curves)
        head = ("panel", "curve", "x", "y", *(["standard error"] if with_errors else []))
        rows: list[tuple[Any, ...]] = [head]
        for panel in self.panels:
            if panel.matrix is not None:
                places = np.ndenumerate(panel.matrix)
                rows += [(panel.title, f"row {i}", f"{j}", f"{v:.10g}") for (i, j), v in places]
            for curve in panel.curves:
                errors = np.full(len(curve.x), np.nan) if curve.error is None else curve.error
                kept = slice(None, None, -(-len(curve.x) // MOST_POINTS))
                columns = (np.asarray(v, float)[kept] for v in (curve.x, curve.y, errors))
                for x, y, e in zip(*columns, strict=True):
                    spread = [""] if np.isnan(e) else [f"{e:.3g}"]
                    rows.append((panel.title, curve.label, f"{x:.10g}", f"{y:.10g}", *spread[:with_errors]))
        return rows

    def text(self) -> str:
        """Say in Markdown what was published and what is found here, with the table where there is one."""
        lines = [f"# {self.title}", "", f"{self.source}.", ""]
        if self.table:
            head, *rows = self.table
            lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
            lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
        for remark in self.remarks:
            lines += [remark, ""]
        return "\n".join(lines)

    def _draw(self, file: Path) -> None:
        import matplotlib

        with matplotlib.rc_context({"svg.hashsalt": "anechoic"}):
            self.figure().savefig(file, metadata={"Date": None})

    def figure(self) -> Any:
        """The drawing, as a figure of matplotlib."""
        import matplotlib
        from matplotlib.figure import Figure

        # three panels fill a page of paper: larger ones would be shrunk until nobody can read them
        style: Any = {"font.size": 8, "axes.titlesize": 8.5, "legend.frameon": False}
        style |= {"axes.spines.top": False, "axes.spines.right": False}
        with matplotlib.rc_context(style):
            count = len(self.panels)
            across = count if count <= MOST_ACROSS else 2
            down = -(-count // across)
            figure = Figure(figsize=(3.1 * across, 2.9 * down), layout="constrained")
            figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # type: ignore[call-arg, union-attr]
            limits = self._limits()
            colours = self._colours()
            for axes, panel in zip(np.ravel(figure.subplots(down, across)), self.panels, strict=False):
                for curve in panel.curves:
                    axes.errorbar(
                        curve.x,
                        curve.y,
                        None if curve.error is None else np.nan_to_num(curve.error),
                        ls="none" if curve.points else "--" if curve.dashed else "-",
                        marker="o" if curve.points else "",
                        ms=3,
                        lw=1.2,
                        color=colours[curve.like or curve.label],
                        label="_" if curve.points and curve.like else curve.label,
                    )
                for runs in dict.fromkeys(_runs(c) for c in panel.curves if c.points and c.like):
                    axes.errorbar([], [], [], ls="none", marker="o", ms=3, color="0.3", label=runs)
                axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
                if panel.matrix is not None:
                    rows, columns = panel.matrix.shape
                    edges = (0.5, columns + 0.5, rows + 0.5, 0.5)  # the papers count from 1
                    shown = axes.imshow(panel.matrix, cmap="viridis", extent=edges, **limits)
                    figure.colorbar(shown, ax=axes, shrink=0.8)
                for letter in panel.log:
                    _logarithmic(axes, letter)
            told = [[c.label for c in panel.curves if not (c.points and c.like)] for panel in self.panels]
            alike = len(told) > 1 and all(labels == told[0] for labels in told)
            if told[0] and (alike or count > MOST_ACROSS):
                handles: dict[str, Any] = {}  # a label has one colour in all panels
                for axes in figure.axes[: len(told)]:
                    handles |= zip(*reversed(axes.get_legend_handles_labels()), strict=True)
                figure.legend(
                    handles.values(),
                    handles.keys(),
                    fontsize=7,
                    loc="outside lower center",
                    ncols=_columns(handles, across),
                )
            else:
                for axes in figure.axes[: len(told)]:
                    labels = axes.get_legend_handles_labels()[1]
                    if len(labels) > 1:  # one curve is what the axis says
                        axes.legend(
                            fontsize=7,
                            loc="upper center",
                            bbox_to_anchor=(0.5, -0.2),
                            ncols=min(2, _columns(labels, 1)),
                        )
        return figure

    def _limits(self) -> dict[str, float]:
        """One scale of colours for all matrices of the exhibit, so that they can be compared."""
        values = [panel.matrix for panel in self.panels if panel.matrix is not None]
        if not values:
            return {}
        return {"vmin": min(float(v.min()) for v in values), "vmax": max(float(v.max()) for v in values)}

    def _colours(self) -> dict[str, str]:
        """A colour for each label, in the order in which they come."""
        labels = dict.fromkeys(c.like or c.label for panel in self.panels for c in panel.curves)
        return {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(labels)}


def _columns(labels: Collection[str], across: int) -> int:
    """Columns of a legend under so many panels: a panel is wide enough for some 60 letters, a key for 9."""
    return max(1, min(4, len(labels), 60 * across // (max(map(len, labels)) + 9)))


def _runs(curve: Curve) -> str:
    """What is told of points that have the colour of a line."""
    return curve.label.removeprefix(curve.like).lstrip(", ")


def _logarithmic(axes: Any, letter: str) -> None:
    """A logarithmic axis whose ticks do not run into one another: decades, or 1, 2, 5 of few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axes.set_xscale if letter == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if letter == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    axis.set_minor_formatter(NullFormatter())
    if high < 100.0 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def slope(x: Any, y: Any) -> float:
    """Slope of log y against log x by least squares."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])

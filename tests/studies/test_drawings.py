"""What a reader of the drawings would mind: labels over labels, legends over curves, text beyond the edge."""

import importlib.util
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from studies.published import EXHIBITS, Curve, Exhibit, Panel, correlated, descent, exhibit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK = ["1.6", "2.1", "2.2", "2.4", "2.5", "2.6", "3.3", "3.7", "3.13", "4.1", "4.2"]


def shown(axis):
    """Boxes of the labels of an axis that are seen."""
    low, high = sorted(axis.get_view_interval())
    labels = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
    return [
        label.get_window_extent()
        for place, label in labels
        if label.get_text() and low * (1 - 1e-9) - 1e-12 <= place <= high * (1 + 1e-9) + 1e-12
    ]


def faults(figure):
    """What overlaps, in words."""
    FigureCanvasAgg(figure).draw()
    found, whole = [], figure.bbox
    for place, axes in enumerate(figure.axes):
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if any(a.overlaps(b) for a, b in combinations(shown(axis), 2)):
                found.append(f"panel {place}: ticks of {name}")
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    if any(a.overlaps(b) for a, b in combinations(titles, 2)):
        found.append("titles")
    legends = [axes.get_legend() for axes in figure.axes] + figure.legends
    boxes = [legend.get_window_extent() for legend in legends if legend]
    if any(a.overlaps(b) for a, b in combinations(boxes, 2)):
        found.append("legends over legends")
    for box in [*boxes, *titles]:
        if box.x0 < whole.x0 - 1 or box.x1 > whole.x1 + 1 or box.y0 < whole.y0 - 1:
            found.append(f"beyond the edge: {box}")
    return found


def legends_over_curves(figure):
    FigureCanvasAgg(figure).draw()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    legends = [axes.get_legend() for axes in figure.axes] + figure.legends
    return [str(b) for legend in legends if legend for b in boxes if legend.get_window_extent().overlaps(b)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXHIBITS if name != "000-3"])
def test_nothing_overlaps_in_an_exhibit(name, monkeypatch):
    monkeypatch.setattr(correlated, "RUNS", 0)
    monkeypatch.setattr(descent, "DRAWS", 2)
    made = exhibit(name)
    if made.panels:
        figure = made.figure()
        assert not faults(figure)
        assert not legends_over_curves(figure)


@pytest.mark.slow
def test_wide_legends_of_many_panels_stay_inside():
    x = np.array([1.0, 10.0])
    labels = [f"a long name of a method, number {i}" for i in range(7)]
    for count in (1, 2, 3, 4):
        panels = tuple(
            Panel(f"panel {i}", "x", "y", tuple(Curve(label, x, x) for label in labels), "xy")
            for i in range(count)
        )
        figure = Exhibit("x-1", "A title", "A paper", panels).figure()
        assert not faults(figure)
        assert not legends_over_curves(figure)


def test_a_run_has_the_colour_of_its_expectation():
    x = np.array([1.0, 2.0])
    curves = (Curve("a", x, x), Curve("b", x, x), Curve("b, 3 runs", x, x, points=True, error=x, like="b"))
    axes = Exhibit("x-1", "A title", "A paper", (Panel("p", "x", "y", curves),)).figure().axes[0]
    line, runs = (axes.containers[i].lines[0] for i in (1, 2))
    assert line.get_color() == runs.get_color() != axes.containers[0].lines[0].get_color()
    assert axes.get_legend_handles_labels()[1] == ["a", "b", "3 runs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_nothing_overlaps_in_a_figure_of_the_monograph(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("figures_of_the_monograph", BENCHMARKS / "figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    losses = figures._losses_by_n
    monkeypatch.setattr(figures, "_losses_by_n", lambda kind, sizes, dense_up_to: losses(kind, sizes[:5], 32))
    made = {}
    with figures.plt.rc_context(figures.STYLE):
        figures.FIGURES[name](lambda number, figure: made.update({number: figure}))
    assert name in made
    for figure in made.values():
        assert not faults(figure)
    for module in [m for m in sys.modules if m.split(".")[0] == "monograph"]:
        monkeypatch.delitem(sys.modules, module)


def test_unit_balls_of_figure_3_7(monkeypatch):
    """The ball of columns has the volume 16/3; both norms against all signs, one by one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from monograph.small import column_norm, sign_norm, trace_of_inverse

    x, y, z = np.random.default_rng(0).uniform(-1, 1, (3, 200_000))
    assert 8 * np.mean(column_norm(x, y, z) <= 1) == pytest.approx(16 / 3, abs=0.05)
    for a, b, c in zip(x[:20], y[:20], z[:20], strict=True):
        m = np.array([[a, b], [b, c]])
        assert column_norm(a, b, c) == pytest.approx(np.linalg.norm(m, axis=0).max())
        signs = [np.linalg.norm(m @ s) for s in np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])]
        assert sign_norm(a, b, c) == pytest.approx(max(signs))
        assert column_norm(a, b, c) <= sign_norm(a, b, c)  # Lemma 3.10
    assert trace_of_inverse(1 / 3, 1 / 3) == pytest.approx(9.0)
    for module in [m for m in sys.modules if m.split(".")[0] == "monograph"]:
        monkeypatch.delitem(sys.modules, module)

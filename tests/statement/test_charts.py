import base64
import io
import math
import re
import sys
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest
from anechoic.statement.charts import Axis, Level, Line, heat_map, line_chart, line_chart_file

from anechoic.errors import AnechoicError
from anechoic.statement import charts

matplotlib = pytest.importorskip("matplotlib")

LINE = Line("planned mechanism", "planned", [0.1, 1.0, 10.0], [1.0, 3.0, 2.0], error=[0.25, 0.0, 0.1])
PLAIN = {"x": Axis("x"), "y": Axis("y"), "title": "t"}


def file_in(chart):
    """The SVG file in an element of a page."""
    head = 'src="data:image/svg+xml;base64,'
    return base64.b64decode(chart[chart.index(head) + len(head) : -2]).decode()


def texts(chart):
    """What the chart writes: beside the outlines of its letters stands what they spell."""
    ElementTree.fromstring(svg := file_in(chart))
    return [unescape(found) for found in re.findall(r"<!-- (.*?) -->", svg)]


def tag(node):
    return node.tag.rsplit("}", 1)[-1]


def axes_of(lines, **options):
    """The axes of a line chart as matplotlib has them."""
    levels = options.pop("levels", ())
    given = PLAIN | options
    with charts.in_style():
        figure = charts._line_figure(lines, given["x"], given["y"], levels, given["title"])
        figure.draw_without_rendering()
    return figure.axes[0]


def images(chart):
    """Pixels of the images of a chart: the map, the colour bar."""
    from matplotlib.image import imread

    nodes = [node for node in ElementTree.fromstring(file_in(chart)).iter() if tag(node) == "image"]
    link = "{http://www.w3.org/1999/xlink}href"
    files = (base64.b64decode(node.get(link).split(",", 1)[1]) for node in nodes)
    return [imread(io.BytesIO(data), format="png")[..., :3] for data in files]


@pytest.mark.slow
def test_chart_names_what_it_shows():
    chart = line_chart(
        [LINE],
        x=Axis("ε", log=True, ticks=[0.1, 1.0, 10.0]),
        y=Axis("AUC", form=lambda v: f"{v:.1f}"),
        levels=[Level("not private", "clipped", 3.5)],
        title="AUC against ε",
    )
    written = texts(chart)
    assert {"ε", "AUC", "planned mechanism", "not private", "0.1", "1", "10"} <= set(written)
    assert chart.startswith('<img class="chart" alt="AUC against ε" src="data:image/svg+xml;base64,')
    tree = ElementTree.fromstring(file_in(chart))
    assert tree.get("viewBox") and tree.findtext("{*}title") == "AUC against ε"


@pytest.mark.slow
def test_points_error_bars_and_levels_are_where_their_values_say():
    axes = axes_of([LINE], x=Axis("x", log=True), levels=[Level("l", "clipped", 9.5)])
    curve, level = axes.lines[0], axes.lines[-1]
    assert curve.get_xydata().tolist() == [[0.1, 1.0], [1.0, 3.0], [10.0, 2.0]]
    assert curve.get_color() == "#104e8b" and axes.get_xscale() == "log"
    assert set(level.get_ydata()) == {9.5} and level.is_dashed()
    (bars,) = axes.collections
    ends = [path[:, 1].tolist() for path in bars.get_segments()]
    assert np.allclose(ends, [[0.75, 1.25], [3.0, 3.0], [1.9, 2.1]])
    low, high = axes.get_ylim()
    assert low < 0.75 and high > 9.5


@pytest.mark.slow
def test_axes_start_at_zero_where_asked():
    axes = axes_of([LINE], x=Axis("x", zero=True), y=Axis("y", zero=True))
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    assert axes.get_xlim()[1] > 10 and axes.get_ylim()[1] > 3


def test_labels_are_escaped_and_not_read_as_mathematics():
    chart = line_chart([Line("<b>& $x$", "planned", [1], [1])], x=Axis("<x>"), y=Axis("&"), title='"<t>"')
    assert {"<b>& $x$", "<x>", "&"} <= set(texts(chart))
    assert "<b>" not in chart and "<x>" not in chart


def test_numbers_have_a_typographic_minus():
    assert "−2" in texts(line_chart([Line("a", "planned", [1, 2], [-2.0, 2.0])], **PLAIN))


@pytest.mark.parametrize("y", [[], [math.nan], [math.inf]])
def test_nothing_to_draw_is_refused(y):
    with pytest.raises(ValueError, match="at least one point, and finite"):
        line_chart([Line("a", "planned", [1] * len(y), y)], **PLAIN)


@pytest.mark.slow
def test_charts_refer_to_nothing_outside():
    for chart in (line_chart([LINE], **PLAIN), heat_map(np.eye(3), label="C", title="C")):
        svg = file_in(chart)
        ids = set(re.findall(r'\bid="([^"]*)"', svg))
        assert set(re.findall(r'href="([^"]{1,30})"', svg)) <= {f"#{name}" for name in ids}
        assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= ids and "url(http" not in svg


@pytest.mark.slow
def test_equal_input_is_equal_text():
    first, again = (line_chart([LINE], **PLAIN) for _ in range(2))
    assert first == again != line_chart([LINE], **PLAIN | {"title": "another"})


@pytest.mark.slow
def test_bands_lie_where_their_ends_say():
    line = Line("a", "planned", [1, 2], [3, 4], bands=[([1, 1], [6, 7]), ([2, 2], [4, 5])])
    wide, near = axes_of([line]).collections
    assert {tuple(corner) for corner in wide.get_paths()[0].vertices} == {(1, 1), (2, 1), (1, 6), (2, 7)}
    assert {tuple(corner) for corner in near.get_paths()[0].vertices} == {(1, 2), (2, 2), (1, 4), (2, 5)}
    assert wide.get_alpha() < near.get_alpha() < 1


@pytest.mark.slow
def test_style_of_the_user_is_neither_read_nor_changed():
    expected = line_chart([LINE], **PLAIN)
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30}):
        before = dict(matplotlib.rcParams)
        assert line_chart([LINE], **PLAIN) == expected
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_file_stands_alone():
    svg = line_chart_file([LINE], **PLAIN)
    tree = ElementTree.fromstring(svg.encode())
    assert tag(tree) == "svg" and tree.get("width") and tree.get("viewBox")
    assert "fill: #ffffff" in svg and "<text" not in svg  # white paper; letters are outlines
    assert svg == line_chart_file([LINE], **PLAIN)


def test_heat_map_shows_the_matrix():
    chart = heat_map(np.array([[1.0, 0.0], [-0.25, 1.0]]), label="C", title="the strategy")
    cells, bar = images(chart)
    assert cells.shape == (2, 2, 3) and len(bar) > 50
    assert np.allclose(cells[0, 1], 1.0) and np.allclose(cells[0, 0], cells[1, 1])
    blue, orange = cells[0, 0], cells[1, 0]
    assert blue[2] > blue[0] and orange[0] > orange[2]
    # the root of a quarter is a half: halfway from white to orange
    assert orange == pytest.approx((1 + np.array([0xC4, 0x4E, 0x12]) / 255) / 2, abs=0.02)
    assert {"C", "0", "1", "0.25", "−1", "step of the fresh noise"} <= set(texts(chart))


@pytest.mark.slow
def test_colour_bar_has_the_true_values():
    assert {"4", "2", "−2", "−4"} <= set(texts(heat_map(np.diag([4.0, 0.1]), label="C", title="C")))
    assert "8" in texts(heat_map(np.diag([4.0, 0.1]), label="C", title="C", limit=8.0))


def test_heat_map_of_zeros_is_white():
    assert np.allclose(images(heat_map(np.zeros((2, 2)), label="C", title="C"))[0], 1.0)


@pytest.mark.parametrize("matrix", [np.zeros((0, 3)), np.zeros(3), [[math.nan]]])
def test_heat_map_refuses_what_it_cannot_draw(matrix):
    with pytest.raises(ValueError, match="finite matrix"):
        heat_map(matrix, label="C", title="C")


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnechoicError, match=r"pip install 'anechoic\[plot\]'"):
        line_chart([LINE], **PLAIN)


def test_a_figure_shows_itself_to_a_notebook_with_its_words():
    figure = charts.line_figure([LINE], x=Axis("x"), y=Axis("y"), title="what <it> shows")
    assert isinstance(figure, matplotlib.figure.Figure)
    assert figure._repr_html_() == line_chart([LINE], x=Axis("x"), y=Axis("y"), title="what <it> shows")
    assert 'alt="what &lt;it&gt; shows"' in figure._repr_html_()
    whole = charts.heat_figure(np.eye(3), label="l", title="t")
    assert whole._repr_html_() == heat_map(np.eye(3), label="l", title="t")
    with pytest.raises(ValueError, match="finite matrix"):
        charts.heat_figure([[np.inf]], label="l", title="t")


def test_pictures_stand_in_rows_of_two_each_with_its_own_axes():
    panels = [charts.Panel(name, [LINE], Axis("x", log=name == "b"), Axis("y")) for name in "abc"]
    figure = charts.panel_figure(panels, "three")
    assert [axes.get_title("left") for axes in figure.axes] == ["a", "b", "c"]
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "log", "linear"]
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 2)
    with pytest.raises(ValueError, match="chart 'empty' needs"):
        charts.panel_figure([charts.Panel("empty", [], Axis("x"), Axis("y"))], "none")

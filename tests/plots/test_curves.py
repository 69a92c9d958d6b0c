"""Pictures of curves: points lie where their values say, and nothing is loaded or injected."""

import math
import re
import sys
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest

from anechoic.errors import AnechoicError
from anechoic.plots.curves import Axis, Level, Line, line_figure
from anechoic.plots.style import as_image, as_svg

matplotlib = pytest.importorskip("matplotlib")

LINE = Line("planned mechanism", "planned", [0.1, 1.0, 10.0], [1.0, 3.0, 2.0], error=[0.25, 0.0, 0.1])


X, Y = Axis("x"), Axis("y")


def drawn(*lines, x=X, y=Y, title="t", levels=()):
    return line_figure(lines or [LINE], x=x, y=y, title=title, levels=levels)


def texts(figure):
    """What the picture writes: beside the outlines of its letters stands what they spell."""
    return {unescape(found) for found in re.findall(r"<!-- (.*?) -->", as_svg(figure, "t"))}


def test_points_error_bars_levels_and_axes_are_where_their_values_say():
    levels = [Level("not private", "clipped", 9.5)]
    figure = drawn(
        LINE, x=Axis("ε", log=True, ticks=[0.1, 1.0, 10.0]), y=Axis("AUC", zero=True), levels=levels
    )
    (axes,) = figure.axes
    curve, level = axes.lines[0], axes.lines[-1]
    assert curve.get_xydata().tolist() == [[0.1, 1.0], [1.0, 3.0], [10.0, 2.0]]
    assert curve.get_color() == "#104e8b" and axes.get_xscale() == "log"
    assert set(level.get_ydata()) == {9.5} and level.is_dashed()
    ends = [path[:, 1].tolist() for path in axes.collections[0].get_segments()]
    assert np.allclose(ends, [[0.75, 1.25], [3.0, 3.0], [1.9, 2.1]])
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 9.5
    assert {"ε", "AUC", "planned mechanism", "not private", "0.1", "1", "10"} <= texts(figure)


def test_labels_are_escaped_and_not_read_as_mathematics():
    figure = drawn(Line("<b>& $x$", "planned", [1, 2], [-2.0, 2.0]), x=Axis("<x>"), title='"<t>"')
    assert {"<b>& $x$", "<x>", "−2"} <= texts(figure)  # a typographic minus
    image = as_image(figure, '"<t>"')
    assert image == figure._repr_html_() and image.startswith(
        '<img class="chart" alt="&quot;&lt;t&gt;&quot;"'
    )
    assert "<b>" not in image and "<x>" not in image


@pytest.mark.parametrize("y", [[], [math.nan], [math.inf]])
def test_nothing_to_draw_is_refused(y):
    with pytest.raises(ValueError, match="at least one point, and finite"):
        drawn(Line("a", "planned", [1] * len(y), y))


def test_pictures_stand_alone_and_equal_input_is_equal_text():
    svg = as_svg(drawn(), "what it shows")
    assert ElementTree.fromstring(svg.encode()).findtext("{*}title") == "what it shows"
    ids = set(re.findall(r'\bid="([^"]*)"', svg))
    assert set(re.findall(r'href="([^"]{1,30})"', svg)) <= {f"#{name}" for name in ids}
    assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= ids and "url(http" not in svg
    assert "fill: #ffffff" in svg and "<text" not in svg  # white paper; letters are outlines


def test_the_style_of_the_user_is_neither_read_nor_changed():
    expected = as_svg(drawn(), "t")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30}):
        before = dict(matplotlib.rcParams)
        assert as_svg(drawn(), "t") == expected
        assert dict(matplotlib.rcParams) == before


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnechoicError, match=r"pip install 'anechoic\[plot\]'"):
        drawn()

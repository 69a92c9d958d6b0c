import base64
import math
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.report.svg import Axis, Level, Line, colours, heat_map, line_chart, nice_ticks, png

SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart):
    """The chart's <svg> as a tree: what an XML parser accepts, a browser draws."""
    return ElementTree.fromstring(chart[chart.index("<svg") :])


def numbers(points):
    return [tuple(map(float, pair.split(","))) for pair in points.split()]


def test_points_are_where_their_values_say():
    line = Line("a", "planned", [0.1, 1.0, 10.0], [1.0, 3.0, 2.0])
    chart = line_chart([line], x=Axis("x", log=True), y=Axis("y"), title="t")
    (a, low), (b, high), (c, middle) = numbers(parsed(chart).find("polyline").get("points"))
    assert b - a == pytest.approx(c - b, abs=0.2)  # equal steps on a logarithmic axis
    assert low > middle > high  # SVG counts downwards
    assert low - middle == pytest.approx(middle - high, abs=0.2)


def test_error_bars_have_the_length_of_the_error():
    line = Line("a", "planned", [1, 2], [0.0, 1.0], error=[0.25, 0.0])
    tree = parsed(line_chart([line], x=Axis("x"), y=Axis("y"), title="t"))
    (bar,) = [path for path in tree.iter("path") if path.get("class").startswith("bar")]
    low, high = (float(v) for v in bar.get("d").split(" ", 1)[1].split("M")[0].split("V"))
    (_, start), (_, end) = numbers(tree.find("polyline").get("points"))
    assert low - high == pytest.approx(0.5 * (start - end), abs=0.2)


def test_everything_stays_inside_the_picture():
    line = Line("a", "planned", [1, 100], [-5.0, 7.0], error=[1.0, 2.0])
    tree = parsed(
        line_chart([line], x=Axis("x"), y=Axis("y"), levels=[Level("l", "clipped", 9.5)], title="t")
    )
    _, _, width, height = map(float, tree.get("viewBox").split())
    for node in tree.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(node.get(name, 0)) <= width
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(node.get(name, 0)) <= height


def test_labels_are_escaped():
    chart = line_chart([Line("<b>&", "planned", [1], [1])], x=Axis("<x>"), y=Axis("&"), title='"<t>"')
    parsed(chart)
    assert "<b>" not in chart and "<x>" not in chart and "&lt;b&gt;&amp;" in chart


@pytest.mark.parametrize("y", [[], [math.nan], [math.inf]])
def test_nothing_to_draw_is_refused(y):
    with pytest.raises(ValueError, match="at least one point, and finite"):
        line_chart([Line("a", "planned", [1] * len(y), y)], x=Axis("x"), y=Axis("y"), title="t")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(low, span):
    high = low + span
    ticks = nice_ticks(low, high)
    assert 1 <= len(ticks) <= 9
    slack = 1e-6 * (abs(low) + span)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    gaps = np.diff(ticks)
    assert len(gaps) == 0 or np.ptp(gaps) <= 1e-6 * (abs(low) + span)


def test_one_value_has_one_tick():
    assert nice_ticks(0.7, 0.7) == [0.7]


def decoded(data):
    """Pixels of a PNG as `png` writes them: one IDAT, no filter."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_png_holds_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    assert (decoded(png(pixels)) == pixels).all()


def test_colours_are_white_at_zero_and_symmetric_in_strength():
    zero, plus, minus = colours(np.array([0.0, 1.0, -1.0]))
    assert (zero == 255).all()
    assert plus[2] > plus[0] and minus[0] > minus[2]  # blue, orange
    assert (colours(np.array([2.0])) == plus).all()  # clipped to the scale


def test_heat_map_shows_the_matrix():
    matrix = np.array([[1.0, 0.0], [-0.5, 1.0]])
    tree = parsed(heat_map(matrix, label="C", title="C"))
    cells = decoded(base64.b64decode(next(tree.iter("image")).get("href").split(",", 1)[1]))
    assert (cells[0, 0] == cells[1, 1]).all() and (cells[0, 1] == 255).all()
    assert cells[1, 0, 0] > cells[1, 0, 2]  # the negative entry is orange


@pytest.mark.parametrize("matrix", [np.zeros((0, 3)), np.zeros(3), [[math.nan]]])
def test_heat_map_refuses_what_it_cannot_draw(matrix):
    with pytest.raises(ValueError, match="finite matrix"):
        heat_map(matrix, label="C", title="C")


def test_heat_map_of_zeros_is_white():
    tree = parsed(heat_map(np.zeros((2, 2)), label="C", title="C"))
    assert (decoded(base64.b64decode(next(tree.iter("image")).get("href").split(",", 1)[1])) == 255).all()

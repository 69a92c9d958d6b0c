"""The pictures of a plan: what is in them, and how they reach a notebook and a file."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from anechoic.errors import AnechoicError
from anechoic.planning.compare import plan
from anechoic.planning.families import family
from anechoic.planning.page import as_cell, as_page, checked_kind, write_plan
from anechoic.plots.plan import draw_memory, draw_steps, drawn_over_steps, independent_of
from anechoic.plots.style import in_style
from anechoic.strategies import Identity
from tests.marks import slow

matplotlib = pytest.importorskip("matplotlib")
figures = pytest.importorskip("matplotlib.figure")

SMALL = {"examples": 240, "batch_size": 20, "epochs": 2, "epsilon": 2.0, "delta": 1e-5}
FIXED = SMALL | {"random_sampling": False}
MARKS = {"identity": "o", "banded_toeplitz": "s", "blt": "^", "dense": "D"}


@pytest.fixture(scope="module", params=[False, *slow(True)])
def drawn(request):
    """A plan with the memory of its rows in which batches may be drawn, or every other row says so."""
    if request.param:
        return plan(**SMALL, dimension=1000)
    found = plan(**FIXED, dimension=1000)
    rows = [replace(row, sampling="Poisson") if r % 2 else row for r, row in enumerate(found.rows)]
    rows.append(replace(rows[1], memory=3 * max(row.memory for row in rows), frontier=False))
    return replace(found, rows=tuple(rows))


@pytest.fixture(scope="module")
def fixed():
    """A plan in a fixed order, without a dimension."""
    return plan(**FIXED)


@pytest.fixture(scope="module")
def independent():
    """A plan without noise state, in which every iterate counts."""
    return plan(**FIXED, strategy="identity", keep="all")


def picture(draw, rows):
    """The axes of one of the pictures."""
    with in_style():
        axes = figures.Figure().add_subplot()
        draw(axes, rows)
    return axes


def lines(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label]


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_every_row_is_a_point_and_the_frontier_goes_through_those_that_none_beats(drawn):
    axes = picture(draw_memory, drawn.rows)
    points, at = lines(axes, "_row"), {}
    plain = min(row.predicted for row in drawn.rows if isinstance(row.mechanism.strategy, Identity))
    least = min(row.memory for row in drawn.rows if row.memory)
    for point, row in zip(points, drawn.rows, strict=True):
        (where,) = point.get_xydata().tolist()
        assert where[1] == pytest.approx(row.predicted / plain)
        assert point.get_marker() == MARKS[family(row.mechanism.strategy)]
        assert where[0] == row.memory if row.memory else where[0] < least
        at.setdefault(row.frontier, set()).add(tuple(where))
        if row is drawn.chosen:  # it is ringed and named
            assert lines(axes, "_chosen")[0].get_xydata().tolist() == [where]
    colors = {(row.sampling, p.get_markerfacecolor()) for row, p in zip(drawn.rows, points, strict=True)}
    assert len(colors) == len({row.sampling for row in drawn.rows}) == len({color for _, color in colors})
    (line,) = lines(axes, "_frontier")
    assert at[True] <= {tuple(corner) for corner in line.get_xydata()}
    below = at[False] - at[True]
    assert all(y > np.interp(x, *line.get_xydata().T) * (1 - 1e-9) for x, y in below)
    assert line.get_xdata()[-1] == pytest.approx(axes.get_xlim()[1])
    assert (np.diff(line.get_ydata()) <= 0).all()


def test_legends_name_what_is_there_and_nothing_else(drawn, fixed):
    families = {"identity": "independent", "banded_toeplitz": "banded", "blt": "BLT", "dense": "dense"}
    for found in (drawn, fixed):
        names = {families[family(row.mechanism.strategy)] for row in found.rows}
        schemes = {row.sampling for row in found.rows}
        assert set(labels(picture(draw_memory, found.rows))) == names | schemes | {"best within memory"}


def test_curves_are_the_noise_over_the_steps(drawn):
    shown = drawn_over_steps(drawn.rows)
    axes = picture(draw_steps, drawn.rows)
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]
    assert labels(axes)[0].startswith(f"chosen: {drawn.chosen.name}")
    assert shown[0] is drawn.chosen and independent_of(drawn.rows) in shown
    assert len(curves) == len(shown) <= 4
    for curve, row in zip(curves, shown, strict=True):
        assert curve.get_ydata() == pytest.approx(row.noise_over_time()[1])
        assert curve.get_xdata().tolist() == list(range(1, row.mechanism.steps + 1))


def test_what_is_kept_is_marked(fixed, independent):
    (ring,) = lines(picture(draw_steps, fixed.rows), "kept: the last iterate, weight 0.2")
    last = fixed.chosen.noise_over_time()[1][-1]
    assert ring.get_xydata()[0].tolist() == pytest.approx([fixed.chosen.mechanism.steps, last])
    assert not [text for text in labels(picture(draw_steps, independent.rows)) if "kept" in text]
    averaged, worst = (
        picture(draw_steps, [replace(r, objective=replace(r.objective, **how)) for r in fixed.rows])
        for how in ({"averaged": True, "weight": 0.2}, {"worst": True})
    )
    assert "kept: their mean" in labels(averaged)
    (span,) = averaged.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == (13, 24)
    (ring,), errors = lines(worst, "the largest counts"), fixed.chosen.noise_over_time()[1]
    assert ring.get_xydata()[0].tolist() == pytest.approx([1 + int(errors.argmax()), errors.max()])


def test_plans_without_memory_or_independent_noise_are_drawn(independent):
    axes = picture(draw_memory, independent.rows)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0"]
    alone = plan(**FIXED, strategy="blt")
    assert independent_of(alone.rows) is None
    axes = picture(draw_memory, alone.rows)
    assert axes.get_ylabel().endswith("(clip norms)")
    heights = [point.get_ydata()[0] for point in lines(axes, "_row")]
    assert heights == pytest.approx([row.predicted for row in alone.rows])


def test_runs_of_other_lengths_are_compared_over_their_steps():
    found = plan(**FIXED | {"epochs": [1, 2]}, strategy="identity")
    axes = picture(draw_memory, found.rows)
    heights = [point.get_ydata()[0] for point in lines(axes, "_row")]
    expected = [row.relative / found.chosen.relative for row in found.rows]
    assert heights == pytest.approx(expected) and "over steps" in axes.get_ylabel()


def test_without_matplotlib_the_remedy_is_named_and_a_notebook_has_the_table(
    monkeypatch, independent, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnechoicError, match=r"pip install 'anechoic\[plot\]'"):
        independent.plot()
    with pytest.raises(AnechoicError, match=r"pip install 'anechoic\[plot\]'"):
        write_plan(independent, tmp_path / "plan.html")
    cell = independent._repr_html_()
    assert "pip install" in cell and "<img" not in cell and "Identity" in cell


def test_a_cell_shows_pictures_table_and_reason(independent):
    cell = independent._repr_html_()
    assert cell.count('<img class="chart" alt="') == 2
    assert "Predicted noise against noise state" in cell
    assert cell.count("<tr>") == 1 + len(independent.lines) and 'class="best"' in cell
    assert "http" not in cell and cell.count("src=") == cell.count('src="data:') and "<script" not in cell


@pytest.mark.parametrize("layout", [as_cell, *slow(as_page)])
def test_names_and_reasons_are_text(independent, layout):
    evil = "<script>alert(1)</script> & $x$"
    rows = tuple(replace(row, name=evil, sampling=f"<i>{row.sampling}") for row in independent.rows)
    text = layout(replace(independent, rows=rows, reason=evil))
    assert "<script" not in text and "<i>" not in text
    assert "&lt;script&gt;" in text and "$x$" in text


@pytest.mark.parametrize(
    ("name", "begin"), [("a.PNG", b"\x89PNG"), *slow(("a.svg", b"<?xml"), ("a.html", b"<!DOCTYPE"))]
)
def test_files_are_what_their_name_says_each_time_the_same(independent, tmp_path, name, begin):
    written = []
    for _ in range(2):
        write_plan(independent, tmp_path / name)
        written.append((tmp_path / name).read_bytes())
    assert written[0].startswith(begin) and written[0] == written[1]


def test_other_files_are_refused(tmp_path):
    for name in ("a.pdf", "a", "a.htm"):
        with pytest.raises(ValueError, match=r"written as \.html, \.svg, \.png"):
            checked_kind(tmp_path / name)

"""Streams of trees: the exact covariance of what the filter emits, its memory, and its fresh rows."""

import numpy as np
import pytest

from anechoic.noise import NoiseStream
from anechoic.noise.fresh import FreshRows
from anechoic.strategies import ColumnNormalized, FullTree, Restarted, Tree
from anechoic.strategies.scaled import ColumnScaled
from tests.marks import slow
from tests.noise.streams import BACKENDS, emit, make_stream

TREES = {
    "one": Tree(1),
    "two": Tree(2),
    "odd": Tree(13),
    "whole": Tree(16),
    "wide": Tree(29, 3),
    "flat": Tree(4, 5),
    "full": FullTree(13),
    "full-whole": FullTree(16),
    "full-wide": FullTree(29, 3),
    "full-cut": FullTree(11, 2, 37),
    "full-cut-early": FullTree(3, 4, 64),
    "normalised": ColumnNormalized(Tree(11)),
    "normalised-full": ColumnNormalized(FullTree(11)),
    "restarted": Restarted(Tree(7), 3, 17),
    "restarted-full": Restarted(FullTree(6, 2, 9), 3, 17),
    "restarted-scaled": Restarted(ColumnScaled(Tree(5, 3), np.linspace(0.5, 2.0, 5)), 2),
    "scaled-restarts": ColumnNormalized(Restarted(FullTree(4), 3, 11)),
}


def unit_rows(stream, monkeypatch):
    """Make the fresh row of step t the t-th unit vector; returns the steps asked for, one per row drawn."""
    drawn = []

    def fill(rows, out, start, weights):
        drawn.append(rows.step)
        out[...] = 0.0
        out[rows.step] = weights[0]

    monkeypatch.setattr(FreshRows, "fill", fill)
    return drawn


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TREES)
def test_the_covariance_is_that_of_the_left_inverse(name, backend, monkeypatch):
    tree = TREES[name]
    stream = make_stream(tree, tree.n, backend, std=0.7)
    drawn = unit_rows(stream, monkeypatch)
    made, _ = emit(stream)
    left = 0.7 * tree.correlate(np.eye(tree.rows))
    np.testing.assert_allclose(made @ made.T, left @ left.T, atol=1e-14)
    assert drawn == list(range(tree.n))  # one fresh row a step, its own
    assert not np.triu(made, 1).any()
    assert (made.diagonal() > 0).all()


@pytest.mark.parametrize("name", TREES)
def test_a_stream_restored_at_every_step(name, monkeypatch):
    tree = TREES[name]
    stream = make_stream(tree, tree.n, "numpy")
    unit_rows(stream, monkeypatch)
    whole, _ = emit(stream)
    state = stream.init()
    for t in range(tree.n):
        row, state = stream.next(state)
        np.testing.assert_array_equal(row, whole[t])
        state = stream.restore(state.state_dict())


@pytest.mark.parametrize(
    ("tree", "rows"),
    [(Tree(1), 0), (Tree(2), 2), (Tree(7), 3), (Tree(8), 4), (Tree(9), 4), (Tree(81, 3), 5), (Tree(3, 4), 0),
     (FullTree(1024), 11), (FullTree(10**9), 30), (FullTree(3, 2, 1024), 3), (Restarted(Tree(4), 99), 3)],
    ids=str,
)  # fmt: skip
def test_memory_is_logarithmic(tree, rows):
    assert make_stream(tree, 10, "numpy", precision="float32").memory_bytes == rows * 10 * 4


@pytest.mark.parametrize("tree", [Tree(40), FullTree(40), Tree(40, 3)], ids=str)
def test_what_is_saved_is_one_row_for_each_digit(tree):
    stream = make_stream(tree, 3, "numpy")
    state = stream.init()
    for t in range(tree.n):
        height = stream.filter._recurrence.height(t)
        digits = [t // tree.branching**g % tree.branching for g in range(height)]
        saved = state.state_dict()["rows"]
        assert len(saved) == np.count_nonzero(digits)
        assert np.isfinite(saved).all()
        _, state = stream.next(state)


def test_memory_that_was_never_written_is_never_read():
    stream = NoiseStream(FullTree(21, 3), 4, dtype=np.float64)
    state = stream.init()
    state._memory[...] = np.nan
    rows, _ = emit(stream, state)
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("backend", ["numpy", *slow("torch")])  # of the same bits
@pytest.mark.slow
def test_a_long_stream_stays_exact_in_single_precision(backend):
    tree = FullTree(3000)
    stream = make_stream(tree, 4, backend, precision="float32")
    rows, _ = emit(stream)
    expected = tree.solve(np.array([np.asarray(stream.fresh(t), dtype=np.float64) for t in range(tree.n)]))
    assert np.abs(np.cumsum(rows - expected, axis=0)).max() < 1e-4


def test_a_billion_steps_cost_nothing():
    for tree in (Tree(10**9), FullTree(10**9)):
        rows, _ = emit(make_stream(tree, 3, "numpy"), count=9)
        assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    "other", [Tree(13, 3), FullTree(13), FullTree(13, 2, 16), ColumnNormalized(Tree(13))], ids=str
)
def test_streams_of_other_trees_are_told_apart(other):
    assert make_stream(Tree(13), 2, "numpy").filter.digest() != make_stream(other, 2, "numpy").filter.digest()


def test_streams_of_other_horizons_are_told_apart():
    one, other = (make_stream(FullTree(13, 2, horizon), 2, "numpy").filter.digest() for horizon in (13, 14))
    assert one != other  # though the first eight rows are the same

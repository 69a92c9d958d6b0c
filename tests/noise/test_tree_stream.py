"""Streams of trees: the exact covariance of what the filter emits, its memory, and its fresh rows."""

import numpy as np
import pytest

from anechoic.noise.fresh import FreshRows
from anechoic.strategies import ColumnNormalized, FullTree, Restarted, Tree
from anechoic.strategies.column_scaled import ColumnScaled
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


@pytest.mark.parametrize(
    ("tree", "rows"),
    [(Tree(1), 0), (Tree(2), 2), (Tree(7), 3), (Tree(8), 4), (Tree(9), 4), (Tree(81, 3), 5), (Tree(3, 4), 0),
     (FullTree(1024), 11), (FullTree(10**9), 30), (FullTree(3, 2, 1024), 3), (Restarted(Tree(4), 99), 3)],
    ids=str,
)  # fmt: skip
def test_memory_is_logarithmic(tree, rows):
    assert make_stream(tree, 10, "numpy", precision="float32").memory_bytes == rows * 10 * 4

"""The diagonals of C^T C against the dense product."""

import numpy as np
import pytest

from anechoic.errors import PerformanceWarning
from anechoic.sensitivity import gram
from anechoic.sensitivity.gram import gram_of
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity, Restarted
from anechoic.strategies.base import Strategy
from tests.zoo import STRATEGIES, dense, every, falling

WIDE = {
    "banded dense": dense(40, bands=4),
    "banded dense, odd": dense(41, bands=5),
    "restarted banded dense": Restarted(dense(20, bands=2), 3, 47),
    "normalised restarts": ColumnNormalized(Restarted(BandedToeplitz(9, falling(9, bands=4)), 5, 40)),
}


def close(found, expected, matrix):
    return found.shape == expected.shape and abs(found - expected).max() <= 1e-12 * matrix.max()


@pytest.mark.parametrize("name", [*WIDE, *every()])
def test_diagonals_and_blocks(name):
    strategy = (WIDE | STRATEGIES)[name]
    n, c = strategy.n, strategy.to_dense()
    matrix = c.T @ c
    found = gram_of(strategy)
    assert found.bandwidth == strategy.structure.gram_bands
    for lag in range(n):
        expected = matrix.diagonal(lag)
        assert close(found.diagonal(lag), expected, matrix)
    band = found.band()
    assert band.shape == (found.bandwidth, n)
    for lag in range(found.bandwidth):
        assert close(band[lag], np.pad(abs(matrix.diagonal(lag)), (0, lag)), matrix)
    for steps in (range(0, n, 3), range(min(2, n - 1), n, 4), range(n)):
        assert close(found.block(steps), matrix[np.ix_(steps, steps)], matrix)


def test_columns_are_read_off_without_a_dense_array(monkeypatch):
    strategy = dense(48, bands=4)
    matrix = strategy.to_dense().T @ strategy.to_dense()
    monkeypatch.setattr(type(strategy), "to_dense", None)
    found = gram_of(strategy)
    assert found.diagonal(3) == pytest.approx(matrix.diagonal(3))
    assert found.diagonal(5) == pytest.approx(np.zeros(43))


def test_too_large_to_be_had(monkeypatch):
    monkeypatch.setattr(gram, "ENTRIES", 100)
    assert gram_of(dense(11)) is None
    assert gram_of(dense(10)) is not None
    assert gram_of(ColumnNormalized(dense(11))) is None
    assert gram_of(Restarted(dense(11), 2)) is None
    assert gram_of(Identity(101)) is None


def test_large_dense_arrays_are_announced(monkeypatch):
    class Large(Strategy):
        n = 5000
        structure = dense(3).structure.__class__(5000, 5000)
        multiply = solve = recurrence = truncate = None

        def to_dense(self):
            return np.eye(3)

    monkeypatch.setattr(Large, "__abstractmethods__", frozenset())
    with pytest.warns(PerformanceWarning, match="5000 x 5000"):
        gram_of(Large(5000))

"""Batches that are cut: as drawn where they fit, a uniform part where not, the same for a key."""

import numpy as np
import pytest

from anechoic.batches.base import batches_of
from anechoic.sampling import CyclicPoisson, Poisson

KEY = bytes(range(32))


@pytest.mark.parametrize(
    "inner", [Poisson(50, 10, 120), CyclicPoisson(50, 10, 3, 120)], ids=["one", "groups"]
)
def test_batches_are_those_of_the_scheme_cut_to_the_size(inner):
    whole, cut = batches_of(inner, KEY), batches_of(inner.at_most(11), KEY)
    short = 0
    for t in range(120):
        drawn, kept = whole.batch(t), cut.batch(t)
        assert len(kept) == min(11, len(drawn)) and np.isin(kept, drawn).all()
        assert (np.diff(kept) > 0).all()
        assert np.array_equal(kept, batches_of(inner.at_most(11), KEY).batch(t))
        short += len(kept) < len(drawn)
    assert 15 < short < 105
    assert cut.padded == 11 and whole.padded is None and cut.size(0) == 10
    assert cut.name != whole.name and cut.name != batches_of(inner.at_most(12), KEY).name


def test_who_is_left_out_is_drawn_uniformly():
    """All of eight members are drawn, and four are kept: each in half of the steps, each pair in 3/14."""
    cut = batches_of(Poisson(8, 8.0, 1500).at_most(8), KEY)
    cut._size = 4
    inside = np.zeros((1500, 8), bool)
    for t in range(1500):
        inside[t, cut.batch(t)] = True
    assert abs(inside.mean(0) - 0.5).max() < 5 * 0.5 / 1500**0.5
    pairs = (inside[:, :, None] & inside[:, None, :]).mean(0)[np.triu_indices(8, 1)]
    assert abs(pairs - 3 / 14).max() < 5 * 0.41 / 1500**0.5

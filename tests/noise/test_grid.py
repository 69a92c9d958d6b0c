"""Contributions on the grid: no entry, scale or length makes one larger than its clip norm."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.noise import grid
from anechoic.noise.grid import default_bits, is_short, largest_square, spacing, square_of, to_grid

AWKWARD = [0.0, -0.0, 1e-45, -1e-38, 1e-30, 1e-12, 1.0, -3.5, 1e12, 1e38, 3.4e38, 1e300, 5e-324, 1.7e308]
NOT_FINITE = [float("inf"), float("-inf"), float("nan")]
entries = st.one_of(st.sampled_from(AWKWARD), st.floats(allow_nan=False, allow_infinity=False))
norms = st.sampled_from([1e-250, 1e-30, 1e-12, 1e-6, 0.1, 1.0, 7.0, 1e6, 1e30, 1e300])


def exact_square(integers):
    return sum(int(q) ** 2 for q in np.asarray(integers).ravel().tolist())


@settings(derandomize=True, max_examples=400, deadline=None)
@given(st.lists(entries, min_size=1, max_size=40), norms, st.integers(2, 30), st.floats(0, 1))
@pytest.mark.slow
def test_no_contribution_is_longer_than_its_part_of_the_clip_norm(values, norm, bits, limit):
    found = to_grid(values, norm, bits, limit=limit)
    assert found.dtype == np.int64 and exact_square(found) <= largest_square(bits) < 4**bits
    assert exact_square(found) <= (2.0**bits * limit) ** 2


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=30), st.integers(10, 30))
@pytest.mark.slow
def test_it_is_the_clipped_contribution_rounded_towards_zero(values, bits):
    found, given_ = to_grid(values, 1.5, bits), np.array(values)
    unit = spacing(1.5, bits)
    norm = float(np.linalg.norm(given_))
    clipped = given_ if norm == 0 else given_ * min(1.0, 1.5 / norm)
    assert (np.abs(found) * unit <= np.abs(clipped) * (1 + 1e-12)).all()
    assert (np.abs(found * unit - clipped) <= unit * (1 + 1e-6) + 3e-7 * np.abs(clipped)).all()


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_what_is_not_finite_counts_as_zero(bad):
    assert not to_grid([1.0, bad, 2.0], 1.0, 20).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint64, bool])
def test_any_real_dtype_and_shape(dtype):
    assert to_grid(np.ones((2, 3), dtype), 1e9, 30).shape == (2, 3)
    assert not to_grid(np.ones((0,), dtype), 1.0, 10).size


def test_the_bound_is_counted_and_not_only_computed(monkeypatch):
    """With a clip norm that is wrongly applied the count of squares still holds."""
    monkeypatch.setattr(grid.math, "sqrt", lambda square: 0.5 * square)
    assert not to_grid([3.0, 4.0], 1.0, 20).any()
    monkeypatch.setattr(grid, "is_short", lambda integers, bits: True)
    assert to_grid([3.0, 4.0], 1.0, 20).any(), "without the count it would have passed"


@pytest.mark.parametrize("bits", [2, 15, 26, 30])
def test_squares_are_counted_exactly(bits):
    rng = np.random.default_rng(bits)
    integers = rng.integers(-(2**bits), 2**bits, size=5000)
    assert square_of(integers, bits) == exact_square(integers)
    assert square_of(np.array([2**bits + 1]), bits) > 4**bits
    assert square_of(np.array([2**62]), bits) > 4**bits


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.integers(2, 30), st.integers(-3, 3), st.lists(st.integers(0, 2**31), max_size=6))
@pytest.mark.slow
def test_short_is_decided_to_the_last_square(bits, off, others):
    """At the limit and beside it, where float64 cannot tell from 2**54 on."""
    limit = largest_square(bits)
    parts, left = [], limit + off
    while left > 0:  # the largest square each time: a few of them
        parts.append(math.isqrt(left))
        left -= parts[-1] ** 2
    for dtype in (np.int64, np.int32):
        assert is_short(np.array(parts, dtype), bits) == (off <= 0)
    free = np.array([other >> (31 - bits) for other in others], np.int64)
    assert is_short(free, bits) == (exact_square(free) <= limit)


def test_short_over_several_blocks(monkeypatch):
    monkeypatch.setattr(grid, "_BLOCK", 4)
    for last, short in ((1, True), (4, False)):
        assert is_short(np.array([[1] * 11 + [last]]), 2) == short  # 15 of 4**2, less the spare part
    for size in (0, 1, 4, 9):
        assert is_short(np.zeros(size, np.int64), 2)


@pytest.mark.parametrize("entry", [2**62, 2**63 - 1, -(2**63), 2**32, 2**31])
def test_no_entry_is_too_large_to_be_measured(entry):
    assert not is_short(np.array([entry, entry], np.int64), 30)


def test_default_bits_keep_the_loss_below_2_to_the_minus_15():
    for m in (1, 10, 10**4, 10**6, 10**7, 10**8):
        assert np.sqrt(m) * 2.0 ** -default_bits(m) <= 2.0**-15
    assert default_bits(10**30) == grid.MOST


@pytest.mark.parametrize("bits", [1, 31, 2.5, True, "20"])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match="grid_bits"):
        to_grid([1.0], 1.0, bits)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="no room"):
        to_grid([1.0], 1e-305, 20)
    with pytest.raises(ValueError, match="limit"):
        to_grid([1.0], 1.0, 20, limit=1.5)
    with pytest.raises(ValueError, match="real numbers"):
        to_grid([1.0j], 1.0, 20)

"""What a client contributes is never longer than the clip norm, counted in integers."""

import numpy as np
import pytest

from anechoic.federated import to_grid
from anechoic.federated.grid import fault_of_integers
from anechoic.noise.grid import largest_square


def square(integers):
    return sum(int(entry) ** 2 for entry in integers.ravel())


@pytest.mark.parametrize("bits", [4, 20, 30])
@pytest.mark.parametrize("size", [1e-300, 1e-3, 1.0, 1e30, 1e308])
def test_no_update_is_longer_than_the_clip_norm(bits, size):
    rng = np.random.default_rng(bits)
    for m in (1, 2, 7, 1000):
        found = to_grid(size * rng.uniform(-1, 1, m), clip_norm=0.3, grid_bits=bits)
        assert found.dtype == np.int64 and square(found) <= largest_square(bits) < 4**bits
        assert fault_of_integers(found, m, bits) is None


def test_integers_are_measured_without_overflow():
    bits = 30
    limit = largest_square(bits)
    edge = int(np.sqrt(limit)) - 1
    assert fault_of_integers(np.array([edge, 0]), 2, bits) is None
    # squares of these wrap around in int64, some to 0
    for entries in ([2**62, 0], [2**32, 2**32], [-(2**63), 0], [2**63 - 1, 1], [-(2**63)] * 2, [edge, edge]):
        assert fault_of_integers(np.array(entries, np.int64), 2, bits) == "longer than the clip norm"
    many = np.full(2**12, 2**29)  # each entry is short enough
    assert fault_of_integers(many, len(many), bits) == "longer than the clip norm"


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_narrow_integers_are_measured_as_wide_ones(dtype):
    """Squares of narrow integers wrap around in their own type, some to 0."""
    most = np.iinfo(dtype).max
    for bits in (2, 7, 15, 30):
        for entries in ([1, -1, 0], [most, -most - 1, 0], [most // 2 + 1] * 2, [2**bits - 1 & most, 0, 0]):
            given = np.array(entries, dtype)
            longer = sum(int(entry) ** 2 for entry in entries) > largest_square(bits)
            assert (fault_of_integers(given, len(given), bits) is not None) == longer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "no array"),
        ([1, 2], "no array"),
        (np.zeros(2), "float64"),
        (np.zeros(2, np.uint64), "uint64"),
        (np.zeros(2, np.uint8), "uint8"),
        (np.zeros(2, bool), "bool"),
        (np.zeros(2, "m8[s]"), "timedelta64"),
        (np.zeros(2, object), "object"),
        (np.zeros((2, 1), np.int64), "shape"),
        (np.zeros(3, np.int64), "shape"),
        (np.zeros(2, ">i8"), ">i8"),
        (np.ma.masked_array([2**40, 0], mask=[True, False]), "no array"),
        (np.zeros((2, 0), np.int64), "shape"),
    ],
)
def test_anything_else_is_named(given, words):
    assert words in fault_of_integers(given, 2, 20)

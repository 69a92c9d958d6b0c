"""Fading sums in split parts: exact but for one rounding below their unit, on arrays and on numbers alike."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import strategies as s
from anechoic.errors import GuaranteeError
from anechoic.noise import NoiseStream
from anechoic.noise.filter_choice import rounded_filter
from anechoic.noise.rounding import split_sums as split
from tests.floats import same_bits

DECAYS = st.one_of(st.floats(-1, 1), st.sampled_from([0.998, 0.5, 1.0, -1.0, 0.0, 1 - 2.0**-53, 2.0**-60]))


def exact(high, low):
    return Fraction(high) + Fraction(low)


@settings(deadline=None, max_examples=150)
@given(decay=DECAYS, exponent=st.integers(-30, 26), seed=st.integers(0, 10**6))
def test_a_step_is_off_by_no_more_than_is_proven(decay, exponent, seed):
    part, rng = split.SplitSum(2.0**exponent, decay), np.random.default_rng(seed)
    whole = max(1, int(split.LIMIT * part.unit / 4))
    high, low, spare = np.zeros(8), np.zeros(8), np.empty(8)
    part.begin(high, low, rng.integers(-whole, whole, 8).astype(float))
    for _ in range(4):
        row = rng.integers(-whole, whole, 8).astype(float)
        before = list(zip(high.tolist(), low.tolist(), strict=True))
        part.feed(high, low, row, spare)
        after = list(zip(high.tolist(), low.tolist(), strict=True))
        for old, new, number in zip(before, after, row.tolist(), strict=True):
            wanted = Fraction(decay) * exact(*old) + Fraction(number)
            if abs(wanted) > split.LIMIT * part.unit:
                return  # such memory is refused
            assert abs(exact(*new) - wanted) <= Fraction(split.ROUNDED) * Fraction(part.unit)
            assert (Fraction(new[0]) / Fraction(part.unit)).denominator == 1
            assert abs(new[1]) <= 0.51 * part.unit
            assert same_bits(part.fed(*old, number), new)


def test_the_high_part_of_a_decay_and_the_rest_are_the_decay():
    for decay in (0.998, 1 / 3, 1e-12, -0.7, 1.0, 1 - 2.0**-53):
        part = split.SplitSum(1.0, decay)
        assert Fraction(part.high) + Fraction(part.low) == Fraction(decay)
        assert abs(part.low) <= 2.0**-27


@pytest.mark.parametrize("n", [1, 2, 7, 500])
def test_spreads_are_those_of_the_sums(n):
    recurrence = s.BLT(n, [0.12, 0.13, 0.15], [0.998, 0.95, 0.2]).recurrence()
    step = np.diag(recurrence.decay) - np.outer(np.ones(3), recurrence.scale)
    covariance, vector = np.zeros((3, 3)), np.ones(3)
    for _ in range(n):
        covariance, vector = covariance + np.outer(vector, vector), step @ vector
    found = np.array(split._spreads(recurrence))
    assert (found >= np.sqrt(np.diag(covariance)) * (1 - 1e-12)).all()
    assert (found <= np.sqrt(2 * np.diag(covariance)) * (1 + 1e-9)).all()


def test_pairs_are_kept_where_split_parts_do_not_fit():
    slow = s.BLT(10**8, [0.2], [1 - 2.0**-20]).recurrence()
    narrow, wide = (rounded_filter(slow, 2.0**20, dimension) for dimension in (1, 100))
    assert narrow.sums is not None and narrow.drift() <= 2.0**-40
    assert wide.sums is None and wide.drift() <= 2.0**-40
    assert rounded_filter(s.BLT(40, [0.2], [0.9]).recurrence(), 2.0**60).sums is None
    assert rounded_filter(s.ColumnNormalized(s.BLT(40, [0.2], [0.9])).recurrence(), 2.0**20).sums is None
    assert rounded_filter(s.BLT(40, [0.2, 0.1], [0.9, 0.3]).recurrence(), 2.0**20, 10**9).drift() < 2.0**-40


def test_memory_for_which_there_is_no_room_is_refused(monkeypatch):
    monkeypatch.setattr(split, "ROOM", 1e-3)
    stream = NoiseStream(s.BLT(9, [0.3], [0.9]), 20, std=3.0, grid=2.0**-22)
    with pytest.raises(GuaranteeError, match="memory of the noise has grown"):
        state = stream.init()
        for _ in range(9):
            _, state = stream.next(state)

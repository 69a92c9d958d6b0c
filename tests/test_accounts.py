"""Accounts of who may take part, against what a schema allows to each unit by itself."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.participation.accounts import NEVER, Accounts, accounts_of, packed, unpacked
from anechoic.participation.base import Participation

N, UNITS = 9, 4


@dataclass(frozen=True)
class FirstHalf(Participation):
    """A schema from outside that says only what it must."""

    def max_participations_in(self, n):
        return (n + 1) // 2

    def patterns(self, n):
        yield tuple(range((n + 1) // 2))


SCHEMAS = st.one_of(
    st.just(Single()),
    st.just(FullBatch()),
    st.builds(Cyclic, st.integers(1, N + 1)),
    st.builds(OncePerEpoch, st.integers(1, N + 1)),
    st.builds(MinSep, st.integers(1, N + 1), st.none() | st.integers(1, 4)),
)
LISTED = st.lists(st.sets(st.integers(0, N - 1), min_size=1), min_size=1, max_size=4).map(Patterns)
RUNS = st.lists(st.lists(st.integers(0, UNITS - 1), max_size=8), min_size=N, max_size=N)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(SCHEMAS | LISTED | st.just(FirstHalf()), RUNS)
def test_a_unit_is_admitted_exactly_where_its_own_steps_allow_it(schema, batches):
    accounts, steps = accounts_of(schema, UNITS, N), [[] for _ in range(UNITS)]
    for t, batch in enumerate(batches):
        expected = [schema.allows([*steps[unit], t], N) for unit in batch]
        for _again in range(2):  # the same step twice is one participation
            assert accounts.admit(t, np.array(batch, np.int64)).tolist() == expected
        for unit, allowed in {*zip(batch, expected, strict=True)}:
            steps[unit] += [t] * allowed
    assert accounts.count.tolist() == [len(own) for own in steps]
    assert accounts.last.tolist() == [max(own, default=-1) for own in steps]
    gaps = [min((b - a for a, b in pairwise(own)), default=NEVER) for own in steps]
    assert accounts.nearest.tolist() == gaps


@settings(derandomize=True, max_examples=80, deadline=None)
@given(SCHEMAS, RUNS)
def test_the_first_step_is_the_first_that_the_schema_allows(schema, batches):
    accounts, steps, everybody = Accounts(schema, UNITS), [[] for _ in range(UNITS)], np.arange(UNITS)
    for t, batch in enumerate(batches):
        for unit in np.array(batch, np.int64)[accounts.admit(t, np.array(batch, np.int64))]:
            steps[unit] = [*dict.fromkeys([*steps[unit], t])]
        for unit, first in enumerate(accounts.first(t + 1, everybody)):
            later = (s for s in range(t + 1, 40) if schema.allows([*steps[unit], s], 40))
            assert min(first, NEVER) == next(later, NEVER)


@pytest.mark.parametrize("schema", [Single(), FullBatch(), Cyclic(2), OncePerEpoch(2), MinSep(2)], ids=str)
def test_a_unit_is_in_no_step_before_its_last_one(schema):
    accounts = Accounts(schema, 1)
    accounts.admit(6, np.array([0]))
    assert not any(accounts.may(t, np.array([0]))[0] for t in range(6)) and accounts.may(6, np.array([0]))[0]


@pytest.mark.parametrize("schema", [Cyclic(10**30), OncePerEpoch(10**30), MinSep(10**30, 10**40)], ids=str)
def test_rests_beyond_64_bits_never_end(schema):
    accounts = Accounts(schema, 2)
    accounts.admit(2**40, np.array([0]))
    assert accounts.first(2**41, np.array([0]))[0] >= NEVER and accounts.may(2**41, np.array([1]))[0]


def test_units_that_come_later_take_part_in_no_step_yet():
    accounts = Accounts(MinSep(3), 2)
    accounts.admit(0, np.array([0, 1]))
    accounts.grow(5)
    assert accounts.may(1, np.arange(5)).tolist() == [False, False, True, True, True]
    before = len(accounts.last)
    accounts.grow(3)
    assert len(accounts.last) == before


def test_a_schema_that_needs_all_steps_of_a_unit_is_refused_where_they_are_not_kept():
    with pytest.raises(UnsupportedError, match=r"Patterns.*Take MinSep"):
        Accounts(Patterns([(0, 1)]))


def test_columns_are_the_same_once_packed_and_read():
    columns = np.array([[1, 2**62], [-1, 0], [0, 255]])
    assert unpacked(packed(*columns), 3).tolist() == columns.tolist()
    assert unpacked([], 3).shape == (3, 0)

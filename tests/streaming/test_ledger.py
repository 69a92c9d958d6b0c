"""Ids of units: equal ones are one unit, others are not, and no id changes what becomes of another."""

import enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.streaming.ledger import Ledger, digests
from anechoic.streaming.stream_state import InMemory


class Name(str):
    """A subclass that prints otherwise."""

    __slots__ = ()

    def __str__(self):
        return "somebody"

    def encode(self, *_):
        return b"somebody"


class Number(int):
    def __str__(self):
        return "some number"


class Raw(bytes):
    pass


class Loose(str):
    """Equal to more than what it holds."""

    __slots__ = ()

    def __eq__(self, other):
        return self.lower() == other.lower()

    def __hash__(self):
        return hash(self.lower())


class Text(enum.StrEnum):
    ANN = "ann"


class Seven(enum.IntEnum):
    SEVEN = 7


def ledger():
    return Ledger(Single(), 1, bytes(32), InMemory().units)


def digests_of(ids):
    return digests(ids, len(ids) if hasattr(ids, "__len__") else 1, ledger().secret)


@pytest.mark.parametrize(
    "same",
    [
        ["ann", Name("ann"), Text.ANN, np.str_("ann")],
        [7, Number(7), Seven.SEVEN, np.uint8(7), np.int64(7), np.longlong(7)],
        [b"ann", Raw(b"ann"), np.bytes_(b"ann")],
        [10**5000, Number(10**5000)],
        [2**64, Number(2**64)],
    ],
)
def test_equal_ids_are_one_unit(same):
    assert len(set(same)) == 1
    assert len(set(digests_of(same))) == 1
    kept, _ = ledger().admit(digests_of(same), 0)
    assert kept.tolist() == [True] + [False] * (len(same) - 1)


def test_ids_that_differ_are_several_units():
    ids = [7, "7", b"7", -7, "a", "\0a", "\ud800", "\udfff", "\U00010000", "\ud800\udc00", 2**1024, 2**2000]
    ids += ["", hex(2**2000), 10**5000, 10**5000 + 1, b"", b"\0a"]
    assert len(set(ids)) == len(set(digests_of(ids))) == len(ids)


@pytest.mark.parametrize("form", [list, tuple, lambda ids: np.array([*ids], dtype=object)])
@pytest.mark.parametrize("odd", ["x", b"x", 2**70, "\ud800"])
def test_no_id_changes_what_another_is(form, odd):
    assert digests_of(form([7, "a\0", odd]))[:2] == digests_of([7, "a\0"])


def test_arrays_of_ids_are_read_as_lists_of_them():
    assert digests_of(np.array([7, 8], np.uint8)) == digests_of([7, 8])
    assert digests_of(np.array(["a", "b"])) == digests_of(["a", "b"])
    assert digests_of(np.ma.masked_array([7, 8], mask=False)) == digests_of([7, 8])
    assert digests_of(np.array([])) == []


def test_nuls_at_the_end_of_a_text_count_in_no_form():
    """Arrays of text drop them: as lists they would be other units."""
    ids = ["a\0", "a", "b\0\0", "\0", "a\0b"]
    listed = digests_of(ids)
    assert listed == digests_of(np.array(ids)) == digests_of(np.array(ids, dtype=object))
    assert listed[0] == listed[1] == digests_of([Name("a\0")])[0] and len(set(listed)) == 4
    assert digests_of([Loose("ann\0")]) == [None]
    ids = [b"a\0", b"a", b"b\0\0", b"\0", b"a\0b"]  # one in 256 raw hashes ends in one
    listed = digests_of(ids)
    assert listed == digests_of([*map(np.bytes_, ids)]) == digests_of(np.array(ids, dtype=object))
    assert listed[0] == listed[1] == digests_of([Raw(b"a\0")])[0] and len(set(listed)) == 4
    assert digests_of([b"a"])[0] != digests_of(["a"])[0]


class Failing:
    def _fail(self, *_):
        raise RuntimeError("secret 42")

    __class__ = property(_fail)
    __hash__ = __eq__ = __str__ = __repr__ = _fail


NO_IDS = [None, np.ma.masked, Loose("ann"), True, np.True_, 7.0, np.nan, np.datetime64(9, "ns"), (1, 2)]
NO_IDS += [Failing()]


@pytest.mark.parametrize("place", range(len(NO_IDS)))
def test_a_record_without_an_id_is_left_out_by_itself(place):
    one, wrong = ledger(), NO_IDS[place]
    units = digests_of([7, wrong, "a"])
    kept, refused = one.admit(units, 0)
    assert kept.tolist() == [True, False, True]
    assert refused == {"without an id that can be read": 1}
    assert digests_of(np.ma.masked_array([7, 8], mask=[0, 1])) == [units[0], None]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.array(["2020-01-01"], "M8[ns]"), "column of datetime64"),
        (np.array([1.0]), "column of float64"),
        (np.array([[1]]), "shape"),
        ("ann", "list with one entry"),
        ({1: 2}, "list with one entry"),
        ({1}, "list with one entry"),
        (7, "list with one entry"),
    ],
)
def test_the_rest_is_refused_in_words(ids, words):
    with pytest.raises(ValueError, match=words) as caught:
        digests_of(ids)
    assert "ann" not in str(caught.value)


BATCHES = st.lists(st.lists(st.integers(0, 3) | st.none(), max_size=9), min_size=8, max_size=8)
HELD_TO = [Single(), FullBatch(), MinSep(2), MinSep(3, 2), Cyclic(2), OncePerEpoch(3)]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.sampled_from(HELD_TO), st.integers(1, 3), BATCHES)
def test_the_first_records_count_of_each_unit_in_each_step_that_it_may_take_part_in(held_to, most, batches):
    """Record by record; two batches a step."""
    one, steps = Ledger(held_to, most, bytes(32), InMemory().units), {}
    for place, batch in enumerate(batches):
        step, expected = place // 2, []
        for unit in batch:
            own = steps.setdefault(unit, [])
            allowed = held_to.allows({*own, step}, 4) and own.count(step) < most
            expected.append(unit is not None and allowed)
            own += [step] * expected[-1]
        kept, refused = one.admit(digests_of(batch), step)
        assert kept.tolist() == expected and sum(refused.values()) == expected.count(False)


def test_records_that_are_left_out_are_counted_by_reason():
    one = Ledger(MinSep(2, 2), 1, bytes(32), InMemory().units)
    for step, reason in [(0, "beyond"), (1, "too few steps ago"), (2, None), (4, "as often as they may")]:
        _, refused = one.admit(digests_of([7, 7] if step == 0 else [7]), step)
        assert len(refused) == bool(reason) and all(reason in why for why in refused)

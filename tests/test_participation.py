"""Participation schemas: their patterns against the definitions, and how many fit."""

import json
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import _serialize
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Participation, Single


def subsets(n):
    for size in range(1, n + 1):
        yield from combinations(range(n), size)


def apart(steps, separation):
    return all(b - a >= separation for a, b in pairwise(steps))


def allowed(schema, n):
    """Every non-empty allowed pattern of n steps, from the definition in words."""
    for steps in subsets(n):
        match schema:
            case Single():
                held = len(steps) == 1
            case Cyclic(period=b):
                held = len({t % b for t in steps}) == 1
            case MinSep(separation=b, max_participations=k):
                held = apart(steps, b) and (k is None or len(steps) <= k)
            case OncePerEpoch(period=b):
                held = len({t // b for t in steps}) == len(steps)
            case _:
                held = True
        if held:
            yield steps


SCHEMAS = [
    Single(),
    FullBatch(),
    *(Cyclic(b) for b in (1, 2, 3, 5, 9)),
    *(OncePerEpoch(b) for b in (1, 2, 3, 5, 9)),
    *(MinSep(b, k) for b in (1, 2, 3, 5, 9) for k in (None, 1, 2, 3, 20)),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_patterns(schema):
    for n in (1, 2, 5, 6, 7):
        given_patterns = set(schema.patterns(n))
        definition = set(allowed(schema, n))
        assert given_patterns <= definition, n
        # every allowed pattern is part of a given one: leaving a step out is always allowed
        assert all(any(set(steps) <= set(whole) for whole in given_patterns) for steps in definition), n
        assert max(map(len, given_patterns)) == schema.max_participations_in(n) == max(map(len, definition))


@settings(max_examples=200)
@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**9) | st.none())
def test_most_participations(n, separation, limit):
    most = MinSep(separation, limit).max_participations_in(n)
    assert most >= 1
    assert (most - 1) * separation < n  # they fit
    assert most == limit or most * separation >= n  # and no more do
    assert Cyclic(separation).max_participations_in(n) == MinSep(separation).max_participations_in(n)


def test_cycles_are_separated_and_once_per_epoch():
    for n in (1, 5, 8):
        for b in (1, 2, 3, 8):
            cycles = set(allowed(Cyclic(b), n))
            assert cycles <= set(allowed(MinSep(b), n))
            assert cycles <= set(allowed(OncePerEpoch(b), n))


def test_steps_one_separation_apart_are_allowed():
    patterns = set(MinSep(3).patterns(7))
    assert (0, 3, 6) in patterns
    assert (0, 2) not in patterns


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_json_and_equality(schema):
    again = _serialize.decode(json.loads(json.dumps(_serialize.encode(schema))))
    assert again == schema
    assert hash(again) == hash(schema)
    assert isinstance(schema, Participation)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (Single(), "at most one step"),
        (Cyclic(7), "once every 7 steps"),
        (MinSep(7), "at least 7 steps apart"),
        (MinSep(7, 3), "at least 7 steps apart, at most 3 times"),
        (FullBatch(), "every step"),
        (OncePerEpoch(7), "at most once in each epoch of 7 steps"),
    ],
)
def test_a_statement_can_quote_it(schema, words):
    assert words in schema.describe()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cyclic(0), "period=0 must be at least 1"),
        (lambda: Cyclic(2.5), "period=2.5 must be an integer >= 1"),
        (lambda: Cyclic(float("nan")), "period=nan must be an integer"),
        (lambda: Cyclic(None), "period=None must be an integer"),
        (lambda: MinSep(0), "separation=0 must be at least 1"),
        (lambda: MinSep(-1), "separation=-1 must be at least 1"),
        (lambda: MinSep(True), "separation=True must be an integer"),
        (lambda: MinSep(1, 0), "max_participations=0 must be at least 1"),
        (lambda: MinSep(1, 1.5), "max_participations=1.5 must be an integer"),
        (lambda: OncePerEpoch(0), "period=0 must be at least 1"),
        (lambda: OncePerEpoch("3"), "period='3' must be an integer"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()

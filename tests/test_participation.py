"""Participation schemas: their patterns against the definitions, and how many fit."""

from dataclasses import dataclass
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.participation.base import Participation
from tests.marks import in_turn


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


@in_turn("schema", SCHEMAS)
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
@pytest.mark.slow
def test_most_participations(n, separation, limit):
    most = MinSep(separation, limit).max_participations_in(n)
    assert most >= 1
    assert (most - 1) * separation < n  # they fit
    assert most == limit or most * separation >= n  # and no more do
    assert Cyclic(separation).max_participations_in(n) == MinSep(separation).max_participations_in(n)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (Single(), "at most one step"),
        (Cyclic(7), "once every 7 steps"),
        (MinSep(7), "at least 7 steps apart"),
        (MinSep(7, 3), "at least 7 steps apart, at most 3 times"),
        (MinSep(1, 10), "each unit takes part in at most 10 steps"),
        (MinSep(1, 1), "each unit takes part in at most one step"),
        (MinSep(1), "each unit may take part in every step"),
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


@dataclass(frozen=True)
class Bare(Participation):
    """What another schema allows, known by its patterns alone."""

    schema: Participation

    def max_participations_in(self, n):
        return self.schema.max_participations_in(n)

    def patterns(self, n):
        yield from self.schema.patterns(n)


LISTED = [Patterns([(0, 4), (1, 2, 5)]), Patterns([(9,)])]


@in_turn("schema", [*SCHEMAS, *LISTED, *map(Bare, SCHEMAS[::4])])
def test_what_is_allowed_is_part_of_a_pattern(schema):
    for n in (1, 2, 5, 6):
        whole = [set(pattern) for pattern in schema.patterns(n)]
        for steps in subsets(n):
            assert schema.allows(steps[::-1], n) == any(pattern.issuperset(steps) for pattern in whole), steps
        pairs = schema.together(n)
        assert pairs.shape == (n, n)
        for s in range(n):
            assert not pairs[s, s]
            for t in range(s):
                assert pairs[s, t] == pairs[t, s] == schema.allows((s, t), n)


@pytest.mark.parametrize("steps", [(0, 0), (-1,), (3,)])
def test_steps_that_are_none_are_refused(steps):
    for schema in (Single(), FullBatch(), Cyclic(2), MinSep(2), OncePerEpoch(2), *LISTED):
        with pytest.raises(ValueError, match="must be distinct, and lie between 0 and n-1=2"):
            schema.allows(steps, 3)


@in_turn("schema", SCHEMAS)
def test_the_contained_cycle_is_allowed_and_no_shorter_one_is(schema):
    for n in (1, 2, 5, 7, 12):
        period = schema.contained_period(n)
        assert all(schema.allows(steps, n) for steps in Cyclic(period).patterns(n))
        if period > 1:
            assert not all(schema.allows(steps, n) for steps in Cyclic(period - 1).patterns(n))


@pytest.mark.parametrize("schema", [*LISTED, Bare(Single())], ids=str)
def test_a_schema_without_a_known_cycle_says_so(schema):
    with pytest.raises(UnsupportedError, match="bounds are known for"):
        schema.contained_period(6)

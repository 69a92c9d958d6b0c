"""Marks that tests share: which cases run every time, which in `make test-all`, and which in one test."""

import functools
import inspect
from itertools import combinations, cycle, islice, product

import pytest


def slow(*values):
    """Parameters that `make test-all` tries and `make test` leaves out; a tuple stands for several."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]


def mostly_slow(names, *, quick):
    """All `names` as parameters: those in `quick` in every run, the others as by `slow`."""
    missing = set(quick) - set(names)
    if missing:
        raise ValueError(f"quick={sorted(missing)} are not among the names: {sorted(names)}")
    return [name if name in quick else slow(name)[0] for name in names]


def spread(total, count):
    """Places of `count` of `total` things, as far apart as they can be; the first and the last among them."""
    if count >= total:
        return set(range(total))
    return {round(place * (total - 1) / max(count - 1, 1)) for place in range(count)}


def every_other(values):
    """The first, third, … of `values` in every run, the others as by `slow`: sweeps of one formula."""
    values = list(values)
    return [slow(value)[0] if place % 2 else value for place, value in enumerate(values)]


def each_once(*sets):
    """Combinations in which every value of every set occurs, in every run; all others as by `slow`.

    For tests that cost something. A value is itself a tuple where it stands for several parameters.
    """
    sets = [list(values) for values in sets]
    tried = [[place for place, value in enumerate(values) if not _marks(value)] for values in sets]
    quick = set(zip(*(islice(cycle(places), max(map(len, tried))) for places in tried), strict=True))
    return _combined(sets, product(*map(range, map(len, sets))), quick)


def each_pair(*sets):
    """As `each_once`, but any two values of different sets meet in every run: a third or fewer of all.

    Greedy, so always the same: each is the first of those that bring most pairs together for the first time.
    """
    sets = [list(values) for values in sets]

    def pairs(places):
        return set(combinations(enumerate(places), 2))

    every = list(product(*map(range, map(len, sets))))
    apart, quick = set().union(*map(pairs, every)), set()
    while apart:
        best = max(every, key=lambda places: len(apart & pairs(places)))
        apart -= pairs(best)
        quick.add(best)
    return _combined(sets, every, quick)


def in_turn(names, values):
    """`pytest.mark.parametrize` for cases that cost next to nothing: one test tries them one after another.

    What fails is named in a note; a case that skips leaves the others to run. Cases share the fixtures of
    the test.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [tuple(value) if len(names) > 1 else (value,) for value in values]
    if not cases or any(len(case) != len(names) for case in cases):
        raise ValueError(f"cases of {names} have as many values, and there is one at least: {cases}")

    def wrap(test):
        @functools.wraps(test)
        def run(*args, **fixtures):
            skipped = []
            for case in cases:
                given = dict(zip(names, case, strict=True))
                try:
                    test(*args, **fixtures, **given)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"in the case {given}")
                    raise
            if len(skipped) == len(cases):
                raise skipped[0]

        kept = [p for p in inspect.signature(test).parameters.values() if p.name not in names]
        run.__signature__ = inspect.Signature(kept)
        return run

    return wrap


def _combined(sets, every, quick):
    """The combinations of `every`, by the places of their values; those not in `quick` as by `slow`."""
    return [
        pytest.param(*_flat(sets, places), marks=[] if places in quick else pytest.mark.slow)
        for places in every
    ]


def _marks(value):
    """Marks that come with a value, as from `slow`."""
    return getattr(value, "marks", ())


def _flat(sets, places):
    """The parameters of one combination."""
    chosen = [values[place] for values, place in zip(sets, places, strict=True)]
    parts = [v.values if _marks(v) else v if isinstance(v, tuple) else (v,) for v in chosen]
    return [part for value in parts for part in value]

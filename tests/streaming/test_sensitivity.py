"""The guarantee attacked: whatever a unit feeds, C times what it changes has norm at most the sensitivity."""

import itertools
import warnings
from functools import lru_cache

import numpy as np
import pytest

from anechoic import streaming
from anechoic.participation import FullBatch, MinSep, Single
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.mechanisms import planned_mechanism
from anechoic.streaming.statistic import integer_rows, row_norms, row_sums
from tests.marks import each_once, in_turn
from tests.streaming.test_stream import NoNoise

STEPS = 6


def sums_of(make, feed):
    """Integer sums of every step, shape (steps, m), for a list of (step, unit, record)."""
    stream = make()
    for step in range(STEPS):
        here = [(unit, record) for t, unit, record in feed if t == step]
        ids = [unit for unit, _ in here] if stream.by_unit else None
        stream.update([record for _, record in here] if here else stream.nothing, unit_ids=ids)
        stream.release()
    rows = [stream._row(t) for t in range(STEPS)]
    return np.array(rows, dtype=np.float64), stream


def change(make, feed, unit):
    """||C (X - X')||_F in clip norms, for the stream with and without the records of a unit."""
    with_unit, stream = sums_of(make, feed)
    without, _ = sums_of(make, [part for part in feed if part[1] != unit])
    strategy = stream.mechanism.strategy
    moved = strategy.to_dense() @ ((with_unit - without) / 2.0**stream._noise.bits)
    return np.linalg.norm(moved), stream.mechanism.sensitivity.value


@lru_cache
def plan(participation):
    promise = {"over": streaming.Running(), "horizon": STEPS, "epsilon": 1.0, "delta": 1e-6, "dimension": 4}
    return planned_mechanism(participation=participation, **promise)


def maker(statistics, nothing, **promise):
    mechanism = plan(promise.get("participation", Single()))

    def make():
        stream = NoNoise(statistics(), mechanism=mechanism, **promise)
        stream.nothing = nothing
        return stream

    return make


EDGES = [0.0, 1.0, 2.5, 7.0]


def several():
    return {"n": streaming.Count(), "m": streaming.Mean(0, 1), "s": streaming.Sum(9.0)}


SETTINGS = [
    ("count", lambda: {"n": streaming.Count()}, [], lambda rng: 1.0),
    ("sum", lambda: {"s": streaming.Sum(2.0, 2)}, np.zeros((0, 2)), lambda rng: rng.normal(0, 3, 2)),
    ("mean", lambda: {"m": streaming.Mean(-1.0, 5.0)}, [], lambda rng: rng.normal(0, 9)),
    ("histogram", lambda: {"h": streaming.Histogram([0, 1, 2])}, [], lambda rng: int(rng.integers(4))),
    (
        "distribution",
        lambda: {"d": streaming.Distribution(EDGES)},
        [],
        lambda rng: rng.normal(4, 5),
    ),
    ("several", several, [], lambda rng: rng.normal(0, 20)),
]


@pytest.mark.parametrize(
    ("name", "statistics", "nothing", "draw", "participation", "per_step"),
    each_once(SETTINGS, [(Single(), 1), (MinSep(2, 2), 1), (MinSep(3), 2), (FullBatch(), 3)]),
)
@pytest.mark.slow
def test_no_feed_of_a_unit_changes_more_than_the_sensitivity(
    name, statistics, nothing, draw, participation, per_step
):
    make = maker(statistics, nothing, participation=participation, per_step=per_step)
    rng = np.random.default_rng(5)
    worst = 0.0
    for trial in range(6):
        feed = [
            (t, unit, draw(rng))
            for t in range(STEPS)
            for unit in ("greedy", "other", "greedy", "greedy")
            if trial == 0 or rng.random() < 0.7
        ]
        moved, allowed = change(make, feed, "greedy")
        assert moved <= allowed * (1 + 1e-12)
        worst = max(worst, moved / allowed)
    assert worst > 0.3  # something is at stake
    if name == "count":
        assert worst > 0.95  # and a greedy unit takes all of it


@pytest.mark.slow
def test_the_worst_pattern_is_reached_exactly_by_brute_force():
    """Over all sets of steps that a greedy unit may try, the largest change is the sensitivity."""
    make = maker(lambda: {"n": streaming.Count()}, [], participation=MinSep(2, 2))
    found = [
        change(make, [(t, "greedy", 1.0) for t in steps], "greedy")
        for size in range(1, STEPS + 1)
        for steps in itertools.combinations(range(STEPS), size)
    ]
    allowed = found[0][1]
    assert 0.9999 * allowed < max(moved for moved, _ in found) <= allowed


@pytest.mark.parametrize(
    "records", [[np.inf, -np.inf], [1.7e308, -1e300], [np.nan, 1.0], [5.0000001, -5.0], [1e-320, 0.0]]
)
def test_hostile_numbers_stay_within_the_bound(records):
    make = maker(lambda: {"s": streaming.Sum(5.0), "m": streaming.Mean(-5, 5)}, [])
    feed = [(t, "u" if t == 2 else "v", records[t % 2]) for t in range(STEPS)]
    moved, allowed = change(make, feed, "u")
    assert moved <= allowed


def test_vectors_at_the_end_of_the_range_are_clipped_like_others():
    rows = np.array([[1.7e308, 1.7e308, 0.0], [1e-320, 0.0, 1e308], [3.0, 4.0, 0.0]])
    found = integer_rows(rows, 5.0, 2**20)
    assert np.allclose(found / 2**20, [[5 / 2**0.5, 5 / 2**0.5, 0], [0, 0, 5], [3, 4, 0]], atol=1e-5)


def test_rows_of_integers_are_never_longer_than_their_bound():
    rng = np.random.default_rng(3)
    for scale in (1e-3, 1.0, 1e9):
        rows = rng.normal(0, scale, (200, 7))
        rows[:50] *= (1.7 / np.linalg.norm(rows[:50], axis=1))[:, None]  # on the bound, to rounding
        found = integer_rows(rows, 1.7, 2**20 + 7)
        exact = [sum(int(v) ** 2 for v in row) for row in found]
        assert max(exact) <= (1.7 * (2**20 + 7)) ** 2


TOP, TINY = np.finfo(float).max, 5e-324
WHOLE = {
    "sum": lambda b, c: streaming.Sum(b, 2),
    "mean": lambda b, c: streaming.Mean(c[0] / 2, c[0] / 2 + b),
    "histogram": lambda b, c: streaming.Histogram([0, 1]),
    "distribution": lambda b, c: streaming.Distribution([-b, 0.0, b, TOP]),
    "quantiles": lambda b, c: streaming.Quantiles([-b, 0.0, b, TOP]),
}


@pytest.mark.parametrize("name", WHOLE)
@in_turn(("bound", "centre"), [(0.5, [3.0, -1.0]), (1e-3, [-TOP, TOP]), (2.0, [0.0, TINY])])
@pytest.mark.few(5)
def test_no_number_takes_a_record_beyond_its_bound(name, bound, centre):
    if name == "mean" and abs(centre[0]) == TOP:
        centre = [7.0, 0.0]  # an interval so narrow does not exist there
    statistic = WHOLE[name](bound, centre)
    hostile = [TOP, -TOP, 1e300, -1.0, TINY, -1e-310, 0.0, np.inf, -np.inf, np.nan, 0.3]
    if name == "sum":
        records = np.array(list(itertools.product(hostile, repeat=2)))
    else:
        records = np.array(hostile)
    unit = 2**14 * int(2**20 / statistic.bound) if statistic.bound > 1e-2 else 2**40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for record in records:
            added = statistic.total(statistic.read(record[None]), None, unit)
            assert sum(int(entry) ** 2 for entry in added) <= (unit * statistic.bound) ** 2, record
        together = statistic.total(statistic.read(records), None, unit)
    alone = [statistic.total(statistic.read(record[None]), None, unit) for record in records]
    assert (together == np.sum(alone, axis=0)).all()


def test_sums_of_rows_are_sums():
    rows = np.arange(35.0).reshape(5, 7)
    assert (row_sums(rows) == rows.sum(axis=1)).all() and (row_sums(rows[:, :1]) == rows[:, 0]).all()
    assert row_sums(rows[:0]).shape == (0,)
    rows = np.random.default_rng(1).normal(size=(40, 100))
    for form in (np.ascontiguousarray, np.asfortranarray, lambda given: given[:7], lambda given: given[::2]):
        used = form(rows)
        assert (row_norms(used) == [row_norms(row[None])[0] for row in used]).all()


def test_rows_that_are_no_numbers_become_zero():
    rows = np.array([[np.nan, 1.0], [np.inf, 0.0], [-np.inf, np.nan], [0.0, 1.0]])
    assert integer_rows(rows, 2.0, 2**10).tolist() == [[0, 0], [0, 0], [0, 0], [0, 1024]]


class Hostile:
    """An entry that fails wherever it is looked at."""

    def _fail(self, *_):
        raise RuntimeError("secret 42")

    __hash__ = __eq__ = __str__ = __repr__ = __float__ = __len__ = __iter__ = __array__ = __bool__ = _fail
    __class__ = property(_fail)


ODD = [10**400, "secret", b"secret", 1j, None, [1.0], {}, "0.25", np.datetime64(7, "D"), Hostile()]
LISTS = [list, lambda records: np.fromiter(records, object, len(records))]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("place", range(len(ODD)))
@pytest.mark.few(53)
def test_a_record_that_is_no_number_is_left_out_by_itself(name, place):
    statistic, odd = WHOLE[name](0.5, [0.0, 0.0]), ODD[place]
    vectors = name == "sum"
    ordinary = [(v, 0.0) if vectors else v for v in (0.25, 1, 0.125)]
    for wrong, form in itertools.product([(odd, 0.0), odd] if vectors else [odd], LISTS):
        before = statistic.total(statistic.read(form(ordinary)), None, 2**20)
        for batch, added in ((form([*ordinary, wrong]), before), (form([wrong]), 0 * before)):
            read = statistic.read(batch)
            assert (statistic.total(read, None, 2**20) == added).all()
            assert read.count == len(batch) and sum(read.remarks.values()) >= 1


def test_masked_numbers_are_left_out():
    read = streaming.Sum(1.0).read(np.ma.masked_array([0.5, 0.75], mask=[False, True]))
    assert read.usable.tolist() == [True, False]


@pytest.mark.parametrize(
    ("categories", "ordinary", "odd"),
    [
        ([1, 2, 3], 1, "x"),
        ([0, 1, 2], 1, "x"),
        ([0, 1, 2], 1, None),
        ([2**53 + 1, 7], 2**53 + 1, 0.5),
        ([2**53 + 1, 2**53], 2**53 + 1, 2**53),
        (["AA", "UA"], "AA", b"\xff"),
        (["AA", "UA"], "AA", ("AA", "UA")),
        ([True, False], True, "x"),
        (["a", 1], 1, "a"),
        ([("a", 1), ("b", 2)], ("a", 1), ("b", 2)),
        (["a", "a\0"], "a", "a\0"),
        ([10**400, 0], 10**400, np.nan),
    ],
)
@in_turn("form", [list, tuple, lambda records: {"a": records}])
def test_one_odd_record_changes_no_other_category(categories, ordinary, odd, form):
    column = "a" if isinstance(form([]), dict) else None
    statistic = streaming.Histogram(categories, column)
    shared = SharedRelease({"h": statistic}, None, 1, 20)
    sums = [
        shared.sums(shared.read(form(records))[0], None)
        for records in ([ordinary] * 9, [ordinary] * 9 + [odd])
    ]
    known = [category is odd or category == odd for category in categories]
    assert (sums[1] - sums[0] == np.array(known) * shared.units["h"]).all()
    assert sums[0][0 if ordinary == categories[0] else 1] == 9 * shared.units["h"]


def test_arrays_and_columns_are_read_entry_by_entry():
    places = streaming.Histogram(range(3))
    for records in (
        np.array([2, 0, 9], np.uint64),
        np.array([2, 0, -(2**62)]),
        np.array([2.0, 0.0, np.nan]),
        np.ma.masked_array([2, 0, 1], mask=[0, 0, 1]),
        [np.int8(2), np.uint64(0), np.float32(0.5)],
    ):
        assert places.read(records).values.tolist() == [2, 0, -1]
    for wrong in ("210", {0: 1}, {0, 1}, 5, np.zeros((2, 1), int)):
        with pytest.raises(ValueError, match="one entry a record"):
            places.read(wrong)
    with pytest.raises(ValueError, match="plain values"):
        streaming.Histogram([[1], [2]])

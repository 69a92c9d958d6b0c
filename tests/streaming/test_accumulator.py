"""Sums that are made elsewhere: no order, partition or merge tree changes a bit, and no unit counts twice."""

import json
import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import streaming
from anechoic.errors import CheckpointError, GuaranteeError, HorizonError, MismatchError
from anechoic.participation import MinSep, Single
from anechoic.streaming.accumulator import Accumulator
from anechoic.streaming.columns import coded
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.mechanisms import planned_mechanism
from anechoic.streaming.statistic import checked_statistics
from tests.streaming.released import bytes_of
from tests.streaming.test_store import KEY, board

STATISTICS = {
    "n": streaming.Count("x"),
    "sum": streaming.Sum(2.0, column="x"),
    "mean": streaming.Mean(-1, 1, "x"),
    "kinds": streaming.Histogram(["a", "b", 7], "kind"),
    "below": streaming.Distribution([-1.0, 0.0, 0.5, 1.0], "x"),
    "by": streaming.Grouped(streaming.Mean(-1, 1, "x"), "kind", ["a", 7]),
    "below by": streaming.Grouped(streaming.Distribution([-1.0, 0.0, 0.5, 1.0], "x"), "kind", ["a", 7]),
}
RECORD = st.tuples(
    st.sampled_from(["ann", "bob", "cyd", 7, None]),
    st.sampled_from([-3.0, -0.5, 0.1, 0.25, 1.0, np.nan, np.inf]),
    st.sampled_from(["a", "b", 7, "other", None]),
)


@cache
def planned(participation, dimension):
    held = participation or Single()
    promise = {"over": streaming.Running(), "horizon": 6, "epsilon": 1.0, "delta": 1e-6}
    return planned_mechanism(participation=held, dimension=dimension, **promise)


def all_of(key=KEY, participation=None, per_step=1, statistics=STATISTICS, **more):
    mechanism = planned(participation, sum(one.dimension for one in checked_statistics(statistics).values()))
    promise = {"mechanism": mechanism, "participation": participation, "per_step": per_step, "key": key}
    return streaming.Stream(statistics, **promise, **more)


def columns(records):
    units, x, kinds = zip(*records, strict=True) if records else ((), (), ())
    return {"x": np.array(x, float), "kind": list(kinds)}, list(units)


def merged(data, spec, records, by_unit=True, wire=True):
    """Accumulators of a drawn partition of the records, merged as a drawn tree, some by way of bytes."""
    count = data.draw(st.integers(1, 4))
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=len(records), max_size=len(records)))
    order = data.draw(st.permutations(range(len(records))))
    parts = []
    for part in range(count):
        made = Accumulator(spec)
        for some in np.array_split([i for i in order if places[i] == part], 2):
            batch, units = columns([records[i] for i in some])
            made.add(batch, units if by_unit else None)
        parts.append(made)
    while len(parts) > 1:
        one = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        other = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(one.merge(Accumulator.from_bytes(other.to_bytes(), spec) if wire else other))
    return parts[0]


@settings(max_examples=6, deadline=None)
@given(data=st.data(), records=st.lists(RECORD, max_size=12))
def test_sums_of_any_partition_are_those_of_the_stream_that_got_the_records(data, records):
    direct, stream = all_of(), all_of()
    batch, _ = columns(records)
    direct.update(batch)
    made = merged(data, stream.accumulator_spec(), records, by_unit=False)
    assert stream.add_sums(made, batch_id="one")
    assert bytes_of(stream.release()) == bytes_of(direct.release())
    assert stream.diagnostics() == direct.diagnostics()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data(), records=st.lists(RECORD, max_size=12))
def test_so_are_those_of_units_that_the_ledger_bounds(data, records):
    """None has more records in the step than count there: then order would matter to the stream itself."""
    direct, stream = (all_of(participation=MinSep(2, 2), per_step=12) for _ in range(2))
    for step in range(4):
        batch, units = columns(records)
        direct.update(batch, units)
        made = merged(data, stream.accumulator_spec(), records)
        assert stream.add_sums(made, batch_id=("query", step))
        assert bytes_of(stream.release()) == bytes_of(direct.release())
        assert stream.diagnostics() == direct.diagnostics()


@settings(max_examples=6, deadline=None)
@given(data=st.data(), records=st.lists(RECORD, max_size=14), per_step=st.integers(1, 3))
def test_of_units_with_too_many_records_the_same_count_whatever_the_partition(data, records, per_step):
    stream = all_of(participation=MinSep(2, 2), per_step=per_step)
    spec = stream.accumulator_spec()
    one, two = (merged(data, spec, records) for _ in range(2))
    assert one.to_bytes() == two.to_bytes()
    # by brute force: of each unit the records that come first by a hash, none more
    units, rows = one.by_unit()
    known = [unit for unit, _, _ in records if unit is not None]
    assert sorted(units.count(unit) for unit in set(units)) == sorted(
        min(known.count(unit), per_step) for unit in set(known)
    )
    for unit in set(known):
        own = [record for record in records if record[0] == unit]
        alone = Accumulator(spec).add(columns(own)[0], [unit] * len(own)).by_unit()
        held = rows.toarray()[[name == alone[0][0] for name in units]]
        assert (held == alone[1].toarray()).all()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(records=st.lists(RECORD, max_size=8), data=st.data())
def test_one_unit_moves_the_sums_of_a_step_by_no_more_than_the_clip_norm(records, data):
    """However its records are spread over workers and batches: the attack that bounding by worker allows."""
    others = [record for record in records if record[0] != "ann"]
    sums = []
    for some in (records, others):
        stream = all_of(participation=MinSep(1, 2), per_step=2)
        for number in range(2):
            made = [merged(data, stream.accumulator_spec(), some) for _ in range(2)]
            stream.add_sums(made, batch_id=f"{number}")
        sums.append(stream._stream_state.open)
    moved = np.linalg.norm((sums[0] - sums[1]).astype(float))
    assert moved <= 2.0**stream.shared.bits * stream.shared.contribution


@pytest.mark.parametrize("name", STATISTICS)
def test_what_each_record_adds_is_what_it_adds_alone(name):
    statistic, unit = STATISTICS[name], 2**20
    records = [("u", x, kind) for x in (-3.0, 0.1, np.nan, 1.0, np.inf) for kind in ("a", "other", 7, None)]
    batch, _ = columns(records)
    read = statistic.read(batch if statistic.column is None else batch[statistic.column])
    each = statistic.each(read, unit)
    assert each.dtype == np.int64 and each.shape == (len(records), statistic.dimension)
    for place, row in enumerate(each.toarray()):
        assert (row == statistic.total(read, np.arange(len(records)) == place, unit)).all()
    assert (each.sum(axis=0) == statistic.total(read, None, unit)).all()


def test_an_id_that_was_seen_is_not_added_twice(tmp_path):
    with board(tmp_path / "s", key=KEY) as stream:
        made = Accumulator(stream).add({"x": [0.5, 0.1]}, ["a", "b"])
        assert stream.add_sums(made, batch_id=("q", 0)) and not stream.add_sums(made, batch_id=("q", 0))
        first = stream._stream_state.open
    with board(tmp_path / "s", key=KEY) as stream:
        assert not stream.add_sums(made, batch_id=("q", 0))
        again = Accumulator.from_bytes(made.to_bytes(), stream)  # as another process would send it
        assert not stream.add_sums(again, batch_id=("q", 0))
        assert (stream._stream_state.open == first).all()
        assert stream.add_sums(Accumulator(stream), batch_id=("q", 1))
        with pytest.raises(GuaranteeError, match="checkpoint was deleted"):
            stream.add_sums(Accumulator(stream), batch_id=("another", 0))
        assert stream.add_sums(Accumulator(stream), batch_id="by hand")


def test_a_query_goes_on_with_the_state_of_its_batches_alone():
    with board(key=KEY) as stream, pytest.raises(GuaranteeError, match="state is lost"):
        stream.add_sums(Accumulator(stream), batch_id=("q", 7))


@pytest.mark.parametrize("identity", ["", ("q",), ("q", -1), ("", 1), (1, "q"), None, "\0query"])
def test_what_names_no_batch_is_refused(identity):
    stream = board()
    with pytest.raises(ValueError, match=r"batch"):
        stream.add_sums(Accumulator(stream), batch_id=identity)


def test_sums_of_later_steps_wait_and_those_of_earlier_ones_are_left_out(tmp_path):
    direct = board(key=KEY)
    steps = [{"x": [0.1 * step]} for step in range(4)]
    expected = []
    for step, batch in enumerate(steps):
        direct.update(batch, [f"u{step}"])
        expected.append(bytes_of(direct.release()))
    with board(tmp_path / "s", key=KEY) as stream:
        some = [Accumulator(stream, step).add(steps[step], [f"u{step}"]) for step in (2, 0, 3, 1)]
        stream.add_sums(some[:2], batch_id="one")
    with board(tmp_path / "s", key=KEY) as stream:
        stream.add_sums(some[2:], batch_id="two")
        found = [bytes_of(stream.release()) for _ in range(2)]
    with board(tmp_path / "s", key=KEY) as stream:
        again = Accumulator.from_bytes(some[1].to_bytes(), stream)
        stream.add_sums([again, Accumulator(stream, 10**9).add({"x": [1]}, ["z"])], batch_id="late")
        found += [bytes_of(stream.release()) for _ in range(2)]
        assert stream.diagnostics() == {"of steps that were released before": 1, "of steps too far ahead": 1}
    assert found == expected


def test_sums_can_take_the_place_of_batches():
    direct, stream = board(key=KEY), board(key=KEY)
    batches, units = [{"x": [0.5, 0.1]}, {"x": [0.2]}], [["a", "b"], ["c"]]
    made = [Accumulator(stream).add(batch, ids) for batch, ids in zip(batches, units, strict=True)]
    expected = direct.steps(batches, unit_ids=units)
    assert [*map(bytes_of, stream.steps(made))] == [*map(bytes_of, expected)]
    with pytest.raises(MismatchError, match="add_sums sorts steps"):
        stream.update(Accumulator(stream, 7))


def test_no_sum_leaves_its_integers():
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4)
    half = 2**61 // stream.shared.reach(1) + 1
    made = Accumulator(stream).add(half)
    with pytest.raises(ValueError, match="64 bits"):
        made.merge(Accumulator(stream, made.step).add(half))
    with pytest.raises(ValueError, match="64 bits"):
        made.add(half)
    ahead = Accumulator(stream, 1).add(half)
    assert stream.add_sums(made, batch_id="a")
    before = stream._stream_state.open
    with pytest.raises(HorizonError, match="64 bits"):
        stream.add_sums(ahead, batch_id="b")
    assert (stream._stream_state.open == before).all() and not stream._stream_state.ahead
    assert stream.add_sums(Accumulator(stream, 1).add(1), batch_id="b")  # nothing of it was kept
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4)
    assert stream.add_sums(Accumulator(stream, 1).add(half), batch_id="a")
    with pytest.raises(HorizonError, match="64 bits"):  # of two later steps, with nothing in the open one
        stream.add_sums(Accumulator(stream, 2).add(half), batch_id="b")


def test_sums_of_another_stream_statistic_or_step_are_refused():
    stream = board(key=KEY)
    made = Accumulator(stream).add({"x": [0.5]}, ["a"])
    for other in (board(key=bytes(32)), board(key=KEY, level=0.5)):
        with pytest.raises(MismatchError, match="another stream"):
            other.add_sums(made, batch_id="a")
        with pytest.raises(MismatchError, match="another stream"):
            Accumulator.from_bytes(made.to_bytes(), other)
        with pytest.raises(MismatchError, match="another stream"):
            Accumulator(other).merge(made)
    spec = json.loads(stream.accumulator_spec())
    spec["statistics"]["m"]["high"] = 3  # of this stream, it says, and is another statistic
    spec["encoding"] = SharedRelease(
        {"n": streaming.Count("x"), "m": streaming.Mean(-1, 3, "x")}, None, 1, spec["bits"]
    ).encoding
    with pytest.raises(MismatchError, match="other statistics"):
        stream.add_sums(Accumulator(json.dumps(spec)), batch_id="a")
    with pytest.raises(MismatchError, match="step"):
        made.merge(Accumulator(stream, 1))
    with pytest.raises(ValueError, match="some accumulators have a step"):
        stream.add_sums([made, Accumulator(stream, 1)], batch_id="a")


@pytest.mark.usefixtures("salted")
def test_two_streams_of_one_key_are_two(tmp_path):
    made = Accumulator(board(key=KEY)).add({"x": [0.5]}, ["a"])
    for other in (board(key=KEY), board(tmp_path / "s", key=KEY)):
        with pytest.raises(MismatchError, match="another stream"):
            other.add_sums(made, batch_id="a")
    with board(tmp_path / "t", key=KEY) as stream:
        made = Accumulator(stream).add({"x": [0.5]}, ["a"])
    with board(tmp_path / "t", key=KEY) as stream:
        assert stream.add_sums(made, batch_id="a")  # opened again it is the same


def test_damaged_bytes_are_seen():
    stream = board()
    sent = Accumulator(stream).add({"x": [0.5, 0.25]}, ["a", "b"]).to_bytes()
    for place in range(len(sent)):
        wrong = bytearray(sent)
        wrong[place] ^= 1
        with pytest.raises(CheckpointError):
            Accumulator.from_bytes(bytes(wrong), stream)
    for cut in (0, 5, 20, len(sent) - 1):
        with pytest.raises(CheckpointError):
            Accumulator.from_bytes(sent[:cut], stream)


def test_one_accumulator_counts_once():
    """The attack: the same object by two ways into a stream whose records are units."""
    stream = all_of(statistics=streaming.Count())

    def made(step=None):
        return Accumulator(stream, step).add(["x"])

    one, other = made(), made()
    whole = made().merge(one)
    for twice in (lambda: one.merge(one), lambda: whole.merge(one), lambda: one.merge(whole)):
        with pytest.raises(MismatchError, match="count twice"):
            twice()
    with pytest.raises(MismatchError, match="count twice"):
        stream.add_sums([one, one], batch_id="a")
    with pytest.raises(GuaranteeError, match="count twice"):
        stream.steps([one, one])
    assert one.count == 1 and not stream._stream_state.open.any()
    assert stream.add_sums(whole, batch_id="a") and not stream.add_sums(whole, batch_id="a")
    assert stream.update(other, batch_id="b") and not stream.update(other, batch_id="b")
    stepped = made()
    (release,) = stream.steps([stepped], batch_ids=["c"])
    assert bytes_of(stream.steps([stepped], batch_ids=["c"])[0]) == bytes_of(release)
    for again in (whole, one, other, made().merge(one), stepped, stepped.add(["y"])):
        for twice in (
            lambda again=again: stream.update(again),
            lambda again=again: stream.steps([again]),
            lambda again=again: stream.add_sums(again, batch_id="d"),
        ):
            with pytest.raises(GuaranteeError, match="count twice"):
                twice()
    assert stream.step == 1 and not stream._stream_state.open.any()
    stream.steps([Accumulator(stream)] * 2)  # which hold nothing
    ahead = made(step=10**9)  # left out, so that it may come again
    assert stream.add_sums(ahead, batch_id="e") and stream.add_sums(ahead, batch_id="f")


def test_a_description_holds_no_key_and_one_of_another_version_is_refused():
    stream = board(key=KEY)
    spec = stream.accumulator_spec()
    assert KEY.hex() not in spec and json.loads(spec)["secret"] != KEY.hex()
    made = pickle.loads(pickle.dumps(Accumulator(spec).add({"x": [0.5]}, ["a"])))
    assert made.count == 1 and stream.add_sums(made, batch_id="a")
    other = json.dumps({**json.loads(spec), "format": 2})
    with pytest.raises(ValueError, match="same version of anechoic"):
        Accumulator(other)
    with pytest.raises(MismatchError, match="encodes records in another way"):
        Accumulator(json.dumps({**json.loads(spec), "encoding": "00"}))
    with pytest.raises(ValueError, match="must be a Stream"):
        Accumulator(7)


def test_units_are_asked_for_where_the_stream_has_them():
    with pytest.raises(ValueError, match="give one id a record"):
        Accumulator(board()).add({"x": [0.5]})
    with pytest.raises(ValueError, match="2 unit_ids for 1 records"):
        Accumulator(board()).add({"x": [0.5]}, ["a", "b"])
    with pytest.raises(ValueError, match="a unit of its own"):
        Accumulator(all_of()).add(columns([("a", 0.5, "a")])[0], ["a"])


# -- columns of engines ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "batch", "dictionary", "polars", "pandas"])
def test_columns_of_engines_are_read_as_lists_are(kind):
    arrow = pytest.importorskip("pyarrow")
    records = [
        ("ann", 0.5, "a"),
        ("bob", None, "b"),
        (None, -3.0, "other"),
        ("ann", 0.25, None),
        ("", 0.0, "b"),
    ]
    names = ("who", "x", "kind")
    table = arrow.table(dict(zip(names, map(list, zip(*records, strict=True)), strict=True)))
    if kind == "batch":
        (table,) = table.to_batches()
    elif kind == "dictionary":
        more = arrow.table({**{n: table[n] for n in ("who", "x")}, "kind": table["kind"].dictionary_encode()})
        table = arrow.concat_tables([more.slice(0, 1), more.slice(1)])
    elif kind == "polars":
        table = pytest.importorskip("polars").from_arrow(table)
    elif kind == "pandas":
        pytest.importorskip("pandas")
        table = table.to_pandas()
    stream = all_of(participation=MinSep(2, 2), per_step=2)
    batch, units = columns([(u, np.nan if x is None else x, k) for u, x, k in records])
    expected = Accumulator(stream).add(batch, units)
    assert Accumulator(stream).add(table, table["who"]).to_bytes() == expected.to_bytes()
    stream.update(table, table["who"])


def test_columns_that_cannot_be_coded_are_read_entry_by_entry():
    arrow = pytest.importorskip("pyarrow")
    assert coded(arrow.array([[1], [2]])) is None and coded([1]) is None
    stream = all_of(statistics=streaming.Histogram([1, 2]))
    assert Accumulator(stream).add(arrow.array([[1], [2]])).remarks == {"histogram: unknown category": 2}

"""Categories that nobody listed, added up elsewhere: the law of records, and no other key is shown."""

import pickle

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.participation import FullBatch, MinSep, OncePerEpoch, Single
from anechoic.streaming import Accumulator, PartitionSelectionHistogram
from anechoic.streaming.accumulator import PartitionSelectionAccumulator
from tests.streaming.released import bytes_of

STEPS = 6
KEY = bytes(range(32))
PARTICIPATIONS = [None, Single(), MinSep(2, 2), OncePerEpoch(3), FullBatch()]


def histogram(participation=None, most=5, **more):
    how = {"epsilon": 4.0, "horizon": STEPS, "key": KEY, "participation": participation, **more}
    return PartitionSelectionHistogram("kind", categories_per_unit=most if participation else 1, **how)


def drawn(rng, records=300, units=60):
    """(step, unit, category), and some that are none."""
    kinds = ["flu"] * 6 + ["measles", "mumps", None, 3]
    return [(1, "u1", "a rare one")] + [
        (int(rng.integers(STEPS)), f"u{rng.integers(units)}", kinds[rng.integers(len(kinds))])
        for _ in range(records)
    ]


def added(made, records):
    units = None if made.layout.secret is None else [unit for _, unit, _ in records]
    return made.add({"kind": [kind for *_, kind in records]}, units)


def merged(of, records, rng, step=None, parts=4):
    """Some workers' accumulators of records in any order, by way of bytes, as any tree."""
    places = rng.integers(parts, size=len(records))
    made = [
        added(
            Accumulator(of.accumulator_spec(), step),
            [records[i] for i in rng.permutation(len(records)) if places[i] == part],
        )
        for part in range(parts)
    ]
    made = [Accumulator.from_bytes(one.to_bytes(), of) for one in made]
    while len(made) > 1:
        one = made.pop(int(rng.integers(len(made))))
        made[int(rng.integers(len(made)))].merge(one)
    return made[0]


def by_records(of, records):
    found = []
    for step in range(STEPS):
        own = [record for record in records if record[0] == step]
        units = [unit for _, unit, _ in own] if of.by_unit else None
        of.update({"kind": [kind for *_, kind in own]}, units)
        found.append(of.release(step))
    return found


def totals(of):
    return dict(zip(of._noise.names, of._stream_state.total.tolist(), strict=True))


def same(one, other):
    return [*map(bytes_of, one)] == [*map(bytes_of, other)]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.few(3)
def test_releases_are_bit_for_bit_those_of_the_records(participation, seed):
    rng = np.random.default_rng(seed)
    records = drawn(rng)
    direct, step_by_step, at_once = (histogram(participation) for _ in range(3))
    expected = by_records(direct, records)
    assert "flu" in expected[-1].named() and totals(direct).keys() > expected[-1].named().keys()
    found = []
    for step in range(STEPS):
        own = [record for record in records if record[0] == step]
        assert step_by_step.add_sums(merged(step_by_step, own, rng), batch_id=f"{step}")
        found.append(step_by_step.release(step))
    assert same(found, expected) and totals(step_by_step) == totals(direct)
    # all steps in one batch: those to come wait, and are not there before
    every = [merged(at_once, [r for r in records if r[0] == step], rng, step) for step in range(STEPS)]
    assert at_once.add_sums(every, batch_id="all") and not at_once.add_sums(every, batch_id="all")
    at_once.end_steps(range(STEPS))
    assert same(at_once.releases(), expected) and totals(at_once) == totals(direct)


def test_a_category_of_later_steps_is_not_there_before():
    """Its noise alone could pass the threshold, and would say that it comes."""
    of = histogram()
    of.add_sums(added(Accumulator(of, 3), [(3, None, "flu")] * 10**6), batch_id="a")
    of.end_steps([None] * 2)
    assert not totals(of)
    of.end_steps([None])
    assert totals(of) and not of.get().named()  # there, and its step not over
    of.end_steps([None])
    assert list(of.get().named()) == ["flu"]


@pytest.mark.parametrize("participation", PARTICIPATIONS[1:], ids=repr)
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.few(3)
def test_one_unit_changes_few_categories_by_one_in_steps_that_it_may_touch(participation, most):
    """Neighbours that differ in one unit, which is in far more categories than count, on several workers."""
    rng = np.random.default_rng(5)
    for _ in range(3):
        own = [(step, "own", f"c{rng.integers(9)}") for step in range(STEPS) for _ in range(6)]
        others = [(step, f"u{i}", f"c{i % 9}") for step in range(STEPS) for i in range(18)]
        worlds = []
        for records in ([*own, *others], others):
            of, seen = histogram(participation, most), []
            for step in range(STEPS):
                of.add_sums(merged(of, [r for r in records if r[0] == step], rng), batch_id=f"{step}")
                of.release()
                seen.append(totals(of))
            worlds.append((of, seen))
        (of, one), (_, other) = worlds
        changed = {
            name: np.diff([one[step][name] - other[step][name] for step in range(STEPS)], prepend=0)
            for name in one[0]
        }
        moved = {name: np.flatnonzero(change) for name, change in changed.items() if change.any()}
        assert 0 < len(moved) <= most
        for name, steps in moved.items():
            assert participation.allows({int(step) for step in steps}, STEPS)
            assert set(changed[name][steps].tolist()) == {of._one}
        assert most * of._one**2 <= 4**of.cost.mechanism.grid_bits


@pytest.mark.parametrize("units", [False, True])
def test_what_is_released_holds_no_category_that_was_not_chosen(tmp_path, units):
    of = histogram(Single() if units else None, state=tmp_path / "s.db")
    records = [(0, f"u{i}", "flu") for i in range(900)] + [(0, "u7", "a rare one"), (2, "u8", "a later one")]
    for step in (0, 2):
        own = [record for record in records if record[0] == step]
        sums = added(Accumulator(of.accumulator_spec(), step), own)
        assert (b"a rare one" in sums.to_bytes()) == (step == 0)  # it leaves the worker
        of.add_sums(sums, batch_id=f"{step}")
    made = of.release()
    of.close()
    for secret in ("a rare one", "a later one"):
        assert secret not in of.accumulator_spec() and secret.encode() not in bytes_of(made)
    assert list(made.named()) == ["flu"]


def test_opened_again_after_every_call_it_goes_on_bit_for_bit(tmp_path):
    rng = np.random.default_rng(3)
    records = drawn(rng)
    expected = by_records(histogram(Single()), records)
    path = tmp_path / "s.db"
    with histogram(Single(), state=path) as of:
        every = [merged(of, [r for r in records if r[0] == step], rng, step) for step in range(STEPS)]
        of.add_sums(every, batch_id="all")
    for step in range(STEPS):
        with histogram(Single(), state=path) as of:
            assert not of.add_sums(every, batch_id="all")
            of.release(step)
            assert same(of.releases(), expected[: step + 1])


def test_records_that_come_twice_or_from_elsewhere_are_refused():
    of, other = histogram(), histogram(key=bytes(32))
    made = added(Accumulator(of), [(0, None, "flu")])
    assert isinstance(made, PartitionSelectionAccumulator) and made.count == 1
    assert of.add_sums(made, batch_id="a")
    with pytest.raises(GuaranteeError, match="added before"):
        of.add_sums(made, batch_id="b")
    with pytest.raises(MismatchError, match="twice"):
        made.merge(made)
    with pytest.raises(MismatchError, match="another stream"):
        other.add_sums(added(Accumulator(of), [(0, None, "flu")]), batch_id="a")
    with pytest.raises(MismatchError, match="another stream"):
        streaming.Stream(streaming.Count("kind"), epsilon=1.0).add_sums(Accumulator(of), batch_id="a")
    with pytest.raises(ValueError, match="a unit of its own"):
        made.add({"kind": ["flu"]}, ["ann"])
    with pytest.raises(ValueError, match="no column 'kind'"):
        made.add({"other": ["flu"]})
    with pytest.raises(ValueError, match="one id a record"):
        Accumulator(histogram(Single())).add({"kind": ["flu"]}, ["ann", "bob"])
    with pytest.raises(ValueError, match="more than 64 bits hold"):
        made.count = 2**62
        made.add({"kind": ["flu"]})


def test_it_is_pickled_and_the_same_records_give_the_same_bytes():
    rng = np.random.default_rng(0)
    for participation in (None, Single()):
        of = histogram(participation)
        records = [*drawn(rng), (0, None, "flu"), (0, "u1", "\ud800odd")]
        one, other = (merged(of, records, rng) for _ in range(2))
        again = pickle.loads(pickle.dumps(one))
        assert type(again) is PartitionSelectionAccumulator
        assert one.to_bytes() == other.to_bytes() == again.to_bytes()


def test_columns_of_arrow_and_polars_are_counted_by_their_values():
    arrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    kinds = ["a", None, "b\0", "b", "", "a"] * 5
    expected = Accumulator(of := histogram()).add({"kind": kinds}).to_bytes()
    table = arrow.table({"kind": kinds})
    for frame in (table, polars.from_arrow(table), table.to_batches()[0]):
        assert Accumulator(of).add(frame).to_bytes() == expected
        direct, other = histogram(), histogram()
        direct.update(frame)
        other.add_sums(Accumulator(other).add(frame), batch_id="a")
        assert totals(direct) == totals(other) and direct.diagnostics() == other.diagnostics()

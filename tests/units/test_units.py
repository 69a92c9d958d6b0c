"""Units: who owns what, and that no unit ever moves a sum by more than the clip norm."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.batches.base import batches_of
from anechoic.batches.of_units import UnitBatches
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.units.batch import UnitBatch
from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units
from tests.marks import each_once, each_pair, every_other, in_turn

KEY = bytes(range(32))
NONE = np.zeros(0, dtype=np.uint64)


# Labels.


@pytest.mark.parametrize(
    "labels",
    [
        np.array([7, 3, 7, 9]),
        [7, 3, 7, 9],
        ["b", "a", "b", "c"],
        np.array(["b", "a", "b", "c"]),
        np.array(["b", "a", "b", "c"], dtype=object),
        [[7], [3], [7, 7], [9]],
        [("x",), {"y"}, frozenset({"x"}), ["z"]],
        np.array([[7], [3], [7], [9]]),
        np.array(["2024-01-02", "2024-01-01", "2024-01-02", "2023-01-01"], dtype="datetime64[D]"),
        [7.5, 3.0, 7.5, 9.0],
    ],
    ids=str,
)
def test_units_are_numbered_by_first_appearance(labels):
    units = Units(labels)
    offsets, owners = units.owners
    assert offsets.tolist() == [0, 1, 2, 3, 4]
    assert owners.tolist() == [0, 1, 0, 2]
    assert (units.count, units.examples, units.largest, units.shared) == (3, 4, 2, 0)
    assert [units.of(u).tolist() for u in range(3)] == [[0, 2], [1], [3]]
    assert units.digest == Units([0, 1, 0, 2]).digest


@pytest.mark.parametrize("wrap", [0, 1], ids=["shape ()", "shape (1,)"])
def test_scalars_of_torch_and_numpy_are_their_values(wrap):
    # a torch tensor hashes by identity: one unit an example, if it were the label
    torch = pytest.importorskip("torch")
    expected = Units([5, 5, 2]).digest
    values = [5, 5, 2]
    for make in (torch.tensor, np.array):
        assert Units([make([v] if wrap else v) for v in values]).digest == expected
        assert Units([[make([v] if wrap else v)] for v in values]).digest == expected
    holder = np.empty(3, dtype=object)
    holder[:] = [torch.tensor(v) for v in values]
    assert Units(holder).digest == expected
    assert Units([[("a", torch.tensor(v))] for v in values]).digest == expected


class Person:
    def __init__(self, name):
        self.name = name


@in_turn(
    ("labels", "reason"),
    [
        ([1, "1", 1], r"unit_ids\[1\]='1' is of kind str, unit_ids\[0\]=1 of kind number"),
        (["1", b"1"], "of kind bytes"),
        ([["a", 1], ["b", 1]], "of kind number"),
        ([("hospital", 1), ("hospital", 2)], "join a label of several parts to one string"),
        ([[("a", 1)], [("a", "1")]], r"of kind \(str, str\)"),
        ([np.datetime64("2024-01-01", "D"), np.datetime64("2024-01-01", "ns")], "of kind"),
        ([Person("a"), Person("a")], "compared by identity"),
        ([[Person("a")], [Person("a")]], "compared by identity"),
        (np.ma.array([5, 5, 6], mask=[0, 1, 0]), r"unit_ids\[1\] is masked"),
        (np.ma.array([[5, 5], [6, 6]], mask=[[0, 0], [0, 1]]), r"unit_ids\[1, 1\] is masked"),
        ([np.ma.array([5, 6], mask=[0, 1])], "masked entries"),
        ([np.ma.masked, 1], "is masked"),
        (5, "is no list"),
        (np.array([(1, 2)], dtype=[("a", int), ("b", int)]), "structured"),
        (np.array(["NaT", 1], dtype="m8[ns]"), "not a number"),
        (np.array([[1.0, np.nan]]), r"unit_ids\[0\] is not a number"),
        ([np.zeros((2, 2))], "shape"),
        ([[np.zeros(2)]], "holds a label of shape"),
        ([], "unit_ids is empty"),
        ("abc", "unit_ids is a str"),
        ({0: "a"}, "unit_ids is a dict"),
        ({"a", "b"}, "unit_ids is a set"),
        (np.array(3), "shape"),
        ([1, None], r"unit_ids\[1\]=None is missing"),
        ([1.0, float("nan")], r"unit_ids\[1\]=nan is missing"),
        (np.array([1.0, np.nan]), r"unit_ids\[1\] is not a number"),
        ([[1], []], r"unit_ids\[1\] names no owner"),
        ([[1], 2], "of two kinds"),
        ([{}, 1], "cannot be a label"),
        (np.zeros((2, 2, 2)), "shape"),
    ],
)
def test_labels_that_would_split_or_merge_units_are_refused(labels, reason):
    with pytest.raises(ValueError, match=reason):
        Units(labels)


@pytest.mark.parametrize("word", ["", "nan", "NaN", "None", "NaT", "<NA>"])
def test_words_for_a_missing_label_are_refused(word):
    for labels in (
        ["a", word],
        np.array(["a", word]),
        np.array([["a", word]]),
        np.array([b"a", word.encode()]),
        [b"a", word.encode()],
        [["a"], ["a", word]],
        np.array(["a", word], dtype=object),
    ):
        with pytest.raises(ValueError, match=r"write it otherwise \('user"):
            Units(labels)
    Units(["Nan", "none", "Nancy"])


def test_units_cannot_be_changed():
    units = Units([[0, 1], [1], [2]], max_examples=1)
    for name, value in (("max_examples", None), ("combine", "mean"), ("count", 9), ("_owners", None)):
        with pytest.raises(AttributeError, match=f"{name} of Units cannot be changed"):
            setattr(units, name, value)
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del units.max_examples
    for kept in (units, copy.deepcopy(units), pickle.loads(pickle.dumps(units))):
        assert (kept.max_examples, kept.digest) == (1, units.digest)
        for array in (*kept.owners, kept.sizes, kept.owner_counts, kept.of(0)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_several_owners():
    units = Units([["a", "b"], ["b"], ["c", "a", "c"], ["c"]])
    offsets, owners = units.owners
    assert offsets.tolist() == [0, 2, 3, 5, 6]
    assert owners.tolist() == [0, 1, 1, 0, 2, 2]
    assert (units.shared, units.largest, units.largest_own) == (2, 2, 1)
    assert units.of(0).tolist() == [0, 2]
    assert units.static_counts().tolist() == [2, 2, 2]
    assert "2 examples have several owners" in units.describe()


def test_the_digest_tells_ownership_and_options_apart():
    ids = [0, 0, 1, 2]
    found = {
        Units(ids).digest,
        Units([0, 1, 1, 2]).digest,
        Units([[0], [0], [1, 0], [2]]).digest,
        Units(ids, combine="mean").digest,
        Units(ids, max_examples=2).digest,
        Units([*ids, 2]).digest,
    }
    assert len(found) == 6
    assert Units(["x", "x", "y", "z"]).digest in found  # names do not matter


def test_options_are_checked():
    with pytest.raises(ValueError, match="combine='median'"):
        Units([1, 2], combine="median")
    with pytest.raises(ValueError, match="max_examples=0"):
        Units([1, 2], max_examples=0)
    with pytest.raises(ValueError, match="unit=2"):
        Units([1, 2]).of(2)


# The bound, by brute force.


def contributions(batch, gradients, clip_norm=1.0):
    """What each item adds, written out; `gradients` maps an example to its gradient."""
    found = []
    for item in range(batch.count):
        total = sum(gradients[e] for e in batch.examples[batch.items == item]) * batch.scales[item]
        norm = np.linalg.norm(total)
        limit = batch.limits[item] * clip_norm
        found.append(total if norm <= limit else total * limit / norm)
    return found


def summed(batch, gradients):
    dimension = len(next(iter(gradients.values())))
    return sum(contributions(batch, gradients), np.zeros(dimension))


def hypergraph(generator, *, units=5, examples=9, most=3):
    return [
        sorted(generator.choice(units, size=generator.integers(1, most + 1), replace=False).tolist())
        for _ in range(examples)
    ]


def random_gradients(generator, owners):
    """Of very different lengths, sometimes all in one direction, where clipping cannot help by chance."""
    shared = generator.normal(size=3)
    size = 10.0 ** generator.uniform(-2, 2, size=len(owners))
    one_way = generator.random() < 0.5
    return {e: size[e] * (shared if one_way else generator.normal(size=3)) for e in range(len(owners))}


@pytest.mark.parametrize(
    ("max_examples", "most", "combine"), each_pair([None, 1, 2], [1, 3, 5], ["sum", "mean"])
)
@pytest.mark.few(3)
def test_zeroing_a_unit_moves_a_given_batch_by_at_most_the_clip_norm(combine, most, max_examples):
    generator = np.random.default_rng([7, most, max_examples or 0])
    largest = 0.0
    for _ in range(150):
        owners = hypergraph(generator, most=most)
        units = Units(owners, combine=combine, max_examples=max_examples)
        gradients = random_gradients(generator, owners)
        chosen = generator.permutation(9)[: generator.integers(0, 10)]
        draws = generator.integers(2**63, size=units.pairs(chosen)).astype(np.uint64)
        batch = units.grouped(chosen, draws)
        whole = summed(batch, gradients)
        for u in range(units.count):
            mine = set(units.of(u).tolist())
            without = {e: np.zeros(3) if e in mine else g for e, g in gradients.items()}
            largest = max(largest, float(np.linalg.norm(whole - summed(batch, without))))
            assert max_examples is None or len(mine & set(batch.examples.tolist())) <= max_examples
    assert largest <= 1 + 1e-12
    assert largest > 0.99  # and the bound is met


def incidence_draws(units, chosen, table):
    """Draws for `drawn`, from a table by (unit, example), so that one unit's do not depend on the others."""
    return np.array([table[u, e] for u in chosen for e in units.of(u)], dtype=np.uint64)


@pytest.mark.parametrize(("max_examples", "combine"), each_once([None, 1, 2], ["sum", "mean"]))
@pytest.mark.slow
def test_who_is_drawn_changes_nothing_that_the_others_add(combine, max_examples):
    # Amplification compares a step in which u was drawn with one in which it was not: with u's examples
    # zeroed the two must be the same sum, whoever else was drawn, and with them at most the clip norm apart.
    generator = np.random.default_rng([11, max_examples or 0])
    largest = 0.0
    for _ in range(120):
        owners = hypergraph(generator)
        units = Units(owners, combine=combine, max_examples=max_examples)
        gradients = random_gradients(generator, owners)
        table = generator.integers(2**63, size=(units.count, 9))
        counts = units.static_counts()
        for u in range(units.count):
            rest = np.flatnonzero((generator.random(units.count) < 0.6) & (np.arange(units.count) != u))
            both = np.sort(np.append(rest, u))
            mine = set(units.of(u).tolist())
            zeroed = {e: np.zeros(3) if e in mine else g for e, g in gradients.items()}
            with_u = units.drawn(both, incidence_draws(units, both, table), counts)
            without = units.drawn(rest, incidence_draws(units, rest, table), counts)
            assert np.allclose(summed(with_u, zeroed), summed(without, gradients), atol=1e-12)
            moved = np.linalg.norm(summed(with_u, gradients) - summed(without, gradients))
            largest = max(largest, float(moved))
    assert 0.9 < largest <= 1 + 1e-12


def test_counts_of_the_batch_would_tell_who_was_drawn():
    # the reason for static_counts: a and b share an example, so a's own part shrinks where b is drawn too
    units = Units([["a"], ["a", "b"], ["b"]])
    gradients = {0: np.array([5.0]), 1: np.array([0.0]), 2: np.array([0.0])}
    a, both = np.array([0]), np.array([0, 1])
    assert summed(units.drawn(a, NONE), gradients) == 1.0
    assert summed(units.drawn(both, NONE), gradients) == 0.5
    counts = units.static_counts()
    assert summed(units.drawn(a, NONE, counts), gradients) == 0.5
    assert summed(units.drawn(both, NONE, counts), gradients) == 0.5


def test_a_shared_example_enters_with_all_of_its_owners():
    units = Units([["a"], ["a", "b"], ["b", "c"], ["c"]])
    assert units.drawn(np.array([0]), NONE).examples.tolist() == [0]
    assert sorted(units.drawn(np.array([0, 1]), NONE).examples.tolist()) == [0, 1]
    assert sorted(units.drawn(np.array([0, 2]), NONE).examples.tolist()) == [0, 3]
    assert sorted(units.drawn(np.array([0, 1, 2]), NONE).examples.tolist()) == [0, 1, 2, 3]


def test_limits_and_scales_written_out():
    # a: two own examples and one shared; b: two shared; c: one own, one shared
    units = Units([["a"], ["a"], ["a", "b"], ["b", "c"], ["c"]], combine="mean")
    batch = units.grouped(np.arange(5))
    assert batch.items.tolist() == [0, 0, 1, 2, 3]
    assert batch.limits.tolist() == [0.5, 0.5, 0.5, 0.5]
    assert batch.scales.tolist() == [0.25, 0.5, 0.5, 0.5]
    alone = units.grouped(np.array([4, 0, 1]))
    assert alone.items.tolist() == [0, 1, 1]
    assert alone.limits.tolist() == [1.0, 1.0]
    assert alone.scales.tolist() == [1.0, 0.5]


def test_max_examples_draws_evenly_and_anew():
    units = Units([0] * 6, max_examples=2)
    batches = UnitBatches(units, batches_of(Poisson(1, 1, 600), KEY), KEY)
    kept = np.zeros(6)
    for t in range(600):
        batch = batches.batch(t)
        assert len(batch) == 2
        kept[batch] += 1
    assert (abs(kept - 200) < 60).all()
    assert batches.largest_item == 2


# Batches of every scheme.


def scheme(name, count, steps=60):
    return {
        "fixed": FixedOrder(count, min(4, count), steps=steps),
        "dropped": FixedOrder(count, min(4, count), steps=steps, drop_last=True),
        "poisson": Poisson(count, min(4, count) * 0.8, steps),
        "cyclic": CyclicPoisson(count, count / 8, 3, steps),
        "independent": CyclicPoisson(count, count / 8, 3, steps, "independent"),
        "bins": BallsInBins(count, max(1, count // 3), steps),
        "allocation": RandomAllocation(count, max(1, count // 3), steps),
        "min_sep": MinSepSampling(count, count / 6, 3, steps),
    }[name]


SCHEMES = ("fixed", "dropped", "poisson", "cyclic", "independent", "bins", "allocation", "min_sep")


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("count", [1, 7])
def test_batches_hold_the_drawn_units_whole(name, count):
    ids = np.arange(23) * 5 % count
    units, sampling = Units(ids), scheme(name, count)
    batches = UnitBatches(units, batches_of(sampling, KEY), KEY, secret=sampling.amplified)
    again = UnitBatches(units, batches_of(sampling, KEY), KEY, secret=sampling.amplified)
    inner = batches_of(sampling, KEY)
    for t in [*range(30), 2]:
        drawn = inner.batch(t)
        batch = batches.unit_batch(t)
        expected = np.concatenate([np.zeros(0, int), *(units.of(u) for u in drawn)])
        assert sorted(batch.examples.tolist()) == sorted(expected.tolist())
        assert batch.count == len(drawn)
        assert (batch.limits == 1).all() and (batch.scales == 1).all()
        for item in range(batch.count):
            assert len(set(units.owners[1][batch.examples[batch.items == item]])) == 1
        assert np.array_equal(batch.examples, again.batch(t))
        assert batches.units_of(t).tolist() == drawn.tolist()
    assert batches.period == inner.period
    assert units.digest in batches.name and inner.name in batches.name


@pytest.mark.parametrize("name", every_other(SCHEMES))
@pytest.mark.few(1)
def test_shared_examples_by_scheme(name):
    generator = np.random.default_rng(5)
    owners = hypergraph(generator, units=7, examples=25, most=2)
    units, sampling = Units(owners), scheme(name, Units(owners).count, steps=2000)
    batches = UnitBatches(units, batches_of(sampling, KEY), KEY, secret=sampling.amplified)
    gradients = {e: generator.normal(size=2) * 50 for e in range(25)}
    seen = set()
    for t in range(1500 if name in ("poisson", "min_sep", "allocation", "cyclic", "independent") else 40):
        batch, drawn = batches.unit_batch(t), set(batches.units_of(t).tolist())
        offsets, flat = units.owners
        inside = [e for e in range(25) if set(flat[offsets[e] : offsets[e + 1]]) <= drawn]
        assert sorted(batch.examples.tolist()) == inside
        seen |= set(inside)
        if t < 40:
            parts = contributions(batch, gradients)
            for u in drawn:
                items = {int(batch.items[r]) for r, e in enumerate(batch.examples) if e in units.of(u)}
                assert sum(np.linalg.norm(parts[i]) for i in items) <= 1 + 1e-12
    assert batches.unreachable == 25 - len(seen)


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_describe_units(name):
    sampling = scheme(name, 12)
    assert "12 examples" in sampling.describe() and "owns" not in sampling.describe()
    text = sampling.describe("aircraft")
    assert "12 aircraft" in text and "example " not in text.split(";")[0]
    assert text.endswith("who owns an example that has several owners is fixed and public")
    assert "12 entities" in sampling.describe("entity")
    assert "12 classes" in sampling.describe("class")


def test_known_groups_spare_limits():
    # a pair in different groups can never meet, so it costs its owners nothing
    owners = [["a"], ["a", "b"], ["b"]]
    units = Units(owners)
    sampling = CyclicPoisson(2, 1, 2, 10)
    apart = UnitBatches(units, batches_of(sampling, KEY), KEY, secret=True)
    assert apart.unreachable == 1
    limits = [apart.unit_batch(t).limits.tolist() for t in range(10)]
    assert [1.0] in limits and [0.5] not in limits
    # the bins of balls-in-bins are what is secret: there the pair counts
    bins = UnitBatches(units, batches_of(BallsInBins(2, 2, 10), KEY), KEY, secret=True)
    assert all(limit == 0.5 for t in range(10) for limit in bins.unit_batch(t).limits)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 45))
@pytest.mark.slow
def test_parts_keep_items_whole(items, most):
    _, first, inverse = np.unique(np.array(items, dtype=int), return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(first))[inverse] if items else np.zeros(0, dtype=np.int64)
    count = len(first)
    batch = UnitBatch(
        np.arange(len(items)) * 3, ranks, 1 / np.arange(1.0, count + 1), np.arange(1.0, count + 1)
    )
    if batch.largest > most:
        with pytest.raises(MismatchError, match="max_examples"):
            batch.parts(most)
        return
    parts = batch.parts(most)
    assert all(len(part.examples) <= most for part in parts)
    assert sorted(np.concatenate([part.examples for part in parts])) == batch.examples.tolist()
    assert np.concatenate([part.limits for part in parts]).tolist() == batch.limits.tolist()
    for part in parts:
        assert sorted(set(part.items.tolist())) == list(range(part.count))
        for item in range(part.count):
            rows = part.examples[part.items == item] // 3
            assert len(set(ranks[rows])) == 1
            assert (ranks == ranks[rows[0]]).sum() == len(rows)
            assert part.limits[item] == batch.limits[ranks[rows[0]]]
            assert part.scales[item] == batch.scales[ranks[rows[0]]]


def test_given_batches_may_be_empty():
    pytest.importorskip("torch")
    from anechoic.batches.external import ExternalBatches

    units = Units([0, 1, 0])
    given_batches = UnitBatches(units, ExternalBatches([[0, 2], [], [1]], 3), KEY, given=True)
    assert [given_batches.unit_batch(t).count for t in range(3)] == [1, 0, 1]
    assert [given_batches.units_of(t).tolist() for t in range(3)] == [[0], [], [1]]
    assert (given_batches.largest_item, given_batches.unreachable) == (2, 0)


# What data a statement supposes.


def test_duplicates_are_found():
    x = np.array([[0.0, 1], [2, 3], [0, 1], [0, 1], [2, 3], [4, 5]])
    y = np.array(["a", "b", "a", "c", "b", "a"])
    assert [g.tolist() for g in find_duplicates(x)] == [[0, 2, 3], [1, 4]]
    assert [g.tolist() for g in find_duplicates([x, y])] == [[0, 2], [1, 4]]
    objects = np.array([("u", 1), ("v", 1), ("u", 1)], dtype=object)
    assert [g.tolist() for g in find_duplicates(objects)] == [[0, 2]]
    assert find_duplicates(np.arange(5)) == []
    long = np.empty(3, dtype=object)
    long[:] = [np.zeros(5000), np.arange(5000) == 2500.0, np.zeros(5000)]
    long[1] = long[1].astype(float)
    assert [g.tolist() for g in find_duplicates(long)] == [[0, 2]]
    with pytest.raises(ValueError, match="rows"):
        find_duplicates([x, y[:3]])


def test_duplicates_agree_with_brute_force():
    generator = np.random.default_rng(0)
    x, y = generator.integers(3, size=(60, 2)), generator.integers(2, size=60)
    rows = [(*x[i], y[i]) for i in range(60)]
    expected = [[i for i in range(60) if rows[i] == row] for row in dict.fromkeys(rows)]
    found = [g.tolist() for g in find_duplicates((x, y))]
    assert found == [group for group in expected if len(group) > 1]


def test_a_statement_about_examples_is_refused_for_users():
    with pytest.raises(MismatchError, match=r"1 of 2 units own several .* \(unit='user'\)"):
        check_schema("example", units=Units([1, 1, 2]))
    with pytest.raises(MismatchError, match="1 examples have several owners"):
        check_schema("example", units=Units([[1, 2], [1]]))
    check_schema("example", units=Units([3, 1, 2]))
    check_schema("user", units=Units([1, 1, 2]))
    check_schema("user", units=np.array([1, 1, 2]))  # labels are made Units
    with pytest.raises(MismatchError, match="1 of 2 units own several"):
        check_schema("example", units=[1, 1, 2])


def test_copies_of_an_example_are_refused():
    copies = find_duplicates(np.array([5, 6, 5, 6]))
    with pytest.raises(MismatchError, match=r"2 groups of equal examples \(4 examples"):
        check_schema("example", duplicates=copies)
    with pytest.raises(MismatchError, match="not one user each"):
        check_schema("user", units=Units(["a", "b", "a", "c"]), duplicates=copies)
    check_schema("user", units=Units(["a", "b", "a", "b"]), duplicates=copies)
    check_schema("user", units=Units([["a"], ["b", "c"], ["a"], ["c", "b"]]), duplicates=copies)


@pytest.mark.parametrize("adjacency", ["replace_one", "add_or_remove"])
def test_several_owners_need_zero_out(adjacency):
    with pytest.raises(UnsupportedError, match="1 examples have several owners"):
        check_schema("user", units=Units([["a", "b"], ["a"]]), adjacency=adjacency)
    check_schema("user", units=Units(["a", "a"]), adjacency=adjacency)

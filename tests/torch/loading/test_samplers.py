"""Batches: functions of (key, t), of the stated sizes and probabilities, integers throughout."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from anechoic.batches.fixed_order import InOrder
from anechoic.batches.given import Given, check_promise
from anechoic.batches.poisson import Sampled
from anechoic.errors import MismatchError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson
from tests.marks import in_turn

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def in_order(examples, batch_size, *, key=KEY, epochs=2, drop_last=False):
    return InOrder(FixedOrder(examples, batch_size, epochs=epochs, drop_last=drop_last), key)


def cyclic(examples, batch_size, groups, *, key=KEY, grouping="balanced", steps=100):
    return Sampled(CyclicPoisson(examples, batch_size, groups, steps, grouping), 10, key)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 300), st.integers(1, 300), st.booleans(), st.booleans())
@pytest.mark.slow
def test_fixed_order_covers_the_data_once_a_pass(examples, batch_size, drop_last, shuffled):
    batch_size = min(batch_size, examples)
    batches = in_order(examples, batch_size, key=KEY if shuffled else None, drop_last=drop_last)
    whole, rest = divmod(examples, batch_size)
    assert batches.period == whole + (rest > 0 and not drop_last)
    first = [batches.batch(t) for t in range(batches.period)]
    sizes = [len(batch) for batch in first]
    assert sizes[:whole] == [batch_size] * whole
    assert [batches.size(t) for t in range(batches.period)] == sizes
    seen = np.concatenate(first)
    assert len(np.unique(seen)) == len(seen) == (whole * batch_size if drop_last else examples)
    if not shuffled:
        assert (seen == np.arange(len(seen))).all()
    for t in range(batches.period):  # the same order in every pass: participation is cyclic
        assert (batches.batch(t + batches.period) == first[t]).all()


# 1 / (1 / L) is not L in floating point for these L, and Opacus's int(N * (1 / L)) is off by one
AWKWARD = [length for length in range(1, 5000) if int(1 / (1 / length)) != length]


def test_awkward_lengths_stay_integers():
    assert AWKWARD[0] == 93
    assert len(AWKWARD) > 300
    for length in AWKWARD[:50]:
        batches = in_order(length * 7, 7)
        assert batches.period == length
        assert len(batches.batch(length - 1)) == 7


def test_one_permutation_is_uniform():
    # where example 0 lands, over keys: chi-square on 12 places
    places = np.zeros(12)
    for i in range(1200):
        batches = in_order(12, 1, key=i.to_bytes(32, "little"))
        order = np.concatenate([batches.batch(t) for t in range(12)])
        places[int(np.flatnonzero(order == 0)[0])] += 1
    assert stats.chisquare(places).pvalue > 1e-4


@pytest.mark.parametrize(
    "make",
    [
        lambda key: in_order(50, 8, key=key),
        lambda key: Sampled(Poisson(50, 8, 100), 7, key),
        lambda key: cyclic(50, 8, 3, key=key),
        lambda key: cyclic(50, 8, 3, key=key, grouping="independent"),
    ],
    ids=["fixed", "poisson", "cyclic", "independent"],
)
def test_a_batch_is_a_function_of_key_and_step(make):
    forward, backward = make(KEY), make(KEY)
    expected = [forward.batch(t) for t in range(60)]
    for t in reversed(range(60)):
        assert np.array_equal(backward.batch(t), expected[t])
    other = make(OTHER)
    assert any(not np.array_equal(other.batch(t), expected[t]) for t in range(7))


@pytest.mark.parametrize("key_a,key_b", [(b"\0" * 32, b"\0" * 31 + b"\1"), (b"\0" * 32, b"\1" + b"\0" * 31)])
def test_every_part_of_the_key_counts(key_a, key_b):
    one, other = Sampled(Poisson(400, 200, 10), 2, key_a), Sampled(Poisson(400, 200, 10), 2, key_b)
    assert not np.array_equal(one.batch(0), other.batch(0))


@pytest.mark.parametrize("groups", [1, 3, 7])
@pytest.mark.parametrize("grouping", ["balanced", "independent"])
def test_groups_partition_the_data(groups, grouping):
    batches = cyclic(100, 5, groups, grouping=grouping)
    members = batches.members
    assert len(members) == groups
    assert np.array_equal(np.sort(np.concatenate(members)), np.arange(100))
    sizes = [len(group) for group in members]
    if grouping == "balanced":
        assert max(sizes) - min(sizes) <= 1
    for t in range(30):
        assert set(batches.batch(t)) <= set(members[t % groups])


def test_independent_groups_are_uniform():
    counts = np.zeros(4)
    for i in range(50):
        members = cyclic(40, 5, 4, key=i.to_bytes(32, "little"), grouping="independent").members
        counts += [len(group) for group in members]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_balanced_groups_are_uniform():
    # which of 3 groups holds example 0, and how often examples 0 and 1 meet
    first, together = np.zeros(3), 0
    for i in range(900):
        members = cyclic(9, 1, 3, key=i.to_bytes(32, "little")).members
        home = next(g for g, group in enumerate(members) if 0 in group)
        first[home] += 1
        together += 1 in members[home]
    assert stats.chisquare(first).pvalue > 1e-4
    assert stats.binomtest(together, 900, 2 / 8).pvalue > 1e-4


@pytest.mark.parametrize("grouping", ["balanced", "independent"])
@pytest.mark.slow
def test_members_are_drawn_independently_at_the_stated_rate(grouping):
    # 10 examples in 2 groups, B = 2: rate 2 * 2 / 10
    steps = 4000
    batches = cyclic(10, 2, 2, grouping=grouping, steps=steps)
    drawn = np.zeros((steps, 10))
    for t in range(steps):
        drawn[t, batches.batch(t)] = 1
    for group, members in enumerate(batches.members):
        turns = drawn[group::2][:, members]
        counts = turns.sum(0)
        assert all(stats.binomtest(int(c), len(turns), 0.4).pvalue > 1e-4 for c in counts)
        sizes = np.bincount(turns.sum(1).astype(int), minlength=len(members) + 1)
        expected = stats.binom.pmf(np.arange(len(members) + 1), len(members), 0.4) * len(turns)
        assert stats.chisquare(sizes, expected).pvalue > 1e-4
        correlation = np.corrcoef(np.hstack([turns[1:], turns[:-1]]).T)
        off = correlation[~np.eye(len(correlation), dtype=bool)]
        assert abs(off).max() < 5 / np.sqrt(len(turns))


def test_the_rate_is_never_exceeded():
    for examples, batch_size, groups in [(3, 1, 1), (7, 2, 3), (60_000, 512, 8), (10**6, 1, 1)]:
        batches = cyclic(examples, batch_size, groups)
        rate = CyclicPoisson(examples, batch_size, groups, 100).rate
        probability = Fraction(batches._threshold, 2**64)
        assert 0 <= Fraction(rate) - probability < Fraction(1, 2**64)


def test_a_rate_of_one_takes_everybody():
    batches = cyclic(12, 4, 3)
    assert [len(batches.batch(t)) for t in range(3)] == [4, 4, 4]


def test_empty_batches_occur():
    batches = Sampled(Poisson(5, 1, 50), 5, KEY)
    sizes = [len(batches.batch(t)) for t in range(50)]
    assert 0 in sizes
    assert batches.batch(sizes.index(0)).shape == (0,)


# Batches of somebody else.


def test_given_batches_are_kept_and_named():
    batches = Given([[3, 1], [], [0, 2]], 4)
    assert batches.period == 3
    assert [batches.batch(t).tolist() for t in range(6)] == [[3, 1], [], [0, 2]] * 2
    assert batches.name == Given([[3, 1], [], [0, 2]], 4).name
    assert batches.name != Given([[3], [1], [0, 2]], 4).name
    assert batches.name != Given([[3, 1, 0], [], [2]], 4).name


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([], "no batch"),
        ([[0, 4]], "outside"),
        ([[-1]], "outside"),
        ([[0], [1, 2, 1]], "batch 1 holds an example twice"),
    ],
)
def test_impossible_batches_are_refused(batches, reason):
    with pytest.raises(ValueError, match=reason):
        Given(batches, 4)


@in_turn(
    ("promise", "batches", "steps", "broken"),
    [
        (Single(), [[0, 1], [2, 3]], 2, None),
        (Single(), [[0, 1], [2, 3]], 3, 2),
        (Single(), [[0, 1], [2, 0]], 2, 1),
        (MinSep(2), [[0, 1], [2, 3]], 9, None),
        (MinSep(2, 2), [[0, 1], [2, 3]], 4, None),
        (MinSep(2, 2), [[0, 1], [2, 3]], 5, 4),
        (MinSep(2), [[0], [1], [1]], 3, 2),
        (MinSep(3), [[0, 1], [2, 3]], 3, 2),
        (Cyclic(2), [[0, 1], [2, 3]], 8, None),
        (Cyclic(2), [[0, 1], [2, 3], [4]], 6, 3),
        (Cyclic(4), [[0, 1], [2, 3]], 8, 2),
        (OncePerEpoch(2), [[0, 1], [2, 3], [3, 0], [1, 2]], 8, None),
        (OncePerEpoch(2), [[0, 1], [2, 0]], 2, 1),
        (FullBatch(), [[0, 1], [1, 0]], 8, None),
        (Patterns([(0, 2, 4), (1, 3, 5)]), [[0, 1], [2, 3]], 6, None),
        (Patterns([(0, 2), (1, 3)]), [[0, 1], [2, 0]], 4, 1),
        (Patterns([(0, 1), (2,)]), [[0], [0], [0]], 3, 2),
    ],
)
def test_a_promise_is_checked_for_every_example(promise, batches, steps, broken):
    own = Given(batches, 5)
    if broken is None:
        check_promise(promise, own, steps, 5)
    else:
        with pytest.raises(MismatchError, match=f"batch {broken} breaks the promise"):
            check_promise(promise, own, steps, 5)

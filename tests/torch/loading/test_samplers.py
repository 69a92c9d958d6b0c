"""Batches: functions of (key, t), of the stated sizes and probabilities, integers throughout."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from anechoic.batches.external import ExternalBatches, check_promise
from anechoic.batches.fixed_order import FixedOrderBatches
from anechoic.batches.poisson import PoissonBatches
from anechoic.errors import MismatchError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sampling import CyclicPoisson, FixedOrder
from tests.marks import in_turn

KEY = bytes(range(32))


def in_order(examples, batch_size, *, key=KEY, epochs=2, drop_last=False):
    return FixedOrderBatches(FixedOrder(examples, batch_size, epochs=epochs, drop_last=drop_last), key)


def cyclic(examples, batch_size, groups, *, key=KEY, grouping="balanced", steps=100):
    return PoissonBatches(CyclicPoisson(examples, batch_size, groups, steps, grouping), 10, key)


def test_one_permutation_is_uniform():
    # where example 0 lands, over keys: chi-square on 12 places
    places = np.zeros(12)
    for i in range(1200):
        batches = in_order(12, 1, key=i.to_bytes(32, "little"))
        order = np.concatenate([batches.batch(t) for t in range(12)])
        places[int(np.flatnonzero(order == 0)[0])] += 1
    assert stats.chisquare(places).pvalue > 1e-4


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


def test_the_rate_is_never_exceeded():
    for examples, batch_size, groups in [(3, 1, 1), (7, 2, 3), (60_000, 512, 8), (10**6, 1, 1)]:
        batches = cyclic(examples, batch_size, groups)
        rate = CyclicPoisson(examples, batch_size, groups, 100).rate
        probability = Fraction(batches._threshold, 2**64)
        assert 0 <= Fraction(rate) - probability < Fraction(1, 2**64)


# Batches of somebody else.


def test_given_batches_are_kept_and_named():
    batches = ExternalBatches([[3, 1], [], [0, 2]], 4)
    assert batches.period == 3
    assert [batches.batch(t).tolist() for t in range(6)] == [[3, 1], [], [0, 2]] * 2
    assert batches.name == ExternalBatches([[3, 1], [], [0, 2]], 4).name
    assert batches.name != ExternalBatches([[3], [1], [0, 2]], 4).name
    assert batches.name != ExternalBatches([[3, 1, 0], [], [2]], 4).name


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
        ExternalBatches(batches, 4)


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
    own = ExternalBatches(batches, 5)
    if broken is None:
        check_promise(promise, own, steps, 5)
    else:
        with pytest.raises(MismatchError, match=f"batch {broken} breaks the promise"):
            check_promise(promise, own, steps, 5)

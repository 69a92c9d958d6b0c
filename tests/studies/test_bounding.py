"""Participation of owners against brute force, and what a statement about examples is worth for them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz, Identity
from studies.bounding import (
    ContributionBound,
    batches_in_order,
    choose,
    counts_in_order,
    owner_mu,
    owners_in,
    participation_of,
)

owners_of_examples = st.lists(st.integers(0, 4), min_size=1, max_size=40).map(np.array)


def by_hand(owners, batch_size, steps, separation, limit):
    """Each owner on its own, step by step."""
    kept = np.zeros(len(owners), dtype=bool)
    for owner in set(owners.tolist()):
        last, count = None, 0
        for t in range(steps):
            rows = [
                i for i in range(t * batch_size, min((t + 1) * batch_size, len(owners))) if owners[i] == owner
            ]
            if rows and count < limit and (last is None or t - last >= separation):
                kept[rows] = True
                last, count = t, count + 1
    return kept


@settings(derandomize=True, max_examples=80, deadline=None)
@given(owners_of_examples, st.integers(1, 7), st.integers(1, 5), st.integers(1, 4))
@pytest.mark.slow
def test_bounding_keeps_what_each_owner_alone_would(owners, batch_size, separation, limit):
    steps = max(1, len(owners) // batch_size)
    kept = ContributionBound(separation, limit).kept(owners, batch_size, steps)
    np.testing.assert_array_equal(kept, by_hand(owners, batch_size, steps, separation, limit))
    promise = participation_of(batches_in_order(kept, batch_size, steps), owners)
    assert promise.max_participations <= limit and promise.separation >= min(separation, steps)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(owners_of_examples, st.integers(1, 7))
def test_participation_is_found_as_by_brute_force(owners, batch_size):
    batches = [list(range(a, min(a + batch_size, len(owners)))) for a in range(0, len(owners), batch_size)]
    times = {u: [t for t, batch in enumerate(batches) if u in owners[batch]] for u in set(owners.tolist())}
    gaps = [b - a for steps in times.values() for a, b in itertools.pairwise(steps)]
    wanted = MinSep(min(gaps, default=len(batches)), max(map(len, times.values())))
    assert participation_of(batches, owners) == wanted
    assert owners_in(batches, owners) == pytest.approx(
        np.mean([len(set(owners[b].tolist())) for b in batches])
    )


def test_what_others_do_changes_nothing_for_an_owner():
    rng = np.random.default_rng(0)
    owners = rng.integers(0, 6, 200)
    bound = ContributionBound(3, 4)
    mine = owners == 2
    other = np.where(mine, 2, rng.permutation(6)[owners] + 10)  # the others are somebody else
    np.testing.assert_array_equal(bound.kept(owners, 9, 22)[mine], bound.kept(other, 9, 22)[mine])


def test_choice_keeps_most_among_those_close_to_the_least_error():
    owners = np.random.default_rng(1).integers(0, 30, 64 * 40)
    sizes = []

    def predicted(promise, size):
        sizes.append(size)
        return 1.0 if promise.max_participations <= 2 else 1.04 if promise.max_participations <= 3 else 2.0

    bound, rows = choose(owners, 40, 64, predicted)
    assert {(row["separation"], row["limit"]) for row in rows} == {(16, 4), (16, 2), (32, 2), (32, 1)}
    near = [row for row in rows if row["predicted"] < 1.05]
    assert bound == ContributionBound(
        *next((r["separation"], r["limit"]) for r in rows if r["kept"] == max(x["kept"] for x in near))
    )
    assert sizes == [max(1, round(row["owners_a_batch"])) for row in rows]


@pytest.mark.parametrize("strategy", [Identity(6), BandedToeplitz(6, [1.0, 0.6, 0.3])])
def test_worth_for_an_owner_is_the_norm_of_all_its_contributions(strategy):
    owners = np.array([0, 0, 1, 2, 0, 1, 1, 1, 2, 0, 0, 0])
    mechanism = Mechanism(strategy, FixedOrder(12, 2, epochs=1), 3.0)
    counts = counts_in_order(owners, 2, 6)
    assert counts.sum() == 12 and counts[0, 0] == 2 and counts[5, 0] == 2
    mu = owner_mu(mechanism, counts)
    for owner in range(3):
        # aligned gradients of norm 1: the most that flights of one aircraft can add
        moved = strategy.to_dense() @ counts[:, owner]
        assert mu[owner] == pytest.approx(np.linalg.norm(moved) / 3.0)
    # an owner of one example has the statement's own mu, at most
    single = owner_mu(mechanism, np.eye(6))
    assert single.max() == pytest.approx(mechanism.gdp())

"""Contribution bounding over several owners: what is promised is kept, and nothing that fits is left out."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import anechoic as an
from anechoic.participation import MinSep
from anechoic.units import Units, bounded_batches

OWNERS = st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=12)


def participations(units, batches):
    """Per unit its steps, one for each of its examples there."""
    offsets, owners = units.owners
    found = [[] for _ in range(units.count)]
    for step, batch in enumerate(batches):
        for example in batch:
            for unit in owners[offsets[example] : offsets[example + 1]]:
                found[unit].append(step)
    return found


def allowed(units, batches, rule, batch_size):
    """By the definition: every pair of an owner's participations, also by two examples of one batch."""
    most = rule.max_participations or 10**9
    kept = all(
        len(steps) <= most and all(b - a >= rule.separation for a, b in pairwise(steps))
        for steps in map(sorted, participations(units, batches))
    )
    return kept and all(len(batch) <= batch_size for batch in batches)


@given(OWNERS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([None, 1, 2, 3]), st.integers(1, 8))
def test_what_is_promised_is_kept_and_nothing_that_fits_is_left_out(sets, batch_size, apart, most, steps):
    units = Units([sorted(owners) for owners in sets])
    rule = MinSep(apart, most)
    batches = bounded_batches(units, batch_size, rule, steps=steps)
    assert len(batches) == steps and allowed(units, batches, rule, batch_size)
    for example, step in product(range(len(sets)), range(steps)):
        trial = [list(batch) for batch in batches]
        trial[step].append(example)
        later = any(max(taken, default=-1) >= step for taken in participations_of(units, batches, example))
        assert later or not allowed(units, trial, rule, batch_size)  # at the end of its owners' runs


def participations_of(units, batches, example):
    offsets, owners = units.owners
    found = participations(units, batches)
    return [found[unit] for unit in owners[offsets[example] : offsets[example + 1]]]


@given(OWNERS, st.integers(1, 2), st.integers(1, 3))
def test_a_greedy_choice_is_within_the_number_of_owners_of_the_best(sets, batch_size, apart):
    """Of one step, against all subsets: each chosen example stands in the way of at most so many."""
    units = Units([sorted(owners) for owners in sets])
    found = len(bounded_batches(units, len(sets), MinSep(apart, 1), steps=1)[0])
    best = max(
        sum(chosen)
        for chosen in product([0, 1], repeat=len(sets))
        if allowed(units, [[i for i, one in enumerate(chosen) if one]], MinSep(apart, 1), len(sets))
    )
    assert best <= found * max(map(len, sets)) and found <= best


def test_the_order_decides_and_is_repeated():
    units = Units([["a"], ["a", "b"], ["c"]])
    assert bounded_batches(units, 2, MinSep(2, 1), steps=2, order=[1, 0, 2]) == [[1, 2], []]
    assert bounded_batches(units, 1, MinSep(1), steps=5, order=[2, 0]) == [[2], [0], [2], [0], [2]]
    for order in ([5], [-1], [0.7, 1.2], [True, 2], [0, True], np.array([True, False])):
        with pytest.raises(ValueError, match="order="):
            bounded_batches(units, 2, MinSep(2), steps=2, order=order)
    with pytest.raises(ValueError, match="steps=0"):
        bounded_batches(units, 2, MinSep(2), steps=0)


def test_the_engine_takes_the_batches_and_one_owner_moves_a_sum_by_one_clip_norm():
    from anechoic.torch import PrivacyEngine

    rng = np.random.default_rng(0)
    owners = [sorted(set(rng.integers(0, 30, rng.integers(1, 4)).tolist())) for _ in range(120)]
    units, rule = Units(owners), MinSep(4, 3)
    batches = bounded_batches(units, 6, rule, steps=12, order=rng.permutation(120))
    assert sum(map(len, batches)) > 30
    mechanism = an.calibrate(
        an.strategies.Identity(12),
        sampling=an.sampling.External(rule, 6, 12),
        noise_multiplier=1e-7,
        delta=1e-5,
        unit="user",
    )

    def sums(left_out):
        """Releases without noise of a linear model whose gradients are long; `left_out` adds nothing."""
        x = torch.tensor(np.random.default_rng(5).standard_normal((120, 3)))
        y = 9 * torch.ones(120, dtype=torch.float64)
        model = torch.nn.Linear(3, 1, dtype=torch.float64)
        torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        if left_out is not None:
            gone = [i for i, mine in enumerate(owners) if left_out in mine]
            x[gone], y[gone] = 0.0, 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(TensorDataset(x, y), batch_sampler=batches),
            mechanism=mechanism,
            max_grad_norm=1.0,
            unit_ids=units,
        )
        found = []
        for features, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features)[:, 0], targets).backward()
            optimizer.step()
            found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]) * 6)
        return torch.stack(found)

    whole, moved = sums(None), []
    for owner in range(0, 30, 7):
        moved.append((whole - sums(owner)).norm(dim=1))
        assert int((moved[-1] > 1e-3).sum()) <= 3
    assert 0.9 < float(torch.stack(moved).max()) <= 1 + 1e-4

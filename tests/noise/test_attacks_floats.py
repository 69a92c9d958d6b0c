"""Attacks on what a release is made of: which numbers can occur tells who is in, unless sums are integers."""

from fractions import Fraction

import numpy as np
import pytest

import anechoic as an
from anechoic.noise.filter_choice import rounded_filter
from anechoic.noise.grid import float_excess, to_grid
from anechoic.noise.rounding.base import PAD, advance
from anechoic.noise.rounding.exact import nearest
from anechoic.strategies import BandedToeplitz, Identity, Toeplitz
from tests.noise.test_rounding import Given, in_slices

KEY = bytes(range(32))


def releases(mechanism, total, steps):
    """`total` plus a row of noise, again and again."""
    stream = mechanism.stream(4000, key=KEY)
    state, found = stream.init(), []
    for _ in range(steps):
        row, state = stream.next(state)
        found.append(np.asarray(row) + total)
    return np.concatenate(found)


def test_the_floats_that_can_be_released_tell_who_is_in():
    """Mironov's attack on a toy: noise with few digits, added to 0 or to 1 / 3.

    Sums of float16 numbers with 0 and with 1 / 3 are other sets: a released number that is in one of them
    alone gives away which it was. On the grid both sets are all integers.
    """
    noise = np.random.default_rng(0).standard_normal(200_000).astype(np.float16)
    sets = [set((noise + np.float16(x)).tolist()) for x in (0.0, 1 / 3)]
    telling = [
        np.mean([y not in sets[1 - i] for y in (noise + np.float16(x))[:20_000].tolist()])
        for i, x in enumerate((0.0, 1 / 3))
    ]
    assert max(telling) > 0.2, "the attack works on floats"

    sampling = an.sampling.FixedOrder(examples=2, batch_size=2, steps=20)
    mechanism = an.Mechanism(Identity(20), sampling, noise_std=1.0, grid_bits=5)
    grids = [set(releases(mechanism, to_grid([x], 1.0, 5)[0], 20).tolist()) for x in (0.0, 1 / 3)]
    middle = set(range(-64, 65))  # two standard deviations: all are reached from either side
    assert middle <= grids[0] and middle <= grids[1]


@pytest.mark.parametrize(
    "strategy", [BandedToeplitz(12, [1.0, 0.5, 0.3]), Toeplitz.square_root(an.workloads.prefix_sum(12))]
)
def test_the_release_is_a_function_of_the_gaussian_mechanism(strategy):
    """What is released with the data in it follows from C X + Z alone: computed from that, without both."""
    system, fresh, n, m, std = strategy.recurrence(), Given(spread=4.0), 12, 3, 2.0**14
    rounded = rounded_filter(system, std)
    memory, total = (
        np.zeros((rounded.rows, m + PAD)),
        np.random.default_rng(1).integers(-(2**15), 2**15, (n, m)),
    )
    emitted = []
    for t in range(n):
        out = np.zeros(m, np.int64)
        advance(rounded.plan(t), t, memory, fresh.up_to(t), out, in_slices())
        emitted.append(out)
    released = np.array(emitted) + total
    entries = [[Fraction(float(c)) for c in system.row(t)] for t in range(n)]
    for i in range(m):
        seen = []
        for t in range(n):
            signal = sum(c * int(total[t - j, i]) for j, c in enumerate(entries[t]))
            gaussian = signal + Fraction(std) * fresh.exact(
                t, i
            )  # row t of C X + Z: all that is seen of both
            rest = sum(c * seen[t - j] for j, c in enumerate(entries[t]) if j)
            seen.append(nearest((gaussian - rest) / entries[t][0]))
        assert seen == released[:, i].tolist()


@pytest.mark.parametrize("count", [2, 17, 256, 1000])
def test_float_sums_move_by_at_most_their_bound(count):
    """Sequential float32 sums of contributions that cancel: rounding a large sum hides a small one."""
    rng = np.random.default_rng(count)
    rows = rng.standard_normal((count, 6))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def summed(kept):
        total = np.zeros(6, np.float32)
        for row in kept:
            total = total + row
        return total.astype(np.float64)

    for gone in (0, count // 2, count - 1):
        moved = np.linalg.norm(summed(rows) - summed(np.delete(rows, gone, axis=0)))
        assert moved <= 1 + float_excess(count)
    assert float_excess(1) < 2e-6 and float_excess(2**24) == float("inf")


def test_order_of_summation_is_seen_in_floats_and_not_in_integers():
    rows = np.random.default_rng(5).standard_normal((300, 50)).astype(np.float32)
    orders = [np.random.default_rng(k).permutation(300) for k in range(3)]
    floats = [np.cumsum(rows[order], axis=0)[-1] for order in orders]
    assert not np.array_equal(floats[0], floats[1])
    integers = [sum(to_grid(row, 1.0, 24) for row in rows[order]) for order in orders]
    assert all(np.array_equal(found, integers[0]) for found in integers)

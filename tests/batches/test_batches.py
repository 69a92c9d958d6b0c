"""Batches of the random schemes: exact laws (chi-square, fixed keys), functions of (key, t)."""

import math

import numpy as np
import pytest
from scipy import stats

from anechoic.batches.base import batches_of
from anechoic.errors import UnsupportedError
from anechoic.keys import derive
from anechoic.noise.keystream import Integers
from anechoic.participation import Single
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    External,
    FixedOrder,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SCHEMES = [
    FixedOrder(50, 8, steps=30),
    Poisson(50, 8, 30),
    CyclicPoisson(50, 8, 3, 30),
    BallsInBins(50, 7, 30),
    RandomAllocation(50, 7, 30),
    FixedSize(50, 8, 30),
    MinSepSampling(50, 8, 4, 30),
    MinSepSampling(48, 8, 6, 30),
    MinSepSampling(50, 8, 1, 30),
]
ids = [f"{type(s).__name__}-{i}" for i, s in enumerate(SCHEMES)]


def joined(scheme, key):
    """Which example is in which batch, shape (steps, examples)."""
    batches, table = batches_of(scheme, key), np.zeros((scheme.steps, scheme.examples), dtype=int)
    for t in range(scheme.steps):
        table[t, batches.batch(t)] += 1
    return table


@pytest.mark.parametrize("scheme", SCHEMES, ids=ids)
class TestEveryScheme:
    def test_a_batch_is_a_function_of_key_and_step(self, scheme):
        forward, again = batches_of(scheme, KEY), batches_of(scheme, KEY)
        whole = [forward.batch(t).copy() for t in range(30)]
        for t in np.random.default_rng(0).permutation(30).tolist():  # resumed anywhere
            np.testing.assert_array_equal(again.batch(t), whole[t])
        other = batches_of(scheme, OTHER)
        assert any(not np.array_equal(other.batch(t), whole[t]) for t in range(30))

    def test_an_example_is_in_a_batch_at_most_once_and_keeps_the_schema(self, scheme):
        table = joined(scheme, KEY)
        assert table.max() == 1
        for steps in table.T:
            taken = np.flatnonzero(steps)
            gaps = np.diff(taken)
            if isinstance(scheme, FixedSize):
                assert (table.sum(axis=1) == 8).all()
            elif isinstance(scheme, MinSepSampling):
                assert (gaps >= scheme.separation).all()
            elif isinstance(scheme, BallsInBins):
                assert (gaps == scheme.bins).all() and len(taken) >= 30 // scheme.bins
            elif isinstance(scheme, RandomAllocation):
                epochs = taken // scheme.period
                assert len(set(epochs.tolist())) == len(epochs) >= 30 // scheme.period

    @pytest.mark.few(3)
    def test_expected_size(self, scheme):
        sizes = np.concatenate([joined(scheme, bytes([i]) * 32).sum(axis=1) for i in range(60)])
        if isinstance(scheme, FixedOrder):
            return
        error = sizes.std() * math.sqrt(scheme.examples) / math.sqrt(len(sizes))  # batches are dependent
        assert sizes.mean() == pytest.approx(scheme.expected_batch_size, abs=error)
        assert batches_of(scheme, KEY).size(0) == round(scheme.expected_batch_size)


def test_bins_are_uniform_and_independent():
    table = joined(BallsInBins(20_000, 10, 10), KEY)
    labels = table.argmax(axis=0)
    assert stats.chisquare(np.bincount(labels, minlength=10)).pvalue > 1e-4
    pairs = np.bincount(labels[::2] * 10 + labels[1::2], minlength=100)  # neighbours
    assert stats.chisquare(pairs).pvalue > 1e-4
    # unlike a permutation dealt out evenly, sizes are multinomial
    assert np.ptp(table.sum(axis=1)) > 10


def test_batches_of_a_fixed_size_are_uniform_and_independent():
    """All pairs of 5, in two steps."""
    table = np.stack([joined(FixedSize(5, 2, 2), derive(KEY, "run", i, size=32)) for i in range(4000)])
    places = (table @ (1 << np.arange(5))).astype(int)  # (runs, steps)
    sets, labels = np.unique(places, return_inverse=True)
    labels = labels.reshape(places.shape)
    assert len(sets) == 10
    assert stats.chisquare(np.bincount(labels[:, 0] * 10 + labels[:, 1], minlength=100)).pvalue > 1e-4


def test_equal_words_at_the_border_are_drawn_again(monkeypatch):
    drawn = iter([[5, 1, 5, 9], [5, 1, 4, 9]])
    monkeypatch.setattr(Integers, "raw", lambda self, count: np.array(next(drawn), np.uint64))
    assert batches_of(FixedSize(4, 2, 1), KEY).batch(0).tolist() == [1, 2]


def test_epochs_are_drawn_anew():
    table = joined(RandomAllocation(20_000, 6, 12), KEY)
    first, second = table[:6].argmax(axis=0), table[6:].argmax(axis=0)
    assert stats.chisquare(np.bincount(first * 6 + second, minlength=36)).pvalue > 1e-4


@pytest.mark.parametrize(("separation", "size"), [(3, 4000), (3, 20_000 / 3), (1, 2500)])
def test_min_sep_has_the_law_of_its_definition(separation, size):
    """Counts of all patterns over 6 steps against their probabilities from the stationary start."""
    from itertools import product

    scheme = MinSepSampling(20_000, size, separation, 6)
    p, law = scheme.rate, {}
    for wait in range(separation):
        start = (1 if wait == 0 else p) / (1 + (separation - 1) * p)
        for bits in product((0, 1), repeat=6):
            probability, free = start, wait
            for t, bit in enumerate(bits):
                if t < free:
                    probability *= 1 - bit
                else:
                    probability *= p if bit else 1 - p
                    free = t + separation if bit else free
            law[bits] = law.get(bits, 0.0) + probability
    seen = dict.fromkeys(law, 0)
    for column in joined(scheme, KEY).T:
        seen[tuple(column.tolist())] += 1
    possible = [bits for bits in law if law[bits] > 0]
    assert sum(seen[bits] for bits in possible) == 20_000
    expected = np.array([law[bits] for bits in possible])
    counts = [seen[bits] for bits in possible]
    assert stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-4


def test_external_has_no_batches_of_its_own():
    with pytest.raises(UnsupportedError, match="External sampling has no batches"):
        batches_of(External(Single(), 5, 10), KEY)

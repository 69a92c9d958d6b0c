"""How batches are formed: numbers, participation that follows, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import _serialize
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
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

ALL = [
    FixedOrder(100, 30, epochs=3),
    FixedOrder(100, 30, epochs=3, drop_last=True),
    FixedOrder(100, 30, steps=2),
    FixedOrder(100, 100, epochs=4),
    Poisson(100, 12.5, 40),
    CyclicPoisson(100, 12.5, 8, 40),
    CyclicPoisson(100, 10, 3, 40, "independent"),
    BallsInBins(100, 8, 40),
    RandomAllocation(100, 8, 40),
    FixedSize(100, 12, 40),
    MinSepSampling(100, 12.5, 4, 40),
    External(MinSep(5, 3), 512, 40),
    External(Single(), 0.5, 1, 10),
]


def chunks(scheme):
    """The steps in which each example takes part, by walking over the batches."""
    order = np.arange(scheme.examples)
    whole = scheme.examples - scheme.examples % scheme.batch_size if scheme.drop_last else scheme.examples
    batches = [order[i : i + scheme.batch_size] for i in range(0, whole, scheme.batch_size)]
    return [
        [t for t in range(scheme.steps) if example in batches[t % len(batches)]] for example in order
    ], len(batches)


@settings(max_examples=100)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 30), st.booleans())
def test_a_fixed_order_keeps_its_promise(examples, batch_size, steps, drop_last):
    if batch_size > examples:
        return
    scheme = FixedOrder(examples, batch_size, steps=steps, drop_last=drop_last)
    taken, period = chunks(scheme)
    assert scheme.period == period
    schema = scheme.participation
    most = max(map(len, taken))
    assert most == schema.max_participations_in(steps)
    for pattern in taken:
        assert not pattern or any(set(pattern) <= set(whole) for whole in schema.patterns(steps))


class TestFixedOrder:
    def test_epochs_and_steps(self):
        assert FixedOrder(100, 30, epochs=3).steps == 12
        assert FixedOrder(100, 30, epochs=3, drop_last=True).steps == 9
        assert FixedOrder(90, 30, epochs=3).steps == 9
        assert FixedOrder(100, 30, steps=5).epochs is None

    def test_participation(self):
        assert FixedOrder(100, 30, epochs=1).participation == Single()
        assert FixedOrder(100, 30, steps=4).participation == Single()
        assert FixedOrder(100, 30, steps=5).participation == Cyclic(4)
        assert FixedOrder(100, 30, steps=5, drop_last=True).participation == Cyclic(3)
        assert FixedOrder(100, 100, epochs=4).participation == Cyclic(1)


class TestPoisson:
    def test_numbers(self):
        scheme = Poisson(1000, 12.5, 40)
        assert scheme.rate == 0.0125
        assert scheme.participation == FullBatch()
        assert scheme.amplified
        assert scheme.groups == 1
        assert Poisson(10, 10, 1).rate == 1.0
        fixed = FixedSize(1000, 12, 40)
        assert fixed.amplified and fixed.moves_others and fixed.participation == FullBatch()
        assert fixed.rate == 0.012

    def test_cyclic_numbers(self):
        scheme = CyclicPoisson(1000, 12.5, 8, 41)
        assert scheme.rate == pytest.approx(0.1)
        assert scheme.participation == Cyclic(8)
        assert scheme.participation.max_participations_in(41) == 6  # ceil(n / b), not the number of epochs
        assert CyclicPoisson(90, 30, 3, 5).rate == 1.0


class TestAllocation:
    def test_numbers(self):
        bins, anew = BallsInBins(100, 8, 41), RandomAllocation(100, 8, 41)
        assert bins.expected_batch_size == anew.expected_batch_size == 12.5
        assert bins.participation == Cyclic(8)
        assert anew.participation == OncePerEpoch(8)
        assert bins.period == anew.period == 8
        spread = MinSepSampling(100, 12.5, 4, 41)
        assert spread.participation == MinSep(4)
        assert spread.examples / (4 - 1 + 1 / spread.rate) == pytest.approx(12.5)
        assert MinSepSampling(100, 25, 4, 41).rate == 1.0
        assert MinSepSampling(100, 10, 1, 41).rate == pytest.approx(0.1)
        assert all(scheme.amplified for scheme in (bins, anew, spread))


class TestExternal:
    def test_promise_is_kept_as_given(self):
        scheme = External(MinSep(5, 3), 512, 40)
        assert scheme.participation == MinSep(5, 3)
        assert not scheme.amplified
        assert scheme.expected_batch_size == 512
        assert scheme.truncate(7) == External(MinSep(5, 3), 512, 7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedOrder(100, 30), "epochs=None and steps=None: give one of the two"),
        (lambda: FixedOrder(100, 30, epochs=3, steps=9), "epochs=3 and steps=9: give one of the two"),
        (lambda: FixedOrder(100, 30, epochs=1.5), "epochs=1.5 must be an integer"),
        (lambda: FixedOrder(100, 30, steps=-1), "steps=-1 must be at least 1"),
        (lambda: FixedOrder(0, 1, steps=1), "examples=0 must be at least 1"),
        (lambda: FixedOrder(100, 1.5, steps=1), "batch_size=1.5 must be an integer"),
        (lambda: FixedOrder(100, 101, steps=1), "batch_size=101 exceeds examples=100: take smaller"),
        (lambda: FixedOrder(100, 10, steps=1, drop_last="no"), "drop_last='no' must be True or False"),
        (lambda: Poisson(100, 101, 5), r"101 \* 1 / 100 = 1.01 .* at most 1"),
        (lambda: Poisson(100, 0, 5), "batch_size=0 must be a finite number > 0"),
        (lambda: Poisson(100, float("nan"), 5), "batch_size=nan must be a finite number > 0"),
        (lambda: Poisson(100, 1, 2.0), "steps=2.0 must be an integer"),
        (lambda: CyclicPoisson(100, 30, 4, 5), r"30 \* 4 / 100 = 1.2 .* at most 1: take at most 3 groups"),
        (lambda: CyclicPoisson(100, 30, 0, 5), "groups=0 must be at least 1"),
        (lambda: CyclicPoisson(100, 30, 2, 5, "random"), "grouping='random' is unknown: choose one of"),
        (lambda: FixedSize(100, 101, 5), "batch_size=101 exceeds examples=100: take smaller"),
        (lambda: FixedSize(100, 1.5, 5), "batch_size=1.5 must be an integer"),
        (lambda: BallsInBins(100, 101, 5), "bins=101 exceeds examples=100: .* at most 100 bins"),
        (lambda: RandomAllocation(100, 101, 5), "period=101 exceeds examples=100: .* at most 100 steps"),
        (lambda: MinSepSampling(100, 30, 4, 5), r"30 \* 4 exceeds examples=100: .* at most 3"),
        (lambda: MinSepSampling(100, 0, 4, 5), "batch_size=0 must be a finite number > 0"),
        (lambda: External(5, 512, 40), "participation=5 must be a Participation, such as"),
        (lambda: External(Single(), 512, 4, 0), "examples=0 must be at least 1"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("scheme", ALL, ids=lambda scheme: type(scheme).__name__)
class TestEveryScheme:
    def test_json(self, scheme):
        again = _serialize.decode(json.loads(json.dumps(_serialize.encode(scheme))))
        assert again == scheme
        assert again.steps == scheme.steps

    def test_truncate(self, scheme):
        for steps in {1, scheme.steps}:
            block = scheme.truncate(steps)
            assert type(block) is type(scheme)
            assert block.steps == steps
            assert block.expected_batch_size == scheme.expected_batch_size
        assert scheme.truncate(scheme.steps).participation == scheme.participation
        for steps, words in (
            (0, "steps=0 must be at least 1"),
            (scheme.steps + 1, "promises nothing beyond"),
        ):
            with pytest.raises(ValueError, match=words):
                scheme.truncate(steps)

    def test_leading_steps_keep_the_promise_of_the_whole(self, scheme):
        for steps in range(1, min(scheme.steps, 12) + 1):
            block = scheme.truncate(steps).participation
            for pattern in block.patterns(steps) if steps <= 8 else ():
                whole = scheme.participation.patterns(min(scheme.steps, 12))
                assert any(set(pattern) <= set(other) for other in whole)


def test_numpy_numbers_are_written_to_files():
    for scheme in (
        FixedOrder(np.int64(100), np.int32(30), epochs=np.int64(3)),
        Poisson(np.int64(100), np.float32(12.5), np.int64(4)),
        CyclicPoisson(np.int64(100), np.int64(10), np.int64(2), np.int64(4)),
        External(MinSep(np.int64(3)), np.float64(2.0), np.int64(4), np.int64(9)),
    ):
        assert _serialize.decode(json.loads(json.dumps(_serialize.encode(scheme)))) == scheme

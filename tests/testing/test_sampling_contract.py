"""Every sampling scheme against the shipped contract, and the contract against schemes that break it."""

from dataclasses import dataclass

import numpy as np
import pytest

from anechoic.accounting.accountant import accountant_of
from anechoic.batches.base import Batches, batches_of
from anechoic.batches.poisson import PoissonBatches
from anechoic.errors import UnsupportedError
from anechoic.participation import FullBatch, MinSep, Single
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
from anechoic.testing import SamplingContract
from anechoic.testing._compare import ContractError
from anechoic.testing.draws import check_draws
from tests.contracts import check_sampling

SCHEMES = [
    FixedOrder(20, 6, steps=7),
    FixedOrder(20, 6, epochs=2, drop_last=True),
    FixedOrder(5, 5, epochs=1),
    Poisson(60, 11, 5),
    Poisson(60, 60, 3),
    Poisson(31, 2.5, 1),
    CyclicPoisson(60, 11, 3, 7),
    CyclicPoisson(61, 11, 3, 7, "independent"),
    CyclicPoisson(60, 20, 3, 7, "independent"),
    BallsInBins(61, 4, 7),
    BallsInBins(7, 1, 3),
    BallsInBins(9, 9, 4),
    RandomAllocation(61, 4, 7),
    RandomAllocation(61, 5, 1),
    FixedSize(61, 9, 7),
    FixedSize(9, 9, 2),
    MinSepSampling(61, 9, 4, 7),
    MinSepSampling(60, 15, 4, 9),
    MinSepSampling(60, 9, 1, 3),
    External(MinSep(3), 7, 9),
    External(Single(), 2.5, 1, 40),
]


class TestOurs(SamplingContract):
    def schemes(self):
        return SCHEMES


@dataclass(frozen=True)
class Sound(Poisson):
    """Poisson sampling under another name; what breaks a rule is a class of this with something replaced."""

    def truncate(self, steps):
        return type(self)(self.examples, self.batch_size, Poisson(60, 11, 7).truncate(steps).steps)


def test_the_sound_one_keeps_the_contract():
    check_sampling(Sound(60, 11, 7), serialized=False)


def returning(value):
    return property(lambda self: value)


BROKEN = {
    "steps": ({"truncate": lambda self, steps: self}, "truncate"),
    "size": ({"expected_batch_size": returning(0.0)}, "expected_batch_size"),
    "infinite": ({"expected_batch_size": returning(float("inf"))}, "expected_batch_size"),
    "participation": ({"participation": returning("any")}, "no Participation"),
    "too little": ({"participation": returning(MinSep(2))}, "breaks the participation"),
    "groups": ({"public_groups": returning(0)}, "public_groups"),
    "outside": ({"formed_outside": returning(True)}, "nobody here draws"),
    "not outside": ({"formed_outside": returning(True), "amplified": returning(False)}, "formed outside"),
    "sentence": ({"describe": lambda self, unit="example": ""}, "not one line"),
    "lines": ({"describe": lambda self, unit="example": f"{unit}\n"}, "not one line"),
    "unit": ({"describe": lambda self, unit="example": "each example"}, "does not name the unit"),
    "longer": (
        {"truncate": lambda self, steps: type(self)(60, 11, max(1, int(steps)))},
        r"truncate\(0\) is not refused",
    ),
    "other size": ({"truncate": lambda self, steps: type(self)(60, 12, steps)}, "changed batch_size"),
    "accounted": ({"amplified": returning(False)}, "more than batch_size|accountant"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name):
    replaced, words = BROKEN[name]
    with pytest.raises(ContractError, match=words):
        check_sampling(type("Broken", (Sound,), replaced)(60, 11, 7), serialized=False)


def test_a_participation_that_a_leading_block_widens_is_seen():
    class Widening(Sound):
        @property
        def participation(self):
            return FullBatch() if self.steps < 7 else MinSep(3)

    with pytest.raises(ContractError, match="lets one unit touch"):
        check_sampling(Widening(60, 11, 7), serialized=False)


class Changed(Batches):
    """Batches of Poisson sampling, changed."""

    def __init__(self, sampling, key, change):
        self.period, self.name = 5, "changed"
        self._batches, self._change = PoissonBatches(sampling, 5, key), change

    def batch(self, t):
        return self._change(self._batches.batch(t), t)

    def size(self, t):
        return 11


def nothing_twice(batch, t):
    return np.concatenate([batch, batch[:1]])


class Forgetful:
    """Other batches whenever they are asked for."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, batch, t):
        return np.flatnonzero(self.rng.random(60) < 11 / 60)


FORMED = {
    "range": (lambda batch, t: batch + 55, "outside of 0"),
    "twice": (nothing_twice, "a unit twice"),
    "random": (Forgetful(), "not a function of the key"),
    "few": (lambda batch, t: batch[: len(batch) // 2], "units on average"),
    "fixed": (lambda batch, t: (np.arange(11) + 11 * t + batch.sum()) % 60, "moves_others is False"),
}


@pytest.mark.parametrize("name", FORMED)
def test_batches_that_break_a_rule_are_seen(name):
    change, words = FORMED[name]

    @dataclass(frozen=True)
    class Formed(Sound):
        pass

    @batches_of.register
    def _(sampling: Formed, key, *, period=None, shuffled=True):
        return Changed(sampling, key, change)

    with pytest.raises(ContractError, match=words):
        check_sampling(Formed(60, 11, 7), serialized=False)


def always(unit, t=None):
    return lambda taken, key: taken.__setitem__((slice(None) if t is None else t, unit), True)


def never(unit, t):
    return lambda taken, key: taken.__setitem__((t, unit), False)


def public(taken, key):
    taken[:] = np.arange(60) % 5 == np.arange(7)[:, None] % 5


def one_coin(taken, key):
    taken[:] = np.arange(60) % 4 == key[-1] % 4


def often(taken, key):
    taken[2, 7] |= key[-1] % 2 == 0


def once_for_all_steps(taken, key):
    taken[:, 9] = taken[0, 9]


DRAWN = {
    "one coin": (once_for_all_steps, r"unit 9 has the steps \[0, 1, 2, 3, 4, 5, 6\]"),
    "public": (public, "is no secret of the key"),
    "public unit": (always(59), "unit 59 has"),
    "public step": (always(31, 4), "unit 31 has"),
    "often": (often, "unit 7 has"),
    "few keys": (one_coin, "give the batches of another key"),
}


def drawn(change, rate):
    """A scheme whose units are drawn at a rate in each of 7 steps, changed."""

    class Fixed(Batches):
        def __init__(self, key):
            self.period, self.name = 7, "fixed"
            self.taken = np.random.default_rng(list(key)).random((7, 60)) < rate
            change(self.taken, key)

        def batch(self, t):
            return np.flatnonzero(self.taken[t])

        def size(self, t):
            return 15

    @dataclass(frozen=True)
    class Drawn(Sound):
        pass

    @batches_of.register
    def _(sampling: Drawn, key, *, period=None, shuffled=True):
        return Fixed(key)

    return Drawn(60, 60 * rate, 7)


@pytest.mark.parametrize("name", DRAWN)
def test_batches_that_are_no_secret_of_the_key_are_seen(name):
    change, words = DRAWN[name]
    with pytest.raises(ContractError, match=words):
        check_draws(drawn(change, 0.25))


def test_a_unit_that_is_left_out_of_a_step_is_seen_where_that_is_rare():
    with pytest.raises(ContractError, match="unit 3 has no step 4"):
        check_draws(drawn(never(3, 4), 0.75))


@pytest.mark.parametrize("rate", [0.02, 0.25, 0.9, 1.0])
def test_secret_draws_are_no_fault(rate):
    check_draws(drawn(lambda taken, key: None, rate))


def test_whoever_is_refused_is_named():
    @dataclass(frozen=True)
    class Nameless(Sound):
        pass

    @batches_of.register
    def _(sampling: Nameless, key, *, period=None, shuffled=True):
        raise UnsupportedError("no batches")

    with pytest.raises(ContractError, match="refused without the scheme's name: no batches"):
        check_sampling(Nameless(60, 11, 7), serialized=False)

    @dataclass(frozen=True)
    class Unaccounted(Sound):
        pass

    @accountant_of.register
    def _(sampling: Unaccounted, strategy, adjacency, accounting):
        raise UnsupportedError("no theorem")

    with pytest.raises(ContractError, match="refused without the scheme's name: no theorem"):
        check_sampling(Unaccounted(60, 11, 7), serialized=False)


def test_a_scheme_that_no_file_holds_is_seen():
    with pytest.raises(TypeError, match="register its class"):
        check_sampling(Sound(60, 11, 7))

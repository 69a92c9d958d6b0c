"""Every accountant against the shipped contract, and the contract against accountants that break it."""

import math
from dataclasses import dataclass

import pytest

from anechoic.accounting import (
    BallsInBinsAccountant,
    MinSepAccountant,
    OverlappingAccountant,
    PoissonAccountant,
    RandomAllocationAccountant,
    Verified,
    accountant_of,
)
from anechoic.accounting.accountant import Accountant, SampledAccountant
from anechoic.accounting.terms import SampledGaussianTerm
from anechoic.batches import batches_of
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.testing import AccountantContract, ContractError, check_accountant, draws
from tests.marks import mostly_slow

N = 300
SAMPLED = Verified(samples=100_000, failure=1e-8, seed=3)
BANDED = {n: BandedToeplitz(n, [1.0, 0.5, 0.25][: min(n, 3)]) for n in (4, 5, 6, 7)}
CASES = {
    "Poisson": (Poisson(N, 60, 4), Identity(4), "zero_out", "deterministic"),
    "Poisson, one step": (Poisson(N, 60, 1), Identity(1), "add_or_remove", "deterministic"),
    "Poisson, replaced": (Poisson(N, 60, 3), Identity(3), "replace_one", "deterministic"),
    "everybody": (Poisson(N, N, 3), Identity(3), "zero_out", "deterministic"),
    "cyclic": (CyclicPoisson(N, 30, 3, 7), BANDED[7], "replace_one", "deterministic"),
    "overlapping": (Poisson(N, 30, 4), BandedToeplitz(4, [1.0, 0.5]), "zero_out", "deterministic"),
    "bins": (BallsInBins(N, 3, 5), BANDED[5], "zero_out", "deterministic"),
    "one bin": (BallsInBins(N, 1, 1), Identity(1), "zero_out", "deterministic"),
    "bins, sampled": (BallsInBins(N, 3, 5), BANDED[5], "zero_out", SAMPLED),
    "allocation": (RandomAllocation(N, 3, 5), Identity(5), "zero_out", "deterministic"),
    "allocation, one step": (RandomAllocation(N, 1, 1), Identity(1), "zero_out", "deterministic"),
    "min-sep": (MinSepSampling(N, 50, 3, 6), BANDED[6], "zero_out", SAMPLED),
}
QUICK = {"everybody", "allocation", "allocation, one step"}


@pytest.mark.parametrize("name", mostly_slow(CASES, quick=QUICK))
def test_ours_keep_the_contract(name):
    check_accountant(accountant_of(*CASES[name]), std=2.0)


def test_every_accountant_is_among_them():
    def all_of(cls):
        yield cls
        for below in cls.__subclasses__():
            yield from all_of(below)

    ours = {cls for cls in all_of(Accountant) if cls.__module__.startswith("anechoic.")}
    tried = {type(accountant_of(*case)) for case in CASES.values()}
    assert tried == ours - {Accountant, SampledAccountant}
    assert tried == {
        BallsInBinsAccountant,
        MinSepAccountant,
        OverlappingAccountant,
        PoissonAccountant,
        RandomAllocationAccountant,
    }


class TestAllocation(AccountantContract):
    std = 2.0

    def accountants(self):
        return [accountant_of(*CASES["allocation"])]


def broken(**replaced):
    sampling = RandomAllocation(N, 3, 5)
    cls = type("Broken", (RandomAllocationAccountant,), replaced)
    return cls(Identity(5), sampling, "zero_out", "deterministic")


def scaled(method, factor):
    return lambda self, *args: factor * getattr(RandomAllocationAccountant, method)(self, *args)


def short_term(self, delta, std, mu, *, verified=True):
    return SampledGaussianTerm(1.0, 4.0 * std, 0.3, "zero_out", 5)


BROKEN = {
    "theorem": ({"theorem": None}, "theorem is missing"),
    "sentence": ({"describe": lambda self: ""}, "three sentences"),
    "sentences": ({"evaluation": lambda self, epsilon: ("one",)}, "three sentences"),
    "negative": ({"bound": scaled("bound", -1.0)}, "must rise"),
    "falling": ({"bound": lambda self, delta, std: 1.0 + 100 * delta}, "must rise"),
    "rising": ({"bound": lambda self, delta, std: std - math.log(delta)}, "twice the noise"),
    "above": ({"epsilon": scaled("bound", 1.1)}, "is above bound"),
    "plausible": ({"plausible": lambda self, *args: False}, "implausible"),
    "little noise": ({"noise_std": scaled("noise_std", 0.9)}, "at which epsilon is"),
    "much noise": ({"noise_std": scaled("noise_std", 2.5)}, "half of that noise"),
    "no noise": ({"noise_std": lambda self, *args: math.inf}, "noise_std"),
    "too good": (
        {
            "bound": scaled("bound", 0.5),
            "noise_std": lambda self, epsilon, delta: RandomAllocationAccountant.noise_std(
                self, 2 * epsilon, delta
            ),
        },
        "but runs show",
    ),
    "term": ({"term": short_term}, "term of one run"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name):
    replaced, words = BROKEN[name]
    with pytest.raises(ContractError, match=words):
        check_accountant(broken(**replaced), std=2.0)


def test_an_accountant_of_coins_that_the_key_does_not_throw_is_seen(monkeypatch):
    def public(sampling, key, **options):
        return batches_of.dispatch(RandomAllocation)(sampling, bytes(32), **options)

    monkeypatch.setattr(draws, "batches_of", public)
    with pytest.raises(ContractError, match="is no secret of the key"):
        check_accountant(broken(), std=2.0)


def test_an_accountant_of_what_is_not_amplified_is_seen():
    @dataclass(frozen=True)
    class Needless(RandomAllocationAccountant):
        def __post_init__(self):
            pass

    needless = Needless(Identity(4), FixedOrder(N, 75, steps=4), "zero_out", "deterministic")
    with pytest.raises(ContractError, match="not amplified"):
        check_accountant(needless)


def test_the_contract_asks_for_accountants():
    with pytest.raises(NotImplementedError, match="give accountants"):
        AccountantContract().test_it_says_what_proves_it()

"""Every accountant against the shipped contract, and the contract against accountants that break it."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from anechoic.accounting import Verified, gaussian_epsilon, gaussian_mu
from anechoic.accounting.accountant import Accountant, MonteCarloAccountant, accountant_of
from anechoic.accounting.balls_in_bins.accountant import BallsInBinsAccountant
from anechoic.accounting.min_sep.accountant import MinSepAccountant
from anechoic.accounting.poisson.accountant import FixedSizeAccountant, PoissonAccountant
from anechoic.accounting.random_allocation.accountant import RandomAllocationAccountant
from anechoic.accounting.terms import SampledGaussianTerm
from anechoic.batches.base import batches_of
from anechoic.participation import Cyclic
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity
from anechoic.testing import AccountantContract, draws
from anechoic.testing._compare import ContractError
from tests.contracts import check_accountant
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
    "bins": (BallsInBins(N, 3, 5), BANDED[5], "zero_out", "deterministic"),
    "one bin": (BallsInBins(N, 1, 1), Identity(1), "zero_out", "deterministic"),
    "bins, sampled": (BallsInBins(N, 3, 5), BANDED[5], "zero_out", SAMPLED),
    "allocation": (RandomAllocation(N, 3, 5), Identity(5), "zero_out", "deterministic"),
    "allocation, one step": (RandomAllocation(N, 1, 1), Identity(1), "zero_out", "deterministic"),
    "fixed size": (FixedSize(N, 60, 4), Identity(4), "zero_out", "deterministic"),
    "fixed size, replaced": (FixedSize(N, 60, 3), Identity(3), "replace_one", "deterministic"),
    "min-sep": (MinSepSampling(N, 50, 3, 6), BANDED[6], "zero_out", SAMPLED),
}
QUICK = {"everybody", "fixed size", "fixed size, replaced", "allocation", "allocation, one step"}


@pytest.mark.parametrize("name", mostly_slow(CASES, quick=QUICK))
@pytest.mark.few(1)
def test_ours_keep_the_contract(name):
    check_accountant(accountant_of(*CASES[name]), std=2.0)


def test_every_accountant_is_among_them():
    def all_of(cls):
        yield cls
        for below in cls.__subclasses__():
            yield from all_of(below)

    ours = {cls for cls in all_of(Accountant) if cls.__module__.startswith("anechoic.")}
    tried = {type(accountant_of(*case)) for case in CASES.values()}
    assert tried == ours - {Accountant, MonteCarloAccountant}
    assert tried == {
        BallsInBinsAccountant,
        FixedSizeAccountant,
        MinSepAccountant,
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
    return SampledGaussianTerm(1.0, 4.0 * std, 0.3, "zero_out", 5, delta)


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
@pytest.mark.few(5)
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


@pytest.mark.parametrize("std", [0.05, 0.2, 0.5, 3.0])
def test_sampling_never_costs_more_than_none(std):
    """Eleven steps in ten groups: two compositions at the largest column norm are more than the run has."""
    strategy = ColumnNormalized(BandedToeplitz(11, 0.8 ** np.arange(10)))
    accountant = accountant_of(CyclicPoisson(1000, 90, 10, 11), strategy, "zero_out", "deterministic")
    length = sensitivity(strategy, Cyclic(10)).value
    assert accountant.bound(1e-6, std) <= gaussian_epsilon(1e-6, length / std)
    assert accountant.noise_std(8.0, 1e-6) <= length / gaussian_mu(8.0, 1e-6)


SELDOM = {
    "cyclic": (CyclicPoisson(10_000, 1, 3, 4), BandedToeplitz(4, [1.0, 0.5])),
    "bins": (BallsInBins(10_000, 900, 5), BandedToeplitz(5, [1.0, 0.5])),
    "allocation": (RandomAllocation(10_000, 900, 5), Identity(5)),
    "min-sep": (MinSepSampling(10_000, 1, 3, 6), BandedToeplitz(6, [1.0, 0.5])),
}


@pytest.mark.parametrize("name", SELDOM)
def test_where_delta_is_the_chance_of_taking_part_nothing_is_hidden(name):
    sampling, strategy = SELDOM[name]
    accountant = accountant_of(
        sampling, strategy, "zero_out", SAMPLED if name == "min-sep" else "deterministic"
    )
    assert 1e-5 < accountant.taking_part < 0.01
    assert accountant.epsilon(0.01, 1e-3) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="any noise would do"):
        accountant.noise_std(1.0, 0.01)


def test_samples_are_not_drawn_where_they_show_nothing(monkeypatch):
    accountant = accountant_of(MinSepSampling(N, 50, 3, 6), BANDED[6], "zero_out", SAMPLED)
    monkeypatch.setattr(MinSepAccountant, "pair", None)
    assert accountant.epsilon(1e-6, 1e12) == pytest.approx(0.0)
    assert accountant.epsilon(1e-6, 1e-12) > 1e20

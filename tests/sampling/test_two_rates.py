"""A scheme from outside whose batches have two sizes: whoever reads a size asks for that of the step."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import anechoic as an
from anechoic import _serialize
from anechoic.accounting import poisson_epsilon
from anechoic.audit.draws import draw_test
from anechoic.audit.ratios import likelihood_ratios
from anechoic.batches.base import STEP
from anechoic.errors import UnsupportedError
from anechoic.extend import (
    Accountant,
    Batches,
    ParticipationLaw,
    Sampling,
    Theorem,
    accountant_of,
    batches_of,
    integers,
    law_of,
    least_noise,
    only_deterministic,
    refuse_replacing,
    serializable,
)
from anechoic.participation import FullBatch
from anechoic.strategies import Identity
from anechoic.testing._compare import ContractError
from tests.contracts import check_sampling


@dataclass(frozen=True)
class WeekendPoisson(Sampling):
    """Poisson sampling at `rate`, on every seventh step at `weekend`; `batch_size` divides the sums."""

    examples: int
    batch_size: int
    rate: float
    weekend: float
    steps: int

    amplified: ClassVar[bool] = True
    moves_others: ClassVar[bool] = False

    @property
    def participation(self):
        return FullBatch()

    def rate_of(self, t):
        return self.weekend if t % 7 == 6 else self.rate

    def expected_size(self, t):
        return self.examples * self.rate_of(t)

    def truncate(self, steps):
        if not 1 <= steps <= self.steps:
            raise ValueError(f"steps={steps} must lie between 1 and {self.steps}.")
        return type(self)(self.examples, self.batch_size, self.rate, self.weekend, steps)

    def describe(self, unit="example"):
        return f"each {unit} is drawn with probability {self.rate:g}, on every seventh step {self.weekend:g}"


class TwoRates(Batches):
    def __init__(self, sampling, key):
        self.period, self.name, self._sampling, self._key = 7, "two rates", sampling, key

    def batch(self, t):
        coins = integers(self._key, STEP, t).raw(self._sampling.examples)
        return np.flatnonzero(coins < np.uint64(self._sampling.rate_of(t) * 2**64))

    def size(self, t):
        return round(self._sampling.expected_size(t))


@dataclass(frozen=True)
class WeekendAccountant(Accountant):
    theorem: ClassVar[Theorem] = Theorem("Sampled Gaussians, composed", "amplification.md#poisson-sampling")

    def __post_init__(self):
        only_deterministic(self.sampling, self.accounting)
        refuse_replacing(self.sampling, self.adjacency)
        if not isinstance(self.strategy, Identity):
            raise UnsupportedError("WeekendPoisson: no theorem but for independent noise.")

    def amplified_bound(self, delta, std):
        rates = [self.sampling.rate_of(t) for t in range(self.sampling.steps)]
        return poisson_epsilon(delta, std, max(rates), len(rates), adjacency=self.adjacency)

    def amplified_noise_std(self, epsilon, delta):
        return least_noise(lambda std: self.amplified_bound(delta, std), epsilon, 1.0, 1e-4)

    def describe(self):
        return "(epsilon, delta)-DP, amplified by sampling at two rates"


@pytest.fixture(scope="module", autouse=True)
def registered():
    before = dict(_serialize._REGISTRY)
    serializable(WeekendPoisson)
    batches_of.register(WeekendPoisson, lambda sampling, key, **_: TwoRates(sampling, key))
    accountant_of.register(
        WeekendPoisson, lambda sampling, strategy, *how: WeekendAccountant(strategy, sampling, *how)
    )

    @law_of.register(WeekendPoisson)
    class WeekendLaw(ParticipationLaw):
        def hazard(self, past):
            return np.ones(past.shape[1], bool), self.sampling.rate_of(len(past))

    yield
    _serialize._REGISTRY.clear()
    _serialize._REGISTRY.update(before)


SCHEME = WeekendPoisson(examples=60, batch_size=18, rate=0.25, weekend=0.5, steps=15)


def test_the_contract_takes_the_size_of_each_step():
    check_sampling(SCHEME)
    with pytest.raises(ContractError, match="promised 30"):

        @dataclass(frozen=True)
        class Told(WeekendPoisson):
            def expected_size(self, t):
                return 30.0

        check_sampling(Told(60, 18, 0.25, 0.5, 15), serialized=False)


def test_the_audit_holds_each_batch_against_its_own_rate():
    rng = np.random.default_rng(0)
    part, _ = law_of(SCHEME).draw_units(4000, rng)
    assert draw_test(SCHEME, part).p_values["batches"] > 1e-3
    part[6] &= rng.random(4000) < 0.5  # the weekend drawn as any other day
    assert draw_test(SCHEME, part).p_values["batches"] < 1e-6
    with pytest.raises(UnsupportedError, match="WeekendPoisson: no likelihood ratio.*Give WeekendLaw"):
        likelihood_ratios(Identity(15), SCHEME, part, 1.0)
    with pytest.raises(ValueError, match=r"WeekendLaw.hazard gives 1.5: probabilities lie in \[0, 1\]"):
        draw_test(WeekendPoisson(60, 18, 0.25, 1.5, 15), part)


def test_a_run_is_divided_by_the_constant_that_the_scheme_names():
    mechanism = an.calibrate(Identity(15), sampling=SCHEME, epsilon=2.0, delta=1e-5)
    assert mechanism.expected_batch_size == 18 and mechanism.epsilon() <= 2.0 + 1e-9
    one_rate = an.sampling.Poisson(60, 15, 15)  # the weekends cost something
    assert (
        mechanism.noise_std > an.calibrate(Identity(15), sampling=one_rate, epsilon=2.0, delta=1e-5).noise_std
    )

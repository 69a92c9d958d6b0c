"""A participation, a sampling scheme with its account and its audit, and a workload of one's own.

    pytest examples/extending.py      # each keeps its contract
    python examples/extending.py      # and everything takes them

A strategy of one's own is in docs/mechanisms.md.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

import anechoic as an
from anechoic.accounting import poisson_epsilon, poisson_noise_multiplier
from anechoic.extend import (
    Accountant,
    Batches,
    GeneralWorkload,
    Participation,
    ParticipationLaw,
    Sampling,
    Sensitivity,
    Theorem,
    accountant_of,
    batches_of,
    below,
    integers,
    law_of,
    log_mix,
    only_deterministic,
    refuse_replacing,
    sensitivity_of,
    serializable,
)
from anechoic.participation import FullBatch
from anechoic.testing import AccountantContract, ParticipationContract, SamplingContract, WorkloadContract

# -- a participation: users come in sessions, each in the steps of one window ----------------------


@serializable
@dataclass(frozen=True)
class Session(Participation):
    """Each unit takes part in steps of one window of `length` steps."""

    length: int

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"length={self.length} must be at least 1: it counts the steps of a session.")

    def max_participations_in(self, n):
        return min(n, self.length)

    def patterns(self, n):
        for first in range(max(1, n - self.length + 1)):
            yield tuple(range(first, min(n, first + self.length)))

    def describe(self):
        return f"each unit takes part in steps of one window of {self.length} steps"

    def allows(self, steps, n):
        steps = set(steps)
        return not steps or max(steps) - min(steps) < self.length


@sensitivity_of.register
def _(participation: Session, strategy):
    """Lemma 3.15: the sum of |C^T C| over a window is a bound, and attained where no entry is negative."""
    c = strategy.to_dense()
    gram = c.T @ c
    blocks = [gram[np.ix_(steps, steps)] for steps in participation.patterns(strategy.n)]
    squared = max(float(np.abs(block).sum()) for block in blocks)
    theorem = Theorem("Sensitivity: absolute sums (Lemma 3.15)", "sensitivity.md#absolute-sums")
    return Sensitivity.of_squared(squared, bool((gram >= 0).all()), "sums over a session", theorem)


# -- a sampling scheme: every unit flips one secret coin before the run ----------------------------


@serializable
@dataclass(frozen=True)
class Cohort(Sampling):
    """Each of `examples` units is in the cohort with probability `rate`, for all `steps` steps."""

    examples: int
    rate: float
    steps: int

    def __post_init__(self):
        if self.examples < 1 or self.steps < 1 or not 0 < self.rate <= 1:
            raise ValueError(f"{self!r}: examples and steps are at least 1, and rate lies in (0, 1].")

    @property
    def batch_size(self):
        return self.examples * self.rate

    @property
    def participation(self):
        return FullBatch()

    @property
    def amplified(self):
        return True

    @property
    def moves_others(self):  # each unit has a coin of its own; without this add_or_remove is refused
        return False

    def truncate(self, steps):
        if not 1 <= steps <= self.steps:
            raise ValueError(f"steps={steps} must lie between 1 and {self.steps}.")
        return Cohort(self.examples, self.rate, steps)

    def describe(self, unit="example"):
        return (
            f"one secret cohort: each {unit} of {self.examples} takes part in all {self.steps} steps with"
            f" probability {self.rate:.6g}, and in none otherwise"
        )


class OneCohort(Batches):
    """Batches as a function of the key alone."""

    def __init__(self, sampling, key):
        self.period, self.name = sampling.steps, "one cohort"
        coins = integers(key, 100).raw(sampling.examples)  # 100: an address that no scheme here uses
        self._members = np.flatnonzero(below(coins, Fraction(sampling.rate)))
        self._expected = round(sampling.batch_size)

    def batch(self, t):
        return self._members

    def size(self, t):
        return self._expected


@batches_of.register
def _(sampling: Cohort, key, *, period=None, shuffled=True):
    return OneCohort(sampling, key)


@dataclass(frozen=True)
class CohortAccountant(Accountant):
    """With the unit in, a mixture of N(0, s^2 I) and a Gaussian moved by at most sens(C, every step)."""

    theorem: ClassVar[Theorem] = Theorem(
        "One sampled Gaussian (monograph, Theorem 3.21)", "cyclic-poisson.md"
    )

    def __post_init__(self):
        only_deterministic(self.sampling, self.accounting)
        refuse_replacing(self.sampling, self.adjacency)

    @property
    def _length(self):
        return an.sensitivity(self.strategy, FullBatch()).value

    def amplified_bound(self, delta, std):
        return poisson_epsilon(delta, std / self._length, self.sampling.rate, 1)

    def amplified_noise_std(self, epsilon, delta):
        return self._length * poisson_noise_multiplier(epsilon, delta, self.sampling.rate, 1)

    def describe(self):
        return "(epsilon, delta)-DP, amplified by the secret cohort: one sampled Gaussian for the whole run"


@accountant_of.register
def _(sampling: Cohort, strategy, adjacency, accounting):
    return CohortAccountant(strategy, sampling, adjacency, accounting)


# -- its law, for audits ---------------------------------------------------------------------------


@law_of.register(Cohort)
class CohortLaw(ParticipationLaw):
    def hazard(self, past):
        if len(past):
            return past[0], 1.0  # whoever is in stays in
        return np.ones(past.shape[1], bool), self.sampling.rate

    def log_ratio(self, columns, moved):
        everything = moved.sum(axis=0) - columns.gram.sum() / (2 * columns.variance)
        return log_mix(self.sampling.rate, np.zeros(len(everything)), everything)


# -- a workload: sums since midnight ---------------------------------------------------------------


@serializable
@dataclass(frozen=True, eq=False)
class SinceMidnight(GeneralWorkload):
    """Sums that begin anew every `day` steps."""

    day: int = 24

    def multiply(self, x):
        return np.concatenate([np.cumsum(part, axis=0) for part in self._days(x)])

    def solve(self, x):
        return np.concatenate([np.diff(part, axis=0, prepend=0.0 * part[:1]) for part in self._days(x)])

    def adjoint_multiply(self, x):
        return np.concatenate([np.cumsum(part[::-1], axis=0)[::-1] for part in self._days(x)])

    def truncate(self, steps):
        if not 1 <= steps <= self.n:
            raise ValueError(f"steps={steps} must lie between 1 and n={self.n}.")
        return SinceMidnight(steps, self.day)

    def _days(self, x):
        array = np.asarray(x, dtype=np.float64)
        if array.ndim == 0 or len(array) != self.n:
            raise ValueError(f"x has shape {array.shape}; axis 0 must have n={self.n} steps.")
        return np.split(array, range(self.day, self.n, self.day))


# -- what they promise is tried --------------------------------------------------------------------


class TestSession(ParticipationContract):
    def participations(self):
        return [Session(length) for length in (1, 2, 4, 9)]


class TestCohort(SamplingContract):
    def schemes(self):
        return [Cohort(60, 0.3, 7), Cohort(31, 1.0, 3), Cohort(40, 0.5, 1)]


class TestCohortAccountant(AccountantContract):
    std = 2.0

    def accountants(self):
        return [accountant_of(Cohort(300, 0.3, 5), SEASONAL, "zero_out", "deterministic")]


class TestSinceMidnight(WorkloadContract):
    def workloads(self):
        return [SinceMidnight(n, 3) for n in (1, 3, 7, 12)]


#: C = I + S / 2, where S moves down by two steps.
SEASONAL = an.strategies.BandedToeplitz(5, [1.0, 0.0, 0.5])


def main():
    """Calibrate, state and audit a mechanism of these classes."""
    external = an.sampling.External(Session(6), batch_size=50, steps=5)
    print(an.calibrate(SEASONAL, sampling=external, epsilon=4.0, delta=1e-6, unit="user"))
    mech = an.calibrate(SEASONAL, sampling=Cohort(400, 0.3, 5), epsilon=4.0, delta=1e-5)
    print(mech)
    print(an.audit.audit_mechanism(mech, canaries=200, seed=0))
    print(an.optimize.dense(SinceMidnight(12, 4)))


if __name__ == "__main__":
    main()

"""Objective of a plan: the error of the iterates of a run, or of those that are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from anechoic._validate import Array, one_of
from anechoic.losses.dispatch import error
from anechoic.losses.norms import LossNorm
from anechoic.losses.result import StepErrors
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

#: What is kept of a run, for `plan(keep=…)`.
Kept = Literal["last", "all", "average", "any"]
KEPT: tuple[Kept, ...] = get_args(Kept)
#: Weight of what is kept, beside the mean over all iterates; see 'What was measured'.
WEIGHT = 0.2


@dataclass(frozen=True)
class PlanObjective:
    """A weighted mean of the squared errors of the iterates, rows of A.

    Gradients are taken at every iterate, so that the path matters too: all of them together have the weight
    1 - weight, and what is kept has `weight`. An average is kept to within the mean of its iterates' squared
    errors, which that of the average does not exceed (Jensen).

    Attributes:
        workload: A, n steps.
        weight: of what is kept, in [0, 1].
        averaged: whether the mean of the last half of the iterates is kept, else the last one is.
        worst: whether the largest error of an iterate counts instead, whichever is kept.
    """

    workload: Workload
    weight: float = 0.0
    averaged: bool = False
    worst: bool = False

    @classmethod
    def of(cls, workload: Workload, keep: Kept | float) -> PlanObjective:
        """The objective of `plan(keep=…)`.

        Raises:
            ValueError: for an unknown word, or a weight outside of [0, 1].
        """
        if isinstance(keep, str):
            one_of("keep", keep, KEPT, remedy="Or give the weight of the last iterate.")
            weight = WEIGHT if keep in ("last", "average") else 0.0
            return cls(workload, weight, keep == "average", keep == "any")
        if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0.0 <= keep <= 1.0:
            raise ValueError(
                f'keep={keep!r} must be "last", "all", "average", "any", or the last one\'s weight in [0, 1].'
            )
        return cls(workload, float(keep))

    @property
    def kept(self) -> int:
        """How many of the last iterates are kept, >= 1."""
        return self.workload.n - self.workload.n // 2 if self.averaged else 1

    @property
    def weights(self) -> Array:
        """Of the squared errors of the steps, shape (n,), sum 1; alike where the largest one counts."""
        n, kept = self.workload.n, self.kept
        weights = np.full(n, (1.0 - self.weight) / n)
        weights[n - kept :] += self.weight / kept
        return weights

    @property
    def loss(self) -> LossNorm:
        """For the optimisers."""
        if self.worst:
            return "max"
        if self.averaged or 0.0 < self.weight < 1.0:
            return self.weights
        return "last" if self.weight else "rms"

    def measure(self, strategy: Strategy) -> float:
        """Root of the objective for unit noise; in closed form where the error has one."""
        return self.root(error(self.workload, strategy))

    def root(self, errors: StepErrors) -> float:
        """The same of the errors of a strategy on this workload."""
        if self.worst:
            return errors.max
        if self.averaged:
            return errors.of(self.weights)
        if self.weight == 0.0:
            return errors.rms
        return math.sqrt((1.0 - self.weight) * errors.rms**2 + self.weight * errors.last**2)

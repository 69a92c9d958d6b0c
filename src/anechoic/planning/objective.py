"""What a plan minimises: the error of the iterates that a run goes through, and of the one that is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anechoic._validate import Array, one_of
from anechoic.losses.dispatch import error
from anechoic.losses.kinds import LossKind
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

#: What is kept of a run, for `plan(keep=…)`.
Kept = Literal["last", "all", "average"]
#: Weight of what is kept, beside the mean over all iterates; measured in docs/choosing.md.
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
    """

    workload: Workload
    weight: float = 0.0
    averaged: bool = False

    @classmethod
    def of(cls, workload: Workload, keep: Kept | float) -> PlanObjective:
        """The objective of `plan(keep=…)`.

        Raises:
            ValueError: for an unknown word, or a weight outside of [0, 1].
        """
        if isinstance(keep, str):
            one_of("keep", keep, ("last", "all", "average"), remedy="Or give the weight of the last iterate.")
            return cls(workload, 0.0 if keep == "all" else WEIGHT, keep == "average")
        if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0.0 <= keep <= 1.0:
            raise ValueError(
                f'keep={keep!r} must be "last", "all", "average", or the weight of the last one in [0, 1].'
            )
        return cls(workload, float(keep))

    @property
    def weights(self) -> Array:
        """Of the squared errors of the steps, shape (n,), sum 1."""
        n = self.workload.n
        kept = n - n // 2 if self.averaged else 1
        weights = np.full(n, (1.0 - self.weight) / n)
        weights[n - kept :] += self.weight / kept
        return weights

    @property
    def loss(self) -> LossKind:
        """For the optimisers."""
        if self.averaged or 0.0 < self.weight < 1.0:
            return self.weights
        return "last" if self.weight else "rms"

    def measure(self, strategy: Strategy) -> float:
        """Root of the objective for unit noise; in closed form where the error has one."""
        errors = error(self.workload, strategy)
        if self.averaged:
            return errors.of(self.weights)
        if self.weight == 0.0:
            return errors.rms
        return math.sqrt((1.0 - self.weight) * errors.rms**2 + self.weight * errors.last**2)

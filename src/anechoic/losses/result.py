"""Errors of a strategy, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from anechoic._validate import Array, one_of
from anechoic.losses.norms import KINDS, LossNorm, row_weights


@dataclass(frozen=True, eq=False)
class StepErrors:
    """Standard deviations of the error of the n releases, for z of variance 1 (and dimension 1).

    Attributes:
        n: steps.
        max: largest error of a step.
        rms: root mean square over the steps, $||B||_F / sqrt(n)$.
    """

    n: int
    max: float
    rms: float
    _squared: Callable[[], Array] = field(repr=False)
    _last: float | None = field(default=None, repr=False)

    @cached_property
    def per_step(self) -> Array:
        """StepErrors of every step, shape (n,); computed, and O(n) of memory taken, when first asked for."""
        return np.asarray(np.sqrt(self._squared()))

    @property
    def last(self) -> float:
        """StepErrors of the last step; without `per_step` where it has a closed form."""
        return float(self.per_step[-1]) if self._last is None else self._last

    def of(self, kind: LossNorm) -> float:
        """The error that `kind` asks for: "rms", "max", "last", or weights w >= 0, shape (n,).

        Weights give $sqrt(sum_t w_t e_t^2 / sum_t w_t)$, so that equal ones are "rms".

        Raises:
            ValueError: for anything else.
        """
        if isinstance(kind, str):
            match one_of("kind", kind, KINDS):
                case "rms":
                    return self.rms
                case "max":
                    return self.max
                case _:
                    return self.last
        return float(np.sqrt(row_weights(kind, self.n) @ np.square(self.per_step)))

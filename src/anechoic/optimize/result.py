"""What an optimiser returns: the strategy, its loss, how far that is from the best, and what it cost."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss
from anechoic.losses.norms import LossNorm
from anechoic.lower_bounds.dispatch import lower_bound
from anechoic.lower_bounds.result import Bound
from anechoic.participation.base import Participation
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload, checked_workload

NUMBERS = 2**26  # in one array that an optimiser holds: half a gigabyte
SAME = 1e-12  # relative difference of two losses that counts as none
ROUNDING = 1e-9  # relative difference of a loss and a bound of it that float64 may bring about


@dataclass(frozen=True)
class Optimized:
    """An optimised strategy.

    Attributes:
        strategy: C.
        loss: sensitivity times error of this very strategy, root scale, recomputed after the optimisation.
        lower_bound: no strategy of the class `bound_covers` has a smaller loss; None
            where no bound is known.
        gap: loss / lower_bound - 1, or None. It bounds how much another strategy of that class could gain;
            it is never negative.
        evaluations: how often the loss and its gradient were computed.
        seconds: wall-clock time of the call.
        bound_name: the theorem of `lower_bound`, or None.
        bound_covers: the class of strategies that it covers, or None.
        gradient: norm of the projected gradient at `strategy`, as the optimiser defines it, or None.
    """

    strategy: Strategy
    loss: float
    lower_bound: float | None
    gap: float | None
    evaluations: int
    seconds: float
    bound_name: str | None = None
    bound_covers: str | None = None
    gradient: float | None = None

    def __repr__(self) -> str:
        return f"Optimized(strategy={self.strategy!r}, loss={self.loss:g}, gap={self.gap})"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.loss) and self.loss > 0.0):
            raise ArithmeticError(
                f"loss={self.loss} of {self.strategy.describe()}: it lies beyond float64. Scale the"
                " workload, or ask for a smaller class."
            )
        if self.gap is not None and not self.gap >= 0.0:
            raise ArithmeticError(
                f"gap={self.gap}: the loss {self.loss} lies below the bound {self.lower_bound} of"
                f" {self.bound_covers} ({self.bound_name}), so that one of the two is wrong. Use neither."
            )

    def against(self, bound: Bound | None) -> Optimized:
        """The same strategy, measured against `bound`.

        Raises:
            ArithmeticError: if the loss lies below the bound by more than rounding.
        """
        if bound is None:
            return self
        gap = self.loss / bound.value - 1.0
        # where the two meet, either may be rounded past the other
        gap = 0.0 if -ROUNDING <= gap < 0.0 else gap
        lower = min(bound.value, self.loss)
        return replace(self, lower_bound=lower, gap=gap, bound_name=bound.theorem, bound_covers=bound.covers)


def small_enough(workload: Workload, most: int = NUMBERS) -> Workload:
    """`workload`, if it has no more steps than fit, else an error: an optimiser holds dozens of arrays."""
    if checked_workload(workload).n > most:
        raise UnsupportedError(
            f"n={workload.n} must be at most {most:,} steps here, or memory does not do. Use optimize.blt,"
            " whose losses have a closed form, or optimise for fewer steps."
        )
    return workload


def finish(
    strategy: Strategy,
    asked: tuple[Workload, Participation, LossNorm],
    started: float,
    evaluations: int,
    *,
    bound: Bound | None = None,
    gradient: float | None = None,
    others: Iterable[Strategy] = (),
) -> Optimized:
    """The record of an optimisation that began at `started` (time.perf_counter) and ended in `strategy`.

    `others` of the same class, its starts and independent noise, replace it where they are better: no
    optimiser returns worse.

    `bound` is the certificate of the optimiser itself; a larger one known for every strategy replaces it.
    """
    workload, participation, kind = asked
    reached = loss(workload, strategy, participation, kind)
    for other in others:
        value = loss(workload, other, participation, kind)
        if value < (1 - SAME) * reached:
            strategy, reached, gradient = other, value, None
    found = Optimized(strategy, reached, None, None, evaluations, 0.0, gradient=gradient)
    # a bound of the class that meets the loss cannot be exceeded by one of every class
    if bound is None or bound.value < (1 - 1e-9) * reached:
        general = lower_bound(*asked)
        if general is not None and (bound is None or general.value > bound.value):
            bound = general
    return replace(found, seconds=time.perf_counter() - started).against(bound)

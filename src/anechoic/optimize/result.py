"""What an optimiser returns: the strategy, its loss, how far that is from the best, and what it cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

from anechoic.losses import LossKind, loss
from anechoic.lower_bounds import Bound, lower_bound
from anechoic.participation import Participation
from anechoic.strategies import Strategy
from anechoic.workloads import Workload


@dataclass(frozen=True)
class Optimized:
    """An optimised strategy.

    Attributes:
        strategy: C.
        loss: sensitivity times error of this very strategy, root scale, recomputed after the optimisation.
        lower_bound: no strategy of the class `bound_covers` has a smaller loss; None
            where no bound is known.
        gap: loss / lower_bound - 1, or None. It bounds how much another strategy of that class could gain.
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


def finish(
    strategy: Strategy,
    workload: Workload,
    participation: Participation,
    kind: LossKind,
    *,
    evaluations: int,
    started: float,
    bound: Bound | None = None,
    gradient: float | None = None,
) -> Optimized:
    """The record of an optimisation that began at `started` (time.perf_counter) and ended in `strategy`.

    `bound` is the certificate of the optimiser itself; a larger one known for every strategy replaces it.
    """
    reached = loss(workload, strategy, participation, kind)
    # a bound of the class that meets the loss cannot be exceeded by one of every class
    if bound is None or bound.value < (1 - 1e-9) * reached:
        general = lower_bound(workload, participation, kind)
        if general is not None and (bound is None or general.value > bound.value):
            bound = general
    seconds = time.perf_counter() - started
    if bound is None:
        return Optimized(strategy, reached, None, None, evaluations, seconds, gradient=gradient)
    gap = reached / bound.value - 1.0
    return Optimized(
        strategy, reached, bound.value, gap, evaluations, seconds, bound.theorem, bound.covers, gradient
    )

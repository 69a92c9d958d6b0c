"""What an optimiser returns: the strategy, its loss, how far that is from the best, and what it cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

from anechoic.losses import loss, prefix_sum_lower_bound
from anechoic.participation import Participation
from anechoic.strategies import Strategy
from anechoic.workloads import Workload


@dataclass(frozen=True)
class Optimized:
    """An optimised strategy.

    Attributes:
        strategy: C.
        loss: sensitivity times error of this very strategy, root scale, recomputed after the optimisation.
        lower_bound: no strategy of any class has a smaller loss, by the theorem in `bound_name`; None
            where no bound is known.
        gap: loss / lower_bound - 1, or None. It bounds how much any other strategy could gain.
        evaluations: how often the loss and its gradient were computed.
        seconds: wall-clock time of the call.
        bound_name: where `lower_bound` comes from, or None.
    """

    strategy: Strategy
    loss: float
    lower_bound: float | None
    gap: float | None
    evaluations: int
    seconds: float
    bound_name: str | None = None


def finish(
    strategy: Strategy,
    workload: Workload,
    participation: Participation,
    kind: str,
    *,
    evaluations: int,
    started: float,
) -> Optimized:
    """The record of an optimisation that began at `started` (time.perf_counter) and ended in `strategy`."""
    reached = loss(workload, strategy, participation, kind)
    bound = name = None
    if workload.is_prefix_sum and participation.max_participations_in(workload.n) == 1:
        bound = prefix_sum_lower_bound(workload.n)
        name = "nuclear norm of A_pre over n: every factorisation, RMS and max loss, one participation"
    return Optimized(
        strategy,
        reached,
        bound,
        None if bound is None else reached / bound - 1.0,
        evaluations,
        time.perf_counter() - started,
        name,
    )

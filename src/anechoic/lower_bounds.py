"""What no mechanism can beat: lower bounds of the loss, each with its theorem and the class it covers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anechoic._validate import positive_int
from anechoic.losses import LossKind
from anechoic.participation import Participation
from anechoic.workloads import Workload


@dataclass(frozen=True)
class Bound:
    """A proven lower bound of the loss.

    Attributes:
        value: no strategy of the class has a smaller loss; root scale.
        theorem: what proves it.
        covers: the class of strategies, such as "every factorisation".
    """

    value: float
    theorem: str
    covers: str


def lower_bound(workload: Workload, participation: Participation, kind: LossKind) -> Bound | None:
    """The best bound that is cheap at this n, or None where none is known."""
    if workload.is_prefix_sum and participation.max_participations_in(workload.n) == 1:
        if isinstance(kind, str) and kind in ("rms", "max"):
            value = prefix_sum_lower_bound(workload.n)
            return Bound(value, "nuclear norm of A_pre over n", "every factorisation")
    return None


def prefix_sum_lower_bound(n: int) -> float:
    """No strategy has a smaller RMS loss, hence max loss, for prefix sums and one participation.

    The nuclear norm of A_pre over n: ||A||_* <= ||B||_F ||C||_F for A = BC, and ||C||_F is at most
    sqrt(n) times the largest column norm. The singular values of A_pre are 1 / (2 sin((2t-1) pi / (4n+2))).

    Args:
        n: steps, >= 1. From 10**6 on, all but the first terms are summed by the Euler-Maclaurin formula.
            The result is rounded down by more than what it leaves out.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    n = positive_int("n", n)
    step = math.pi / (2 * n + 1)
    terms = n if n < 10**6 else 1000
    angles = (np.arange(terms) + 0.5) * step
    total = float((0.5 / np.sin(angles)).sum())
    if terms < n:
        first, last = terms * step, n * step
        integral = 0.5 * (math.log(math.tan(last / 2)) - math.log(math.tan(first / 2)))
        slope = 0.5 * (math.cos(first) / math.sin(first) ** 2 - math.cos(last) / math.sin(last) ** 2)
        # the next term of the midpoint rule is 7/5760 step^3 g''': below 1e-11 of the last one kept
        total += integral / step - slope * step / 24
    return total * (1 - 1e-12) / n

"""Losses between the RMS and the max loss: means of order p of the errors of the steps."""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import positive_float
from anechoic.losses.dispatch import error
from anechoic.losses.result import StepErrors
from anechoic.participation.base import Participation
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload


def lp_error(found: StepErrors, p: float) -> float:
    """(mean of e_t^p over the steps)^(1/p), e_t the error of step t: "rms" is p = 2, "max" is p = inf.

    It does not fall as p grows; so the RMS loss is at most the max loss (Lemma 2.24).

    Args:
        found: what `error` returned.
        p: order, > 0, inf for the largest error.

    Raises:
        ValueError: if p is out of range.
    """
    if _order(p) == math.inf:
        return found.max
    if p == 2:
        return found.rms
    shares = found.per_step / found.max  # powers of these cannot overflow
    return found.max * float(np.mean(shares**p) ** (1 / p))


def lp_loss(workload: Workload, strategy: Strategy, participation: Participation, p: float) -> float:
    """Sensitivity times `lp_error`: as `loss`, of which "rms" is p = 2 and "max" is p = inf.

    Args:
        workload: A.
        strategy: C, the same n.
        participation: which steps one privacy unit may touch.
        p: order, > 0 or inf.

    Raises:
        ValueError: if p is out of range, or where sensitivity or error refuse.

    Example:
        >>> from anechoic import strategies, workloads
        >>> from anechoic.participation import Single
        >>> A, C = workloads.prefix_sum(4), strategies.Identity(4)
        >>> [round(lp_loss(A, C, Single(), p), 3) for p in (1, 2, 4, float("inf"))]
        [1.537, 1.581, 1.655, 2.0]
    """
    _order(p)
    return lp_error(error(workload, strategy), p) * float(sensitivity(strategy, participation))


def expected_lp_norm(found: StepErrors, p: float) -> float:
    """(E ||x||_p^p)^(1/p) of the n errors x of a run with noise of std 1 and dimension 1.

    This is n^(1/p) times `lp_error` times (E |N(0, 1)|^p)^(1/p), where E |N(0, 1)|^p = 2^(p/2)
    Gamma((p + 1) / 2) / sqrt(pi).

    Args:
        found: what `error` returned.
        p: order, finite, > 0.

    Raises:
        ValueError: if p is out of range.

    References:
        Monograph, Section 5.7; Liu, Upadhyay and Zou, arXiv 2406.02140.
    """
    p = positive_float("p", p, remedy="The expectation of the largest error has no closed form.")
    moment = p / 2 * math.log(2) + math.lgamma((p + 1) / 2) - math.log(math.pi) / 2
    return lp_error(found, p) * math.exp((math.log(found.n) + moment) / p)


def _order(p: float) -> float:
    if p == math.inf:
        return math.inf
    return positive_float("p", p, remedy="Use float('inf') for the max loss.")

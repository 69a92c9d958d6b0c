"""One participation: the largest column norm."""

from __future__ import annotations

from anechoic.participation import Single
from anechoic.sensitivity import theorems
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy


def single(strategy: Strategy) -> Sensitivity:
    """sens(C, single) = max_j ||C[:, j]||_2, for C of any signs (monograph, Theorem 1.14)."""
    return Sensitivity(
        strategy.largest_column_norm(),
        True,
        "largest column norm (one participation)",
        theorems.ONE_PARTICIPATION,
    )


@sensitivity_of.register
def _(participation: Single, strategy: Strategy) -> Sensitivity:
    return single(strategy)

"""The sensitivity of a strategy: a theorem by schema and structure of C; classes may add bounds."""

from __future__ import annotations

from functools import singledispatch

from anechoic.errors import UnsupportedError
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy


def sensitivity(strategy: Strategy, participation: Participation = SINGLE) -> Sensitivity:
    """Compute $sens(C, Pi) = max ||C U||_F$ over patterns of Pi and U of rows of norm <= 1 there, else 0.

    Guarantee: the value is never below the supremum over patterns and over every dimension m
    (rows in R^m), up to float64 rounding; `exact` says whether it equals it. Zero-out adjacency:
    double it for replace-one.

    Args:
        strategy: C, with n steps.
        participation: Pi; its number of steps is the strategy's. `Single()` by default.

    Returns:
        Value in units of the clip norm, with `exact` and the `method` that gave it.

    Raises:
        ValueError: if an argument is of another kind, or C is scaled beyond the range of its squares.
        UnsupportedError: if no theorem covers the schema.

    Example:
        >>> from anechoic import participation, strategies
        >>> float(sensitivity(strategies.Identity(12), participation.MinSep(separation=4)))
        1.7320508075688772

    References:
        Monograph, Definition 3.13, Lemmas 3.15 and 3.16, Algorithm 3.2; arXiv 2306.08153, Algorithm 4.
    """
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy={strategy!r} must be a Strategy, such as strategies.Dense(array).")
    if not isinstance(participation, Participation):
        raise ValueError(f"participation={participation!r} must be a Participation, such as Single().")
    return sensitivity_of(participation, strategy)


@singledispatch
def sensitivity_of(participation: Participation, strategy: Strategy) -> Sensitivity:
    """Return sens(C, Pi) of a `strategy` by the theorem registered for its `participation`; yours may too.

    Raises:
        UnsupportedError: for a schema that has registered none.
    """
    raise UnsupportedError(
        f"participation={participation!r}: no theorem here covers {type(participation).__name__}. Bound it by"
        " one of Single, Cyclic, MinSep, OncePerEpoch, FullBatch or Patterns that allows all of its patterns,"
        " or register its sensitivity with `extend.sensitivity_of.register`."
    )

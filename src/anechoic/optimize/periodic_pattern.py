"""Periodic pattern of steps that is a schema's worst one, for optimisers."""

from __future__ import annotations

from functools import singledispatch

from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, Patterns
from anechoic.participation.base import Participation


def periodic_pattern(participation: Participation, n: int) -> tuple[int, int]:
    """Separation b and count k of the pattern 0, b, …, (k - 1) b, the worst one for what is optimised here.

    It is the worst one for Toeplitz C whose coefficients do not increase (Lemma 3.16 c), and for banded
    Toeplitz C of any signs with at most b bands, whose columns b apart are orthogonal (Lemma 3.16 b).

    Raises:
        UnsupportedError: if no such comb is known for the schema.
    """
    if not isinstance(participation, Participation):
        raise ValueError(f"participation={participation!r} must be a Participation, such as Single().")
    count = participation.max_participations_in(n)
    if count == 1 and len(participation.touched(n)) == n:
        return n, 1
    return pattern_of_several(participation, n, count)


@singledispatch
def pattern_of_several(participation: Participation, n: int, count: int) -> tuple[int, int]:
    """`periodic_pattern` a schema that lets a unit take part `count` times in n steps."""
    raise UnsupportedError(
        f"participation={participation!r}: optimisers know Single, Cyclic, MinSep and FullBatch. Optimise for"
        " Single() over one epoch and restart the strategy, or for MinSep(1, the number of epochs)."
    )


@pattern_of_several.register(Cyclic)
@pattern_of_several.register(FullBatch)
def _(participation: Cyclic | FullBatch, n: int, count: int) -> tuple[int, int]:
    return participation.contained_period(n), count


@pattern_of_several.register
def _(participation: MinSep, n: int, count: int) -> tuple[int, int]:
    return participation.separation, count


@pattern_of_several.register
def _(participation: Patterns, n: int, count: int) -> tuple[int, int]:
    raise UnsupportedError(
        f"participation={participation!r}: no comb is the worst of listed patterns. Optimise for a"
        " schema that allows all of them, such as MinSep."
    )

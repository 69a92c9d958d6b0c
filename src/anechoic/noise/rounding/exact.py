"""Rounding of one coordinate in exact arithmetic: rational numbers, and fresh variates as enclosures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from anechoic.errors import GuaranteeError

#: (step, coordinate, bits) -> (low, exponent): the variate lies in [low, low + 1] 2**-exponent.
Enclosure = Callable[[int, int, int], tuple[int, int]]

FIRST_BITS, MOST_BITS = 96, 2**14


def nearest(value: Fraction) -> int:
    """floor(value + 1/2): the nearest integer, and the upper one of two.

    Unlike rounding half to even it commutes with adding integers, which is what the proof needs.
    """
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def nearest_of(
    known: Fraction, terms: Iterable[tuple[int, Fraction]], coordinate: int, enclosure: Enclosure
) -> int:
    """`nearest` of known + sum of factor * z[step, coordinate] over the (step, factor) of `terms`.

    The enclosures are narrowed until both ends are rounded alike. They have no end: a variate on a
    half-integer has probability zero, and below one in 2**16000 to be mistaken for one.

    Raises:
        GuaranteeError: if they do not become narrow, which means that they are no enclosures.
    """
    terms, bits = list(terms), FIRST_BITS
    while bits <= MOST_BITS:
        low = high = known
        for step, factor in terms:
            left, exponent = enclosure(step, coordinate, bits)
            ends = (factor * Fraction(left, 2**exponent), factor * Fraction(left + 1, 2**exponent))
            low, high = low + min(ends), high + max(ends)
        if nearest(low) == nearest(high):
            return nearest(low)
        bits *= 2
    raise GuaranteeError(
        f"coordinate {coordinate} cannot be rounded: enclosures of its fresh noise by {MOST_BITS} bits still"
        " reach over a half-integer. The generator behind them is broken; use another version."
    )

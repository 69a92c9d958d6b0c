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


def nearest_between(
    low: Fraction,
    high: Fraction,
    terms: Iterable[tuple[int, Fraction]],
    coordinate: int,
    enclosure: Enclosure,
    *,
    bits: int = FIRST_BITS,
) -> int | None:
    """`nearest_of` for all that is known between low and high, if it is one number, else None."""
    for step, factor in terms:
        left, exponent = enclosure(step, coordinate, bits)
        ends = (factor * Fraction(left, 2**exponent), factor * Fraction(left + 1, 2**exponent))
        low, high = low + min(ends), high + max(ends)
    return nearest(low) if nearest(low) == nearest(high) else None


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
        found = nearest_between(known, known, terms, coordinate, enclosure, bits=bits)
        if found is not None:
            return found
        bits *= 2
    raise GuaranteeError(
        f"coordinate {coordinate} cannot be rounded: enclosures of its fresh noise by {MOST_BITS} bits still"
        " reach over a half-integer. The generator behind them is broken; use another version."
    )

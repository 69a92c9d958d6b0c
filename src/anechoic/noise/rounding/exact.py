"""Rounding of one coordinate in exact arithmetic: rational numbers, and fresh variates as enclosures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
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


#: Binary digits of the long integers: what they leave out, times the largest memory, is far below a cell.
DIGITS = 256


class Weights:
    """Factors w_i of rows of memory; the long forms are made where an entry asks for them.

    Args:
        slots: the rows, ascending.
        floats: each within 3 u of w_i, relatively (u = 2**-53), in that order; none is zero.
        ratios: called for their numerators and denominators > 0, in that order.
    """

    def __init__(
        self, slots: NDArray[np.intp], floats: Array, ratios: Callable[[], tuple[list[int], list[int]]]
    ) -> None:
        self.slots, self.floats, self._ratios = slots, floats, ratios

    @classmethod
    def of(cls, weights: Mapping[int, Fraction]) -> Weights:
        """Rational numbers by row of memory."""
        ordered = [weights[i] for i in sorted(weights)]
        ratios = [w.numerator for w in ordered], [w.denominator for w in ordered]
        return cls(np.array(sorted(weights), np.intp), np.array([float(w) for w in ordered]), lambda: ratios)

    @cached_property
    def digits(self) -> list[int]:
        """floor(w_i 2**DIGITS)."""
        return [(a << DIGITS) // b for a, b in zip(*self._ratios(), strict=True)]

    @cached_property
    def exact(self) -> list[Fraction]:
        """The numbers themselves."""
        return list(map(Fraction, *self._ratios()))


def enclosed(weights: Weights, memory: Array) -> tuple[Fraction, Fraction] | None:
    """(low, high) around the linear combination of one column of the memory; None for one of no integers."""
    column = memory[weights.slots]
    if (column != np.rint(column)).any():
        return None
    values = [int(value) for value in column.tolist()]
    total = sum(map(int.__mul__, weights.digits, values))
    below = sum(value for value in values if value < 0)
    above = sum(value for value in values if value > 0)
    return Fraction(total + below, 2**DIGITS), Fraction(total + above, 2**DIGITS)


def combined(weights: Weights, memory: Array) -> Fraction:
    """The linear combination of one column of the memory, exactly: float64 numbers are rational ones."""
    below = lcm(*(w.denominator for w in weights.exact))
    total: int | Fraction = 0
    for weight, value in zip(weights.exact, memory[weights.slots].tolist(), strict=True):
        numerator = weight.numerator * (below // weight.denominator)
        total += numerator * (int(value) if value.is_integer() else Fraction(value))
    return Fraction(total) / below

"""The factors of the rows of memory in one step: as floats, as long integers, and as rational numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array

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

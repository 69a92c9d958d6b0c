"""The factors of the rows of memory in one step: as floats, as long integers, and as rational numbers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array

#: Binary digits of the long integers: what they leave out, times the largest memory, is far below a cell.
DIGITS = 256


class Weights(Protocol):
    """Factors w_i of rows of memory, zero ones left out."""

    @property
    def slots(self) -> NDArray[np.intp]:
        """The rows, ascending."""

    @property
    def floats(self) -> Array:
        """Each within 3 u of w_i, relatively (u = 2**-53), in the order of the slots."""

    @property
    def digits(self) -> list[int]:
        """floor(w_i 2**DIGITS), in that order."""

    @property
    def exact(self) -> list[Fraction]:
        """The numbers themselves, in that order."""


class Listed:
    """Weights that are rational numbers already.

    Args:
        weights: by row of memory.
    """

    def __init__(self, weights: Mapping[int, Fraction]) -> None:
        self._weights = weights
        self.slots = np.array(sorted(weights), np.intp)

    @cached_property
    def exact(self) -> list[Fraction]:
        return [self._weights[i] for i in self.slots.tolist()]

    @cached_property
    def floats(self) -> Array:
        return np.array([float(w) for w in self.exact])

    @cached_property
    def digits(self) -> list[int]:
        return [(w.numerator << DIGITS) // w.denominator for w in self.exact]


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

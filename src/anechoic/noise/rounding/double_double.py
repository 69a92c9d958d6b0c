"""Pairs of float64 that stand for their exact sum: 106 bits, by IEEE additions and multiplications alone.

Each operation is one of NumPy, rounded once and never fused, so the bits are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from anechoic._validate import Array

Pair = tuple[Array, Array]
Constant = tuple[float, float]

#: Relative error of one product or sum of pairs, with room: the literature has 5 and 3 times 2**-106.
ERROR = 2.0**-102
SPLITTER = 2.0**27 + 1.0
ONE: Constant = (1.0, 0.0)


def constant(value: Fraction) -> Constant:
    """The pair nearest to `value`, to a relative error of 2**-106."""
    high = float(value)
    return high, float(value - Fraction(high))


def times(pair: Pair, factor: Constant) -> Pair:
    """pair * factor (Joldes, Muller and Popescu 2017, Algorithm 10)."""
    high, low = pair
    product = high * factor[0]
    error = _product_error(high, factor[0], product)
    error += high * factor[1]
    error += low * factor[0]
    return _ordered_sum(product, error)


def plus(one: Pair, other: Pair) -> Pair:
    """one + other (the same paper, Algorithm 6), without cancellation of their low parts."""
    high, error = _sum(one[0], other[0])
    low, rest = _sum(one[1], other[1])
    high, error = _ordered_sum(high, error + low)
    return _ordered_sum(high, error + rest)


def plus_plain(pair: Pair, values: Array) -> Pair:
    """pair + values, of plain float64 values (the same paper, Algorithm 4)."""
    high, error = _sum(pair[0], values)
    return _ordered_sum(high, error + pair[1])


def scaled(values: Array, factor: Constant) -> Pair:
    """values * factor, of plain float64 values."""
    product = values * factor[0]
    error = _product_error(values, factor[0], product)
    error += values * factor[1]
    return _ordered_sum(product, error)


def combined(values: Array, factor: Constant, terms: Sequence[tuple[Sequence[Array], Constant]]) -> Pair:
    """values * factor + the sum of pair * factor over the terms, from left to right."""
    products = [(row[0], row[1]) if a == ONE else times((row[0], row[1]), a) for row, a in terms]
    if factor == ONE and len(products) == 1:  # the same numbers
        return plus_plain(products[0], values)
    total = scaled(values, factor)
    for product in products:
        total = plus(total, product)
    return total


def _sum(a: Array, b: Array) -> Pair:
    total = a + b
    part = total - a
    error = a - (total - part)
    error += b - part
    return total, error


def _ordered_sum(a: Array, b: Array) -> Pair:
    total = a + b
    return total, b - (total - a)


def _product_error(a: Array, b: float, product: Array) -> Array:
    """a * b - product, exactly, by Veltkamp's splitting."""
    a_high = a * SPLITTER
    a_high -= a_high - a
    a_low = a - a_high
    b_high = b * SPLITTER
    b_high = b_high - (b_high - b)
    b_low = b - b_high
    error: Array = a_high * b_high
    error -= product
    error += a_high * b_low
    error += a_low * b_high
    error += a_low * b_low
    return error

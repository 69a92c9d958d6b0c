"""Ziggurat: the Gaussian curve as 2,045 rectangles of mass 2**-11 each, and what is left, in pieces.

Let f(x) = exp(-x**2 / 2) and c = sqrt(2 pi) / 2**12. Rectangle j lies under f, over [-W_j, W_j], and is
c / W_j high, so that each has the same mass 2**-11 of the normal law, whatever the width. They are stacked
from the axis up, each as wide as fits:

    S_j = c / W_0 + … + c / W_j <= f(W_j),     W_0 > W_1 > … > W_2044 > 0.

A uniform index below 2,045 and a uniform point in its rectangle are then a part of the normal law, exactly.
The rest has density f(x) - S(x), S(x) being the height of the stack at x, and exactly the mass 3 * 2**-11
that three more indices stand for: for those it is sampled by rejection (`anechoic.noise.gaussian`).

The rest is cut at the widths. Piece j of 1 … 2044 is W_j <= |x| <= W_(j-1), piece 2045 is |x| <= W_2044, and
piece 0 the tail |x| >= W_0, in steps of length 1/4 of which step k is proposed with probability
2**-(k+1). Widths are multiples of 2**-50 (the first of 2**-47), so that all ends and lengths are exact in
float64. They come from decimal arithmetic of 50 digits and are the same on every machine.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

INDEX_BITS = 11
RECTANGLES = 2045
GRID_BITS = 50  # widths are multiples of 2**-50,
TAIL_GRID_BITS = 47  # and the first so that a step of the tail can be added to it
PICK_BITS = 14  # pieces are proposed with multiples of the probability 2**-14
TAIL_STEP = 0.25
TAIL_STEPS = 64  # of which the last is proposed with probability 2**-64
_DIGITS = 50


@dataclass(frozen=True)
class Layers:
    """Rectangles and pieces; all numbers are exact in float64 but `heights`, which are rounded to nearest.

    Attributes:
        widths: W_j, shape (2045,), descending.
        steps: factor of the odd 54-bit integers that become variates, W_j * 2**-53; shape (2048,), NaN for
            the indices of the rest.
        starts, lengths: of the 2,046 pieces, in |x|; those of the first step where the piece is the tail.
        heights: S at each piece: 0 for the tail, then S_0, …, S_2044.
        picks: piece that each of 2**14 indices proposes.
        ceilings: what `lengths * (f(x) - heights)` is compared with, for each piece; never below it.
    """

    widths: NDArray[np.float64]
    steps: NDArray[np.float64]
    starts: NDArray[np.float64]
    lengths: NDArray[np.float64]
    heights: NDArray[np.float64]
    picks: NDArray[np.int64]
    ceilings: NDArray[np.float64]


@functools.cache
def layers() -> Layers:
    """The table, made once in a process (about a tenth of a second)."""
    widths, curve, stack = _rectangles()
    starts = np.array([widths[0], *widths[1:], 0.0])
    lengths = np.array([TAIL_STEP, *(a - b for a, b in zip(widths, [*widths[1:], 0.0], strict=True))])
    heights = np.array([0.0, *map(float, stack)])
    tops = np.array([float(curve[0]), *map(float, curve[1:]), 1.0])
    # in a piece the curve exceeds the stack most at its inner end; the tail's later steps are lower
    areas = lengths * (tops - heights)
    areas[0] *= 2
    shares = _shares(areas)
    unit = math.ldexp(math.ceil(math.ldexp(float((areas / shares).max()), 40)) + 1, -40)
    steps = np.full(2**INDEX_BITS, np.nan)
    steps[:RECTANGLES] = np.ldexp(widths, -53)
    picks = np.repeat(np.arange(len(areas)), shares)
    return Layers(
        np.array(widths), steps, starts, lengths, heights, picks, np.asarray(shares * unit, np.float64)
    )


def stack_height(piece: int, digits: int) -> Decimal:
    """S at a piece, to a relative 10**-digits."""
    return _stack(digits)[piece]


@functools.lru_cache(maxsize=8)
def _stack(digits: int) -> list[Decimal]:
    with localcontext(Context(prec=digits + 10)):
        factor = _factor(digits + 10)
        parts = (factor / Decimal(width) for width in layers().widths.tolist())
        return list(accumulate(parts, initial=Decimal(0)))


def _rectangles() -> tuple[list[float], list[Decimal], list[Decimal]]:
    """Widths, f there, and S there, from the widest rectangle on."""
    widths: list[float] = []
    curve: list[Decimal] = []
    stack: list[Decimal] = []
    with localcontext(Context(prec=_DIGITS)):
        factor, below, start = _factor(_DIGITS), Decimal(0), 4.38
        width, height = Decimal(0), Decimal(1)
        for j in range(RECTANGLES):
            bits = GRID_BITS if j else TAIL_GRID_BITS
            width, height = _widest(start, below, factor, bits, (width, height))
            widths.append(float(width))
            curve.append(height)
            below += factor / width
            stack.append(below)
            start = 2 * widths[-1] - widths[-2] if j > 1 else widths[-1]
    return widths, curve, stack


def _widest(
    start: float, below: Decimal, factor: Decimal, bits: int, last: tuple[Decimal, Decimal]
) -> tuple[Decimal, Decimal]:
    """The largest multiple W of 2**-bits with f(W) >= below + factor / W, near `start`; and f(W).

    From f at the `last` point: exponentials of what is small take a fraction of the time.
    """
    x, stack, mass = start, float(below), float(factor)
    for _ in range(8):  # Newton: what it finds need not be right, as it is checked with all digits
        curve = math.exp(-x * x / 2)
        x -= (curve - stack - mass / x) / (mass / (x * x) - x * curve)
    grid, width = Decimal(2) ** -bits, Decimal(math.ldexp(math.floor(math.ldexp(x, bits)), -bits))

    def moved(x: Decimal, curve: Decimal, to: Decimal) -> tuple[Decimal, Decimal]:
        return to, curve * ((x - to) * (x + to) / 2).exp()

    def fits(x: Decimal, curve: Decimal) -> bool:
        return curve >= below + factor / x

    # on the outside of the root the stack would rise above the curve
    found = moved(*last, width)
    while not fits(*found):
        found = moved(*found, found[0] - grid)
    while fits(*(beyond := moved(*found, found[0] + grid))):
        found = beyond
    return found


def _shares(areas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers >= 1 of sum 2**14, about proportional to the areas."""
    total = 2**PICK_BITS
    low, high = areas.sum() / total, areas.sum()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if np.ceil(areas / middle).sum() <= total else (middle, high)
    shares = np.ceil(areas / high).astype(np.int64)
    shares[0] += total - shares.sum()
    return np.asarray(shares)


def _factor(digits: int) -> Decimal:
    """c = sqrt(2 pi) / 2**(INDEX_BITS + 1)."""
    with localcontext(Context(prec=digits + 5)):
        return (2 * _pi(digits + 5)).sqrt() / Decimal(2 ** (INDEX_BITS + 1))


def _pi(digits: int) -> Decimal:
    """pi by Machin's formula, to a relative 10**-digits."""
    unit: int = 10 ** (digits + 10)

    def arctan_of_inverse(x: int) -> int:
        power = total = unit // x
        for k in range(1, 4 * digits + 40):
            power //= -x * x
            total += power // (2 * k + 1)
        return total

    with localcontext(Context(prec=digits, rounding=ROUND_CEILING)):
        return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) / Decimal(unit)

"""Grid of a float-safe release: contributions as integers, and back.

With `bits` bits the spacing is clip_norm * 2**-bits. A contribution is clipped, divided by the spacing and
rounded towards zero; sums of such integers are exact, so that they depend on no order of summation. The
proof, and what is left of the floating point, are in docs/proofs/noise.md#exact-rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import Array, positive_float, positive_int
from anechoic.errors import MismatchError

Integers = NDArray[np.int64]

#: Fewest and most bits. Above, integers of 32 bits could not hold one entry.
FEWEST, MOST = 2, 30
#: No contribution uses the last part of its clip norm: it pays for coefficients that are themselves rounded.
SPARE = 2.0**-24
#: Entries that are squared at once, and the part of a limit within which their sum is counted in integers.
_BLOCK, _NEAR = 2**15, 2.0**-30


def default_bits(dimension: int) -> int:
    """Bits at which less than 2**-15 of the clip norm is rounded off `dimension` entries.

    Rounding towards zero takes off less than one spacing an entry, so less than sqrt(dimension) * 2**-bits
    clip norms in 2-norm.
    """
    wanted = 15 + math.ceil(math.log2(positive_int("dimension", dimension)) / 2)
    return min(wanted, MOST)


def checked_bits(bits: int) -> int:
    """`bits` as an int from FEWEST to MOST.

    Raises:
        ValueError: otherwise.
    """
    bits = positive_int("grid_bits", bits, minimum=FEWEST, remedy="noise.grid.default_bits(m) is enough.")
    if bits > MOST:
        raise ValueError(
            f"grid_bits={bits} must be at most {MOST}, so that an entry fits into 32 bits:"
            " noise.grid.default_bits(m) is enough for m entries."
        )
    return bits


def spacing(clip_norm: float, bits: int) -> float:
    """clip_norm * 2**-bits, exactly.

    Raises:
        ValueError: if it is below the range of float64's normal numbers.
    """
    step = positive_float("clip_norm", clip_norm) * 2.0 ** -checked_bits(bits)
    if step < np.finfo(np.float64).tiny:
        raise ValueError(
            f"clip_norm={clip_norm!r} leaves no room for {bits} bits below it: scale the loss up, so that the"
            " clip norm is at least 1e-290."
        )
    return step


def largest_square(bits: int) -> int:
    """What the squares of one contribution's integers may add up to: ((1 - SPARE) 2**bits)**2 at most."""
    return int((4 ** checked_bits(bits)) * (1 - 2 * SPARE))


def to_grid(contribution: ArrayLike, clip_norm: float, bits: int, *, limit: float = 1.0) -> Integers:
    """One contribution, clipped to limit * clip_norm, in units of the spacing and rounded towards zero.

    Guarantee: the squares of the integers add up to at most `largest_square(bits)`, counted in integers; so
    their 2-norm is below 2**bits, whatever was given. A contribution with an entry that is not finite is
    zero.

    Args:
        contribution: all entries of one unit's contribution to one step, in any shape and real dtype.
        clip_norm: > 0.
        bits: see `checked_bits`.
        limit: which part of the clip norm it may use, in [0, 1].

    Returns:
        int64, in the same shape. They may be added up in any order: 2**33 of them fit at 30 bits.

    Raises:
        ValueError: for an argument out of range, or a contribution that is not real.

    Example:
        >>> to_grid([3.0, -4.0], clip_norm=1.0, bits=4).tolist()
        [9, -12]
    """
    spacing(clip_norm, bits)
    if not 0 <= limit <= 1:
        raise ValueError(f"limit={limit!r} must lie between 0 and 1.")
    given = np.asarray(contribution)
    if given.dtype.kind not in "fiub":
        raise ValueError(f"a contribution of dtype {given.dtype} is not an array of real numbers.")
    entries = given.astype(np.float64)
    nothing = np.zeros(entries.shape, np.int64)
    peak = float(np.abs(entries).max(initial=0.0))
    if peak == 0 or limit == 0 or not math.isfinite(peak):
        return nothing
    # one over the largest entry first, so that no square leaves the range of float64
    entries /= peak
    norm = math.sqrt(float(np.square(entries).sum()))
    # float64 takes off or adds less than 2**-53 an operation: SPARE is far more for every length below 2**28
    entries *= 2.0**bits * min(_ratio(peak, clip_norm), limit * (1 - 2 * SPARE) / norm)
    integers = entries.astype(np.int64)  # towards zero
    return integers if is_short(integers, bits) else nothing


def is_short(integers: NDArray[np.signedinteger[Any]], bits: int) -> bool:
    """Whether the squares add up to at most `largest_square(bits)`, decided as exactly as by `square_of`.

    In float64 first. An integer is rounded once on its way there; and n squares that are added up, in any
    order and fused or not, are off by at most n u / (1 - n u) of their sum (Higham, Accuracy and Stability of
    Numerical Algorithms, Section 3.1), with u = 2**-53: below 2**-36 in blocks of 2**15, for any array that
    there can be. Only a sum that lies within `_NEAR` of the limit is counted in integers.

    Args:
        integers: of any signed type, in any shape.
        bits: see `checked_bits`.
    """
    limit, flat = largest_square(bits), integers.reshape(-1)
    spare = np.empty(min(_BLOCK, len(flat)))
    found = 0.0
    for start in range(0, len(flat), _BLOCK):
        part = flat[start : start + _BLOCK]
        entries = spare[: len(part)]
        entries[:] = part
        found += float(entries @ entries)
    if abs(found - limit) > _NEAR * limit:
        return found < limit
    return square_of(flat.astype(np.int64), bits) <= limit


def square_of(integers: Integers, bits: int) -> int:
    """The exact sum of squares; where an entry alone is too large, some number above all limits."""
    # not np.abs: that of -2**63 is -2**63
    if int(integers.max(initial=0)) > 2**bits or int(integers.min(initial=0)) < -(2**bits):
        return int(4 ** (bits + 1))
    squares: Integers = np.square(integers.ravel())  # below 2**61 each
    # halves of 32 bits: neither sum can overflow below 2**31 entries
    low, high = squares & 0xFFFFFFFF, squares >> 32
    total: int = int(low.sum()) + (int(high.sum()) << 32)
    return total


@dataclass(frozen=True)
class Grid:
    """The integers of a mechanism: contributions on their way in, releases on their way out.

    Args:
        clip_norm: > 0.
        bits: see `checked_bits`.
        divisor: of every noisy sum, > 0.

    Example:
        >>> import anechoic as an
        >>> sampling = an.sampling.FixedOrder(examples=4, batch_size=2, steps=2)
        >>> identity = an.strategies.Identity(2)
        >>> mechanism = an.calibrate(identity, sampling=sampling, epsilon=1, delta=1e-6, grid_bits=20)
        >>> stream = mechanism.stream(3)
        >>> state = stream.init()
        >>> total = sum(mechanism.grid.to_grid(gradient) for gradient in ([3.0, 0.0, 4.0], [0.1, 0.2, 0.0]))
        >>> row, state = stream.next(state)
        >>> mechanism.grid.release(total, row).shape
        (3,)
    """

    clip_norm: float
    bits: int
    divisor: float

    def to_grid(self, contribution: ArrayLike, *, limit: float = 1.0) -> Integers:
        """See `to_grid`."""
        return to_grid(contribution, self.clip_norm, self.bits, limit=limit)

    def release(self, total: ArrayLike, row: ArrayLike) -> Array:
        """What the integers of `total` and `row` stand for, over the divisor.

        Args:
            total: sum of what `to_grid` returned for the units of the batch; zeros for an empty one.
            row: the step's row of noise, used for this release only.

        Returns:
            float64, in the shape of `row`.

        Raises:
            MismatchError: if something other than integers of one shape is given.
        """
        one, other = np.asarray(total), np.asarray(row)
        if one.dtype.kind not in "iu" or other.dtype.kind not in "iu" or one.shape != other.shape:
            raise MismatchError(
                f"total is {one.dtype} of shape {one.shape} and row {other.dtype} of shape {other.shape}:"
                " both must be integers in one shape, from to_grid() and stream()."
            )
        return np.asarray((one + other) * (spacing(self.clip_norm, self.bits) / self.divisor))


def float_excess(count: float) -> float:
    """By how much removing one of `count` contributions may exceed the clip norm where sums are floats.

    Added up in any order, fused or not, k products are off by at most k u / (1 - k u) times the sum of their
    sizes (Higham, Accuracy and Stability of Numerical Algorithms, Section 3.1), in every entry; so the sum of
    k vectors of norm at most 1 + clipping is off by k (1 + clipping) times that in 2-norm, with the
    contribution and without it.

    Args:
        count: k, contributions in the batch.

    Returns:
        In clip norms; infinity from 1 / u contributions on.
    """
    unit, clipping = 2.0**-24, 2.0**-20  # of float32; of the clip norm, what a clipped one may exceed it by
    if count * unit >= 1:
        return math.inf
    return clipping + 2 * count * (1 + clipping) * count * unit / (1 - count * unit)


def _ratio(peak: float, clip_norm: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float64(peak) / np.float64(clip_norm))

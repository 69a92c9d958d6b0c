"""Updates of clients as integers on a grid, whose norm is decided exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic.noise import grid
from anechoic.noise.grid import Integers, is_short


def to_grid(update: ArrayLike, *, clip_norm: float, grid_bits: int) -> Integers:
    """Clip an update in 2-norm over all its entries, to integers in units of clip_norm * 2**-grid_bits.

    Entries are rounded towards zero. An update with an entry that is not finite becomes zero.

    Guarantee: the squares of the integers add up to less than 4**grid_bits, counted in integers.

    Args:
        update: all entries of one client's update, floats of any size.
        clip_norm: > 0.
        grid_bits: from `Server.grid_bits`.

    Returns:
        int64, in the same shape.

    Raises:
        ValueError: for an argument out of range, or an update that is not real.

    Example:
        >>> to_grid([3.0, -4.0], clip_norm=1.0, grid_bits=4).tolist()
        [9, -12]
    """
    return grid.to_grid(update, clip_norm, grid_bits)


def fault_of_integers(given: Any, dimension: int, grid_bits: int) -> str | None:
    """Why something is no update on the grid, or None; its norm is decided exactly."""
    if type(given) is not np.ndarray:  # not of a subclass, whose comparisons may leave entries out
        return "no array"
    if given.dtype.kind != "i" or not given.dtype.isnative:
        return f"a vector of {given.dtype}, not of signed integers in this machine's byte order"
    if given.shape != (dimension,):
        return f"a vector of shape {given.shape}, not ({dimension},)"
    if not is_short(given, grid_bits):
        return "longer than the clip norm"
    return None

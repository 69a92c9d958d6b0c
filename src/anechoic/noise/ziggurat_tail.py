"""Sampler of the three indices in 2,048 that no rectangle of the ziggurat stands for.

Proposals are compared in float64. Where the comparison is closer than float64 and the exponential function
of any machine could be wrong, `anechoic.noise.exact_variate` decides: so every machine takes the same ones,
exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anechoic.noise.exact_variate import FurtherDraws, accepts, proposal
from anechoic.noise.ziggurat import PICK_BITS, TAIL_STEP, layers

# Bounds on the error of both sides of a comparison, at least 100 times what IEEE arithmetic and an
# exponential function within 4 units in the last place can bring.
_RELATIVE = 2.0**-42
_ABSOLUTE = 2.0**-52  # of a height that is known to 53 of its binary digits


def rest(details: FurtherDraws, coordinates: NDArray[np.int64]) -> NDArray[np.float64]:
    """The variates of coordinates whose index stands for the rest; a function of each coordinate alone."""
    values = np.empty(len(coordinates))
    left, attempt, together = np.arange(len(coordinates)), 1, details.at_once
    while len(left):
        found, taken = _tried(details, coordinates[left], range(attempt, attempt + together))
        values[left[taken]] = found[taken]
        left, attempt = left[~taken], attempt + together
    return values


def _tried(
    details: FurtherDraws, coordinates: NDArray[np.int64], attempts: range
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The first value accepted in these attempts, and whether there is one, for each coordinate."""
    words = details.proposals(coordinates, attempts[0], len(attempts))
    values, gap, margin = _proposals(words)
    accepted = gap > margin
    for row, column in np.argwhere(np.abs(gap) <= margin).tolist():
        address = int(coordinates[row]), attempts[column]
        accepted[row, column] = accepts(details, *address, proposal(words[row, column].tolist()))
    found, taken = values[:, -1], accepted[:, -1]
    for column in range(len(attempts) - 2, -1, -1):
        found = np.where(accepted[:, column], values[:, column], found)
        taken = taken | accepted[:, column]
    return found, taken


def _proposals(
    words: NDArray[np.uint64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Values, how far each lies below the curve, and bounds on the error of that."""
    table = layers()
    pick, place, height, steps = (words[..., i] for i in range(4))
    piece = table.picks[(pick & np.uint64(2**PICK_BITS - 1)).view(np.int64)]
    length, ceiling = table.lengths[piece], table.ceilings[piece]
    # 2 m + 1, the middle of a place m of 52 bits, is exact in float64, and so is the step that it is times
    x = (place >> np.uint64(11) | np.uint64(1)).astype(np.float64)
    x *= length
    x *= 2.0**-53
    x += table.starts[piece]
    drawn = (height >> np.uint64(11)).astype(np.float64)
    drawn *= ceiling
    drawn *= 2.0**-53

    refused = None
    tail = np.nonzero(piece == 0)
    if len(tail[0]):
        lowest = steps[tail] & -steps[tail]
        step = np.frexp(lowest.astype(np.float64))[1] - 1  # -1 where steps is 0: no such step
        x[tail] += TAIL_STEP * step
        length[tail] = np.ldexp(length[tail], step + 1)
        refused = tuple(place[step < 0] for place in tail)
    curve = np.exp(-0.5 * x * x)
    curve *= length
    below = length * table.heights[piece]
    gap = curve - below
    gap -= drawn
    curve += below
    curve *= _RELATIVE
    curve += _ABSOLUTE * ceiling
    if refused is not None:
        gap[refused] = -np.inf
    x *= 1.0 - 2.0 * (place & np.uint64(1)).astype(np.float64)
    return x, gap, curve

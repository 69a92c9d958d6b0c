"""Three ways to compute norms and sums of a linear layer's rows, and the choice of the cheapest.

With T positions, I inputs and O outputs, the gradient of a row is a' x, a matrix of O by I numbers:

* *products*: the norm from the products of positions, T by T, and the sum from the factors again;
* *entries*: the norm from the gradient, which is made, measured and dropped, and the sum from the factors
  again;
* *kept*: the gradient is made once, in the precision of its factors, and kept until it is summed.

So few positions want products, and thin matrices (adapters of low rank) entries. What is kept takes memory,
of which there is a budget.
"""

from __future__ import annotations

from enum import Enum

#: A product of two numbers in float64, one in float32 being 1 (`python benchmarks/ghost_ways.py` fits these).
DOUBLE = 2.0
#: The same in products of a' x in float64, whose factors stand the wrong way round for it.
ACROSS = 4.0
#: A number of a gradient that is made, written, measured, and read again: memory, not arithmetic.
ENTRY = 50.0
#: A product of positions: two numbers are read, multiplied and added up.
PAIR = 16.0


class NormStrategy(Enum):
    """Way in which norms and sums of rows are computed."""

    PRODUCTS = "products"
    ENTRIES = "entries"
    KEPT = "kept"


def cost(way: NormStrategy, positions: int, inputs: int, outputs: int) -> float:
    """Return the cost of norm and sum of a row, in products of float32.

    Args:
        positions, inputs, outputs: >= 1.
    """
    entries = inputs * outputs
    made = positions * entries
    if way is NormStrategy.KEPT:
        return made + ENTRY * entries
    if way is NormStrategy.ENTRIES:
        return (ACROSS + DOUBLE) * made + ENTRY * entries
    return positions**2 * (DOUBLE * (inputs + outputs) + PAIR) + DOUBLE * made


def cheapest(
    positions: int, inputs: int, outputs: int, among: tuple[NormStrategy, ...] = tuple(NormStrategy)
) -> NormStrategy:
    """Choose the way of least cost; of equal ones the first of `among`."""
    return min(among, key=lambda way: cost(way, positions, inputs, outputs))

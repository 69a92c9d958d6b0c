"""The smooth binary mechanism: tree aggregation on the leaves whose digits are balanced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from anechoic._serialize import serializable
from anechoic._validate import positive_int, steps_within
from anechoic.noise.recurrence import Recurrence, Stacked, StackStep
from anechoic.strategies.intervals import IntervalStrategy


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class SmoothBinary(IntervalStrategy):
    """Tree aggregation that skips the leaves in too many nodes, and the prefix sums of too many nodes.

    In a binary tree of height h the noise of the sum of all leaves before a leaf has one term for each 1
    among its h bits, and a leaf is in one node that is used for each of its 0s. So step t is put on the t-th
    leaf with floor(h / 2) ones, in ascending order; the others stay empty. Every prefix sum then has at most
    floor(h / 2) terms and every step is in at most ceil(h / 2) nodes: the max loss is sqrt(floor(h / 2)
    ceil(h / 2)), about half that of tree aggregation.

    Nodes without a step are left out: the original mechanism adds their noise, by which all its errors
    are equal to the largest one here. What remains is one node for each step, so that C is square. A stream
    keeps at most floor(h / 2) rows.

    Args:
        n: steps, >= 1.
        height: h, with binomial(h, floor(h / 2)) > n; None for the least such one. A mechanism cut short
            keeps the height that it was made for.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> SmoothBinary(5).to_dense()
        array([[1., 0., 0., 0., 0.],
               [0., 1., 0., 0., 0.],
               [1., 1., 1., 0., 0.],
               [0., 0., 0., 1., 0.],
               [0., 0., 0., 1., 1.]])

    References:
        Andersson and Pagh, A smooth binary mechanism for efficient private continual observation, NeurIPS
        2023; monograph, Section 2.12.
    """

    height: int | None = None

    def __post_init__(self) -> None:
        n = positive_int("n", self.n)
        least = 1
        while math.comb(least, least // 2) <= n:
            least += 1
        remedy = f"Fewer than binomial({least}, {least // 2}) leaves are balanced for n={n}."
        height = least if self.height is None else self.height
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "height", positive_int("height", height, minimum=least, remedy=remedy))

    @property
    def _bits(self) -> int:
        return cast("int", self.height)

    @cached_property
    def starts(self) -> NDArray[Any]:
        """Bit by bit: `zeros` leaves with what is above and a 0 here come before those with a 1 here.

        The highest bit at which leaf t + 1 is the first one with a 1 there is the one at which it differs
        from leaf t; the node with a 0 there ends with leaf t.
        """
        rank = self._stops()
        ones = np.full(self.n, self._bits // 2)
        widths = np.zeros(self.n, dtype=np.int64)
        for below in range(self._bits - 1, -1, -1):
            zeros = np.array([math.comb(below, k) for k in range(self._bits // 2 + 1)])[ones]
            one = (rank >= zeros) & (ones > 0)
            rank -= np.where(one, zeros, 0)
            first = one & (rank == 0) & (widths == 0)
            widths[first] = zeros[first]
            ones -= one
        return self._stops() - widths

    def recurrence(self) -> Recurrence:
        return Stacked(
            self.n,
            step=self._step,
            depth=self._depth,
            deepest=self._bits // 2,
            parameters=np.array([self._bits], dtype=np.float64),
            name="SmoothBinary",
            integral=True,
        )

    def truncate(self, steps: int) -> SmoothBinary:
        return SmoothBinary(steps_within(self.n, steps), self._bits)

    def describe(self) -> str:
        return f"SmoothBinary(n={self.n}, height={self.height})"

    def _depth(self, s: int) -> int:
        """Nodes, empty ones left out, that make up the leaves before leaf s."""
        ones, rank, found = self._bits // 2, s, 0
        for below in range(self._bits - 1, -1, -1):
            zeros = math.comb(below, ones)
            if ones and rank >= zeros:
                rank, ones, found = rank - zeros, ones - 1, found + (zeros > 0)
        return found

    def _step(self, s: int) -> StackStep:
        """The nodes that the new one replaces leave the stack, and it takes their place."""
        replaced = np.ones(self._depth(s) + 1 - self._depth(s + 1))
        return StackStep(1.0, -replaced, replaced[None], np.ones(1))

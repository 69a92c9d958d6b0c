"""Rounded rows of trees: a stack of sums, one for each open node with a finished child."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from anechoic.noise.filters.base import digest_of, horizon
from anechoic.noise.recurrence import Nested
from anechoic.noise.rounding import double_double
from anechoic.noise.rounding.base import Block, RowPlan, size
from anechoic.noise.rounding.decaying import check_memory, checked_drift
from anechoic.noise.rounding.weights import Listed
from anechoic.noise.rounding.windowed import gain


class RoundedNested:
    """The stack lies in the leading rows of the memory, outermost sum first.

    Without gains it holds sums of rounded rows, which are integers. With gains the rows are divided by theirs
    before they are added, and the memory holds pairs, the high part of sum i in row 2 i.
    """

    kind = "Nested, rounded"

    def __init__(self, recurrence: Nested, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        self.exact = recurrence.gains is None
        self._parts = 1 if recurrence.gains is None else 2
        self.rows = self._parts * recurrence.rows

    def used(self, t: int) -> int:
        tree = self._recurrence
        return self._parts * len(tree.open_heights(tree.local(t))) if self.rows else 0

    def plan(self, t: int) -> RowPlan:
        tree, parts = self._recurrence, self._parts
        s, k = tree.local(t), tree.branching
        row, height, opened = tree.row(s), tree.height(s), tree.open_heights(s)
        here = gain(tree, t)
        lead = Fraction(self._std) * here * Fraction(float(row[0]))
        if self.rows == 0 or height == 0:
            return RowPlan(lead, Listed({}), _nothing)
        weights: dict[int, Fraction] = {}
        for place, g in enumerate(opened):
            if row[1 + g]:
                weights |= {parts * place + part: Fraction(float(row[1 + g])) * here for part in range(parts)}
        finished = 0
        while finished < height and (s + 1) % k ** (finished + 1) == 0:
            finished += 1
        if finished == height:  # the whole tree: nothing of it is needed again
            return RowPlan(lead, Listed(weights), _nothing)
        # of the sums on the stack these are carried, and the one that the carry is added to, if there is one
        carried = finished + (finished in opened)
        places = range(len(opened) - carried, len(opened))
        return RowPlan(lead, Listed(weights), self._adder(len(opened) - carried, places, here))

    def _adder(self, target: int, places: range, here: Fraction) -> Callable[[Block], dict[int, float]]:
        inverse, std = double_double.constant(1 / here), self._std

        def add(block: Block) -> dict[int, float]:
            memory = block.memory
            total = block.rounded + memory[places.start : places.stop].sum(axis=0)  # integers
            memory[target] = total
            return {target: size(total)}

        def add_pairs(block: Block) -> dict[int, float]:
            memory, total = block.memory, double_double.scaled(block.rounded, inverse)
            for place in places:
                total = double_double.plus(total, (memory[2 * place], memory[2 * place + 1]))
            memory[2 * target], memory[2 * target + 1] = total
            check_memory(size(total[0]), std)
            return {2 * target: size(total[0]), 2 * target + 1: size(total[1])}

        return add if self._parts == 1 else add_pairs

    def drift(self, dimension: int) -> float:
        tree = self._recurrence
        if self._parts == 1 or not self.rows:
            return 0.0
        steps = horizon(tree)
        rows = [tree.row(s) for s in range(steps)]
        reach = max(float(np.abs(row[1:]).sum() / row[0]) for row in rows)
        # a sum of `steps` rows at most, each divided and added to sums of sums
        return checked_drift(2.0 * steps, reach, tree.n, dimension)

    def digest(self) -> str:
        tree = self._recurrence
        ends = [tree.branching**h - 1 for h in range(tree.height(0) + 1)]
        rows = [tree.row(s) for s in ends if s < horizon(tree)]
        shape = np.array([tree.branching, tree.horizon], dtype=np.float64)
        return digest_of(self.kind, tree, self._std, np.concatenate([shape, tree.row(0), *rows]))


def _nothing(block: Block) -> dict[int, float]:
    return {}

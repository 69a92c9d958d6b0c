"""The noise rows of a tree: a stack of sums, one for each open node with a finished child."""

from __future__ import annotations

import numpy as np

from anechoic.noise.arrays import MemoryColumns, Plan
from anechoic.noise.filters.base import checked_scale, digest_of, horizon, only_fresh
from anechoic.noise.recurrence import Nested


class NestedFilter:
    """The stack lies in the leading rows of the memory, outermost sum first; one row above it is for work.

    A step that finishes nodes takes their sums from the top of the stack, and adds them and its own row to
    the sum next to them, like a carry in counting. Sums are of rows before gain and std.
    """

    kind = "Nested"

    def __init__(self, recurrence: Nested, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.rows = recurrence.rows

    def used(self, t: int) -> int:
        return len(self._recurrence.open_heights(self._recurrence.local(t))) if self.rows else 0

    def plan(self, t: int) -> Plan:
        tree = self._recurrence
        s, k = tree.local(t), tree.branching
        row, height, open_heights = tree.row(s), tree.height(s), tree.open_heights(s)
        scale = self._std * tree.gain(t)
        lead = checked_scale(scale * row[0], t, self._precision)
        if self.rows == 0 or height == 0:
            return only_fresh(lead)
        top = len(open_heights)
        weights = np.append(row[1 + np.array(open_heights, dtype=np.int64)], 1.0)
        first = int(np.flatnonzero(weights)[0])
        finished = 0
        while finished < height and (s + 1) % k ** (finished + 1) == 0:
            finished += 1
        # of the sums on the stack these are carried, and the one that the carry is added to, if there is one
        carried = finished + (finished in open_heights)

        def plan(columns: MemoryColumns) -> None:
            memory, out = columns.memory, columns.row
            columns.draw(memory[top], float(row[0]))
            if finished == height:  # the whole tree: nothing of it is needed again
                columns.combine(scale * weights, memory[: top + 1], out)
                return
            if first < top:
                columns.combine(weights[first:], memory[first : top + 1], out)
                columns.assign(memory[top], out)
            if carried:
                columns.combine(np.ones(carried + 1), memory[top - carried : top + 1], out)
                columns.assign(memory[top - carried], out)
            columns.combine(np.array([scale]), memory[top : top + 1], out)

        return plan

    def digest(self) -> str:
        tree = self._recurrence
        ends = [tree.branching**h - 1 for h in range(tree.height(0) + 1)]
        rows = [tree.row(s) for s in ends if s < horizon(tree)]
        shape = np.array([tree.branching, tree.horizon], dtype=np.float64)
        return digest_of(self.kind, tree, self._std, np.concatenate([shape, tree.row(0), *rows]))

"""Filters over a state of mixed rows: buffered (BLT), state-space and nested (tree) recurrences."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from anechoic.noise.filters.base import Filter, only_fresh
from anechoic.noise.numpy_arrays import NumpyColumns, Plan
from anechoic.noise.recurrence import Buffered, Mixed, Nested, StateSpace

M = TypeVar("M", bound=Mixed)


class StatesFilter(Filter[M]):
    """Rows that are mixed: they lie in the leading rows of the memory, the bottom of a stack first."""

    def used(self, t: int) -> int:
        return self._recurrence.depth(self._recurrence.local(t)) if self.rows else 0


class BufferedFilter(StatesFilter[Buffered]):
    """d fading sums of the emitted rows, in units of the last one; the first step of a block sets them."""

    def plan(self, t: int) -> Plan:
        gain, first = self._recurrence.gain(t), not self._recurrence.local(t)
        lead = self.lead(self._std * gain, t)
        ratio = 1.0 if first else gain / self._recurrence.gain(t - 1)
        weights, decays = -ratio * self._recurrence.scale, ratio * self._recurrence.decay
        if not self.rows:
            return only_fresh(lead)

        def plan(columns: NumpyColumns) -> None:
            columns.draw(columns.row, lead)
            if first:
                columns.assign(columns.memory, columns.row)
            else:
                columns.feed_back(weights, decays)

        return plan


class StateSpaceFilter(StatesFilter[StateSpace]):
    """d mixed sums of the emitted rows, in units of the last one; the first step of a block sets them."""

    def plan(self, t: int) -> Plan:
        system = self._recurrence
        gain, first = system.gain(t), not system.local(t)
        lead = self.lead(self._std * gain / system.first, t)
        ratio = 0.0 if first else gain / system.gain(t - 1)
        weights, transition = -ratio / system.first * system.readout, ratio * system.transition
        if not self.rows:
            return only_fresh(lead)

        def plan(columns: NumpyColumns) -> None:
            columns.draw(columns.row, lead)
            if first:
                columns.assign(columns.memory, columns.row)  # before what was there is multiplied by zero
            columns.feed_state(weights, transition, system.input)

        return plan


class NestedFilter(StatesFilter[Nested]):
    """A stack of sums of rows before gain and std; one row above it is for work.

    A step that finishes nodes takes their sums from the top of the stack, and adds them and its own row to
    the sum next to them, like a carry in counting.
    """

    def plan(self, t: int) -> Plan:
        tree = self._recurrence
        step, carried = tree.step(tree.local(t)), tree.carried(tree.local(t))
        scale, top = self._std * tree.gain(t), len(step.readout)
        lead = self.lead(scale * step.lead, t)
        if not self.rows or (carried is None and not top):  # a tree of one step
            return only_fresh(lead)
        weights = np.append(step.readout, 1.0)
        first = int(np.flatnonzero(weights)[0])

        def plan(columns: NumpyColumns) -> None:
            memory, out = columns.memory, columns.row
            columns.draw(memory[top], step.lead)
            if carried is None:  # the whole tree: nothing of it is needed again
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

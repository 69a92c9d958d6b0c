"""Rounded rows over a state: buffered (BLT), state-space and nested (tree) recurrences.

Where all factors are integers and there are no gains, memory holds sums of rounded rows, which are integers.
Elsewhere it is no integer, so it is kept in split parts (fading sums) or in pairs.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

from anechoic._validate import Array
from anechoic.errors import GuaranteeError
from anechoic.noise.recurrence import Buffered, Mixed
from anechoic.noise.rounding import double_double
from anechoic.noise.rounding.base import PAD, Block, RoundedFilter, RowPlan, size
from anechoic.noise.rounding.double_double import Constant
from anechoic.noise.rounding.drift import check_memory, checked_drift
from anechoic.noise.rounding.exact import Weights
from anechoic.noise.rounding.split_sums import drift_of, split_sums

M = TypeVar("M", bound=Mixed)


class RoundedStates(RoundedFilter[M]):
    """The rows lie in the leading rows of the memory, the bottom of a stack first.

    Of pairs, the parts of a row follow each other on a stack; where there are always as many rows, all high
    parts come first.
    """

    def __init__(self, recurrence: M, std: float, dimension: int = 1) -> None:
        super().__init__(recurrence, std, dimension)
        self.exact = recurrence.integral and recurrence.gains is None
        self._parts = 1 if self.exact else 2
        self.rows = self._parts * recurrence.rows if recurrence.horizon > 1 else 0

    def used(self, t: int) -> int:
        return self._parts * self._recurrence.depth(self._recurrence.local(t)) if self.rows else 0

    def plan(self, t: int) -> RowPlan:
        return self._usual if self._constant(t) else self._plan(t)

    def drift(self) -> float:
        return 0.0 if self.exact or not self.rows else checked_drift(self._recurrence, self._dimension)

    def _constant(self, t: int) -> bool:
        """Whether row t is made as all rows but the first ones after a restart."""
        system = self._recurrence
        return system.steady and system.gains is None and system.local(t) > 0

    @cached_property
    def _usual(self) -> RowPlan:
        return self._plan(1)

    def _places(self, row: int) -> list[int]:
        """Where the parts of a row lie, the high one first."""
        if self._recurrence.steady:
            return [row, row + self._recurrence.rows]
        return [self._parts * row + part for part in range(self._parts)]

    def _plan(self, t: int) -> RowPlan:
        system = self._recurrence
        s, gain = system.local(t), self.gain(t)
        step, top = system.step(s), system.depth(s)
        scale = read = gain / Fraction(step.divisor)
        ratio = moved = Fraction(1)  # from the units of memory before, and of the row, to those after
        if system.steady:  # in units of rows as they were emitted
            before = self.gain(t - 1) if s else gain
            read, ratio = scale / before, gain / before
        elif system.gains is not None:  # of rows without their gains
            moved = 1 / gain
        weights: dict[int, Fraction] = {}
        for row, factor in enumerate(step.readout.tolist(), start=top - len(step.readout)):
            if factor:
                weights |= dict.fromkeys(self._places(row), Fraction(factor) * read)
        made, first = [], top - step.mix.shape[1]
        rows = zip(step.entry.tolist(), step.mix.tolist(), strict=True)
        for row, (entry, mix) in enumerate(rows, start=first):
            terms = [(self._places(k), _times(a, ratio)) for k, a in enumerate(mix, start=first) if a]
            made.append((self._places(row), _times(entry, moved), terms))
        if self.exact and any(
            low or not high.is_integer() for _, a, terms in made for high, low in (a, *(b for _, b in terms))
        ):
            raise GuaranteeError("a recurrence that is said to be integral has factors that are not.")
        std = self._std * float(scale if system.steady else 1)

        def remember(block: Block) -> dict[int, float]:
            memory, sizes = block.memory, {}
            add = _integers if self.exact else double_double.combined
            rows = [
                (places, add(block.rounded, entry, [([memory[k] for k in at], a) for at, a in terms]))
                for places, entry, terms in made
            ]
            for places, parts in rows:
                for place, part in zip(places, parts, strict=True):
                    memory[place], sizes[place] = part, size(part)
                if not self.exact:
                    check_memory(sizes[places[0]], std)
            return sizes

        lead = Fraction(self._std) * scale * Fraction(step.lead)
        return RowPlan(lead, Weights.of(weights), remember if self.rows else lambda block: {})


class RoundedBuffered(RoundedStates[Buffered]):
    """Fading sums: in split parts where these fit, else in pairs, which drift less.

    Attributes:
        sums: of split parts; None for pairs.
    """

    def __init__(self, recurrence: Buffered, std: float, dimension: int = 1) -> None:
        super().__init__(recurrence, std, dimension)
        self.sums = None if self.exact else split_sums(recurrence, std, dimension)

    def is_steady(self, t: int) -> bool:
        """Whether row t and all later ones are made alike, of split parts."""
        return self.sums is not None and self._recurrence.period is None and self._constant(t)

    def drift(self) -> float:
        if self.sums is None:
            return super().drift()
        return drift_of(self._recurrence, self.sums, self._std, self._dimension)

    def measure(self, memory: Any) -> None:
        """Write down the sizes of rows of split parts."""
        sums, width = self.sums or (), memory.shape[1] - PAD
        for k, part in enumerate(sums):
            memory[k, width:] = size(memory[k, :width])
            memory[len(sums) + k, width:] = part.unit

    def _plan(self, t: int) -> RowPlan:
        plan = super()._plan(t)
        if self.sums is None:
            return plan
        sums, first = self.sums, self._recurrence.local(t) == 0

        def remember(block: Block) -> dict[int, float]:
            sizes: dict[int, float] = {}
            for k, part in enumerate(sums):
                high, low = block.memory[k], block.memory[len(sums) + k]
                if first:
                    part.begin(high, low, block.rounded)
                else:
                    part.feed(high, low, block.rounded, block.own)
                sizes[k], sizes[len(sums) + k] = size(high), part.unit
                part.check(max(sizes[k], block.largest))
            return sizes

        return replace(plan, remember=remember)


def _times(factor: float, ratio: Fraction) -> Constant:
    return (factor, 0.0) if ratio == 1 else double_double.constant(Fraction(factor) * ratio)


def _integers(values: Array, factor: Constant, terms: list[tuple[list[Array], Constant]]) -> list[Array]:
    """factor * values + the linear combination of the terms, all of integers."""
    total = values if factor[0] == 1 else values * factor[0]
    for (row,), (a, _) in terms:
        total = total + (row if a == 1 else row * a)
    return [total]

"""Privacy units that own several examples: who owns what, and what one of them may add to a step.

    units = Units(user_of_example)          # or one list of owners per example
    units.count, units.largest              # how many there are; examples of the largest
    batch = units.grouped(units.of(0))      # rows, the item of each row, the largest norm of each item

A batch is summed up in *items*. The examples that a unit owns alone are one item, and an example with several
owners is an item of its own. Let n_u count the items of unit u. The own item of u is clipped to 1 / n_u of
the clip norm, and a shared example to 1 / max n_u over its owners, so all items of one unit together move a
sum by at most the clip norm. Who owns what must be fixed and public where an example has several owners: the
neighbouring data set has u's examples replaced by ones without a gradient, and the same owners (zero-out).
This is the fixed-graph adjacency of Ganesh et al., "It's My Data Too: Private ML for Datasets with Multi-User
Training Examples" (arXiv 2503.03622).
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import one_of, positive_int
from anechoic.participation.min_sep import MinSep
from anechoic.units.batch import Indices, UnitBatch
from anechoic.units.labels import ownership

Combine = Literal["sum", "mean"]


class Units:
    """Which unit owns which example, and how a unit's examples become one contribution.

    Units are numbered 0, 1, … by first appearance in the data. Nothing in here is secret except the
    ownership itself, of which only a digest is written to checkpoints.

    Args:
        unit_ids: one label an example, shape (N,): integers, strings or other hashable labels that are
            compared by value, all of one kind; or one list of labels an example, shape (N, …), for examples
            with several owners. Arrays, torch tensors and their scalars are taken for their values.
        combine: "sum" adds the gradients of a unit's examples before they are clipped, "mean" averages them.
        max_examples: most examples of one unit in one step, >= 1, drawn anew for each step; None for all.

    Raises:
        ValueError: for labels that are missing (None, NaN, masked, "" and "nan"), of the wrong shape, of
            mixed kinds (1 and "1"), not hashable, or compared by identity.
        AttributeError: on changing an attribute.
    """

    examples: int
    count: int
    combine: Combine
    max_examples: int | None
    _offsets: Indices
    _owners: Indices

    def __init__(self, unit_ids: Any, *, combine: Combine = "sum", max_examples: int | None = None) -> None:
        offsets, owners, count = ownership(unit_ids)
        self.__dict__.update(
            _offsets=_fixed(offsets),
            _owners=_fixed(owners),
            count=count,
            examples=len(offsets) - 1,
            combine=one_of("combine", combine, ("sum", "mean")),
            max_examples=None if max_examples is None else positive_int("max_examples", max_examples),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        # the limits of a run rest on these: changed between two steps, a unit could move a sum by more
        raise AttributeError(f"{name} of Units cannot be changed: make new Units, for another run.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of Units cannot be deleted.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for value in state.values():
            for array in value if isinstance(value, tuple) else (value,):
                if isinstance(array, np.ndarray):
                    _fixed(array)

    # -- ownership -----------------------------------------------------------------------------

    @property
    def owners(self) -> tuple[Indices, Indices]:
        """(offsets, units): example i is owned by units[offsets[i] : offsets[i + 1]], ascending."""
        return self._offsets, self._owners

    @cached_property
    def owner_counts(self) -> Indices:
        """Number of owners of each example, shape (N,), >= 1."""
        return _fixed(np.diff(self._offsets))

    @cached_property
    def sizes(self) -> Indices:
        """Examples that each unit owns, alone or not, shape (count,)."""
        return _fixed(np.bincount(self._owners, minlength=self.count))

    @property
    def largest(self) -> int:
        """Examples of the unit that owns most."""
        return int(self.sizes.max())

    @cached_property
    def largest_own(self) -> int:
        """Examples of the unit that owns most alone."""
        alone = np.repeat(self.owner_counts == 1, self.owner_counts)
        return int(np.bincount(self._owners[alone], minlength=1).max())

    @cached_property
    def shared(self) -> int:
        """Examples with several owners."""
        return int((self.owner_counts > 1).sum())

    @property
    def single_examples(self) -> bool:
        """Whether every unit owns one example, and every example has one owner."""
        return self.largest == 1 and not self.shared

    def of(self, unit: int) -> Indices:
        """Indices of the examples of one unit, ascending."""
        if not 0 <= unit < self.count:
            raise ValueError(f"unit={unit} must lie between 0 and count - 1 = {self.count - 1}.")
        starts, owned = self._owned
        return owned[starts[unit] : starts[unit + 1]]

    @cached_property
    def _owned(self) -> tuple[Indices, Indices]:
        """(starts, examples): unit u owns examples[starts[u] : starts[u + 1]], ascending."""
        rows = np.repeat(np.arange(self.examples), self.owner_counts)
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        return _fixed(starts), _fixed(rows[np.argsort(self._owners, kind="stable")])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of who owns what, `combine` and `max_examples`; labels count only by which are equal."""
        found = hashlib.sha256(f"{self.examples} {self.combine} {self.max_examples} ".encode())
        for array in self.owners:
            found.update(array.astype("<i8").tobytes())
        return found.hexdigest()

    def describe(self) -> str:
        """One line: how many units, how many examples each, how they are combined."""
        most = "" if self.max_examples is None else f", at most {self.max_examples} of them in one step"
        shared = f"; {self.shared} examples have several owners" if self.shared else ""
        return (
            f"{self.count} units own {self.examples} examples, {int(self.sizes.min())} to {self.largest}"
            f" each, combined by {self.combine}{most}{shared}"
        )

    def __repr__(self) -> str:
        return f"Units({self.describe()})"

    # -- batches -------------------------------------------------------------------------------

    def drawn(self, units: Indices, draws: NDArray[np.uint64], counts: Indices | None = None) -> UnitBatch:
        """The batch in which the given units take part with their examples.

        A shared example takes part where all its owners do, and all of them keep it under `max_examples`.

        Args:
            units: distinct unit indices.
            draws: random numbers that decide what a unit keeps, one for each of the `incidences(units)`.
            counts: n_u of every unit, shape (count,), where it may not depend on who was drawn (see
                `static_counts`); None counts the items in the batch.
        """
        starts, owned = self._owned
        at = _ranges(starts[units], self.sizes[units])
        examples = owned[at]
        keep = self._kept(np.repeat(np.arange(len(units)), self.sizes[units]), draws)
        examples = examples[keep]
        times = np.bincount(examples, minlength=self.examples) if self.shared else None
        if times is not None:
            whole = times[examples] == self.owner_counts[examples]
            _, first = np.unique(examples, return_index=True)
            once = np.zeros(len(examples), dtype=bool)
            once[first] = True
            examples = examples[whole & once]
        return self._itemised(examples, counts)

    def grouped(self, examples: Indices, draws: NDArray[np.uint64] | None = None) -> UnitBatch:
        """A batch that somebody else formed of distinct examples, in their order.

        Args:
            examples: indices.
            draws: random numbers that decide what is left out under `max_examples`, one for each pair of an
                example and an owner; None leaves nothing out.
        """
        examples = np.asarray(examples, dtype=np.int64)
        if draws is not None and self.max_examples is not None:
            owners = self._owners[_ranges(self._offsets[examples], self.owner_counts[examples])]
            rows = np.repeat(np.arange(len(examples)), self.owner_counts[examples])
            kept = np.bincount(rows[self._kept(owners, draws)], minlength=len(examples))
            examples = examples[kept == self.owner_counts[examples]]
        return self._itemised(examples, None)

    def incidences(self, units: Indices) -> int:
        """Examples of the given units, a shared one counted once for each owner."""
        return int(self.sizes[units].sum())

    def pairs(self, examples: Indices) -> int:
        """Pairs of one of the examples and one of its owners."""
        return int(self.owner_counts[examples].sum())

    def owners_of(self, examples: Indices) -> Indices:
        """The units that own at least one of the examples, ascending."""
        return np.unique(self._owners[_ranges(self._offsets[examples], self.owner_counts[examples])])

    def reachable(self, cells: Indices | None) -> NDArray[np.bool_]:
        """Which examples can take part where units do so by cells: those with all owners in one cell.

        Args:
            cells: cell of each unit, shape (count,), -1 for a unit that never takes part; None where any two
                units may take part together.
        """
        if cells is None:
            return np.ones(self.examples, dtype=bool)
        cell = cells[self._owners]
        least = np.minimum.reduceat(cell, self._offsets[:-1])
        most = np.maximum.reduceat(cell, self._offsets[:-1])
        return np.asarray((least == most) & (least >= 0))

    def static_counts(self, cells: Indices | None = None) -> Indices:
        """n_u over the whole data set, shape (count,), >= 1: the most items that unit u can ever bring.

        Under secret sampling what v adds must not depend on whether u was drawn, or v's part of the sum
        would tell. So n_v counts every example that v shares, whoever is drawn.

        Args:
            cells: see `reachable`; only cells that may be known (groups, not bins).
        """
        joint = (self.owner_counts > 1) & self.reachable(cells)
        pairs = np.repeat(joint, self.owner_counts)
        found = np.bincount(self._owners[pairs], minlength=self.count)
        alone = np.repeat(self.owner_counts == 1, self.owner_counts)
        found += np.bincount(self._owners[alone], minlength=self.count) > 0
        most = self.max_examples
        return np.asarray(np.maximum(1, found if most is None else np.minimum(found, most)))

    def _kept(self, groups: Indices, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which members of each group are among its `max_examples` with the smallest draws."""
        if self.max_examples is None:
            return np.ones(len(groups), dtype=bool)
        order = np.lexsort((draws, groups))
        ordered = groups[order]
        first = np.searchsorted(ordered, ordered, side="left")
        keep = np.empty(len(groups), dtype=bool)
        keep[order] = np.arange(len(groups)) - first < self.max_examples
        return keep

    def _itemised(self, examples: Indices, counts: Indices | None) -> UnitBatch:
        alone = self.owner_counts[examples] == 1
        # an item is named by its unit, or by count + example where it is shared
        names = np.where(alone, self._owners[self._offsets[examples]], self.count + examples)
        found, first, inverse = np.unique(names, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(found), dtype=np.int64)
        rank[order] = np.arange(len(found))
        items, found = rank[inverse], found[order]
        own = found < self.count
        shared = found[~own] - self.count
        counted = np.repeat(np.arange(len(shared)), self.owner_counts[shared])
        owners = self._owners[_ranges(self._offsets[shared], self.owner_counts[shared])]
        if counts is None:
            counts = np.bincount(owners, minlength=self.count)
            counts[found[own]] += 1
        most = np.ones(len(found), dtype=np.int64)
        most[own] = counts[found[own]]
        largest = np.zeros(len(shared), dtype=np.int64)
        np.maximum.at(largest, counted, counts[owners])
        most[~own] = largest
        limits = 1.0 / most
        sizes = np.bincount(items, minlength=len(found))
        scales = limits / sizes if self.combine == "mean" else np.ones(len(found))
        return UnitBatch(examples, items, limits, scales)


def bounded_batches(
    units: Units, batch_size: int, participation: MinSep, *, steps: int, order: Indices | None = None
) -> list[list[int]]:
    """Form batches in which each owner has at most one example, and keeps to `participation`.

    With several owners an example is shared, at a part of the clip norm (`Units`), or chosen, as here: used
    with its whole norm or not at all. The choice follows from who owns what alone, which must be fixed and
    public (Ganesh et al., arXiv 2503.03622, Algorithm 4, with a separation and without sampling).

    Greedy: examples come in `order`, again and again. Each goes into the earliest batch with room that all
    its owners may take part in, and is left out where there is none.

    Args:
        units: who owns which example.
        batch_size: most examples of a batch, >= 1; some batches may hold fewer, or none.
        participation: how often an owner may take part (None: as often as fits), and how far apart.
        steps: batches, >= 1.
        order: indices of examples, which must not depend on what they hold; None for that of the data.

    Returns:
        Indices for `DataLoader(batch_sampler=…)`, with `participation=` and `unit_ids=units` for the engine.

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> from anechoic.participation import MinSep
        >>> from anechoic.units import Units, bounded_batches
        >>> mails = Units([["ann", "bob"], ["bob"], ["cat"], ["ann", "cat"]])
        >>> bounded_batches(mails, 2, MinSep(2, 1), steps=2)
        [[0, 2], []]
    """
    batch_size, steps = positive_int("batch_size", batch_size), positive_int("steps", steps)
    most, apart = participation.max_participations or steps, participation.separation
    offsets, owners = (array.tolist() for array in units.owners)
    used, free = [0] * units.count, [0] * units.count  # participations, and the first step that is open
    batches: list[list[int]] = [[] for _ in range(steps)]
    room = list(range(steps + 1))  # step -> the next one with room, by steps in between
    rest = [positive_int("order", i, minimum=0) for i in (range(units.examples) if order is None else order)]
    if max(rest, default=0) >= units.examples:
        raise ValueError(f"order={max(rest)} must be below N={units.examples}: it holds indices of examples.")
    while rest:
        again = []
        for example in rest:
            mine = owners[offsets[example] : offsets[example + 1]]
            if any(used[unit] >= most for unit in mine):
                continue
            step = _found(room, max(free[unit] for unit in mine))
            if step == steps:
                continue
            batches[step].append(example)
            again.append(example)
            if len(batches[step]) == batch_size:
                room[step] = step + 1
            for unit in mine:
                used[unit], free[unit] = used[unit] + 1, step + apart
        rest = again  # what could not be used is never possible later: steps only fill
    return batches


def _found(room: list[int], step: int) -> int:
    """Return the first step with room from `step` on, and shorten the way there."""
    step = end = min(step, len(room) - 1)
    while room[end] != end:
        end = room[end]
    while room[step] != end and step != end:
        room[step], step = end, room[step]
    return end


def _fixed(array: Indices) -> Indices:
    array.setflags(write=False)
    return array


def _ranges(starts: Indices, sizes: Indices) -> Indices:
    """starts[0], …, starts[0] + sizes[0] - 1, starts[1], … in one array."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - sizes), sizes))

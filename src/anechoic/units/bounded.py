"""Contribution bounding: choose examples into batches such that no owner takes part too often, or too soon.

With several owners an example is either shared, at a part of the clip norm each (`Units`), or chosen: here it
is used with its whole norm, or not at all. Who owns what must be fixed and public, as the choice follows from
it alone (Ganesh et al., arXiv 2503.03622, Algorithm 4, with a separation and without sampling).
"""

from __future__ import annotations

from anechoic._validate import positive_int
from anechoic.participation import MinSep
from anechoic.units.batch import Indices
from anechoic.units.ownership import Units


def bounded_batches(
    units: Units, batch_size: int, participation: MinSep, *, steps: int, order: Indices | None = None
) -> list[list[int]]:
    """Form batches in which each owner has at most one example, and keeps to `participation`.

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
    rest = range(units.examples) if order is None else [int(i) for i in order]
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

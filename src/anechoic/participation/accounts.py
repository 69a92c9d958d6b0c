"""Accounts of units: how often each took part and when last, hence who may again.

Streams, federated servers and checks of batches ask this file and no other. What becomes of a unit follows
from its own steps alone, so that one unit changes nothing about the contributions of another.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import UnsupportedError
from anechoic.participation.base import Participation
from anechoic.participation.cyclic import Cyclic
from anechoic.participation.epochs import OncePerEpoch
from anechoic.participation.full_batch import FullBatch
from anechoic.participation.min_sep import MinSep
from anechoic.participation.single import Single

Integers = NDArray[np.int64]

#: The step at which a unit may take part that never may again; and the distance of two steps that are one.
NEVER = 2**62


@singledispatch
def first_step(participation: Participation, step: Integers, last: Integers, count: Integers) -> Integers:
    """Return the first step from `step` on at which old units may take part again; `NEVER` or more for none.

    Args:
        participation: what they are held to; a schema registers its rule here, if these numbers decide.
        step: not before `last`; it may be changed in place.
        last: latest step in which a unit took part, >= 0.
        count: steps in which it took part, >= 1.

    Raises:
        UnsupportedError: for a schema whose rule needs more.
    """
    raise UnsupportedError(
        f"participation={participation!r}: who may take part again does not follow from how often a unit did,"
        " and when last. Take MinSep(separation, max_participations), which allows every pattern it has."
    )


@first_step.register
def _(participation: Single, step: Integers, last: Integers, count: Integers) -> Integers:
    return np.full_like(step, NEVER)


@first_step.register
def _(participation: FullBatch, step: Integers, last: Integers, count: Integers) -> Integers:
    return step


@first_step.register
def _(participation: MinSep, step: Integers, last: Integers, count: Integers) -> Integers:
    found = last + min(participation.separation, NEVER)
    if participation.max_participations is not None:
        found[count >= participation.max_participations] = NEVER
    return np.maximum(found, step, out=found)


@first_step.register
def _(participation: Cyclic, step: Integers, last: Integers, count: Integers) -> Integers:
    return step + (last - step) % min(participation.period, NEVER)


@first_step.register
def _(participation: OncePerEpoch, step: Integers, last: Integers, count: Integers) -> Integers:
    period = min(participation.period, NEVER)
    return np.maximum(step, (last // period + 1) * period)


class Accounts:
    """What units did so far, as arrays of one entry each; ids are mapped to their rows by the caller.

    A unit that took part in a step may do so again in the same one: that is one participation.

    Args:
        participation: what the units are held to.
        units: how many there are.

    Attributes:
        count: steps in which each took part.
        last: the latest of them, -1 for none.
        nearest: fewest steps between two of them, `NEVER` where there are no two.

    Raises:
        UnsupportedError: for a schema of which `first_step` has no rule.
    """

    def __init__(self, participation: Participation, units: int = 0) -> None:
        self.participation = participation
        self.count = np.zeros(units, np.int64)
        self.last = np.full(units, -1, np.int64)
        self.nearest = np.full(units, NEVER, np.int64)
        self.may(0, np.zeros(0, np.int64))

    def first(self, step: int | Integers, rows: Integers) -> Integers:
        """The first step from `step` on at which each of the units may; `NEVER` or more for none."""
        last, count = self.last[rows], self.count[rows]
        found = first_step(self.participation, np.maximum(step, last), last, count)
        np.copyto(found, step, where=(count == 0) | (last == step))
        return found

    def may(self, step: int, rows: Integers) -> NDArray[np.bool_]:
        """Which of the units may take part in `step`."""
        return np.asarray(self.first(step, rows) == step)

    def admit(self, step: int, rows: Integers) -> NDArray[np.bool_]:
        """`may`, and note that these take part in `step`; a row may stand there several times."""
        held = self.may(step, rows)
        new = rows[held]
        new = new[self.last[new] != step]
        before = self.last[new]
        self.nearest[new] = np.minimum(self.nearest[new], np.where(before < 0, NEVER, step - before))
        self.last[new] = step
        self.count[new] += 1
        return held

    def grow(self, units: int) -> None:
        """Make room for so many units in all; those that come take part in no step yet."""
        if units > len(self.last):
            more = Accounts(self.participation, max(units - len(self.last), len(self.last)))
            self.count = np.concatenate([self.count, more.count])
            self.last = np.concatenate([self.last, more.last])
            self.nearest = np.concatenate([self.nearest, more.nearest])


class _Histories(Accounts):
    """Of a schema whose rule needs all steps of a unit: it is asked once about units that have the same."""

    def __init__(self, participation: Participation, units: int, n: int) -> None:
        self._n, self._steps, self._kind = n, [set[int]()], np.zeros(units, np.int64)
        super().__init__(participation, units)

    def may(self, step: int, rows: Integers) -> NDArray[np.bool_]:
        kinds, of = np.unique(self._kind[rows], return_inverse=True)
        steps = [{*self._steps[kind], step} for kind in kinds]
        return np.array([self.participation.allows(s, self._n) for s in steps], bool)[of]

    def admit(self, step: int, rows: Integers) -> NDArray[np.bool_]:
        held = super().admit(step, rows)
        kinds, of = np.unique(self._kind[rows[held]], return_inverse=True)
        self._kind[rows[held]] = len(self._steps) + of
        self._steps += [{*self._steps[kind], step} for kind in kinds]
        return held


def accounts_of(participation: Participation, units: int, n: int) -> Accounts:
    """Accounts for n steps, under any schema: one without a rule in `first_step` is asked `allows`."""
    known = first_step.dispatch(type(participation)) is not first_step.dispatch(object)
    return Accounts(participation, units) if known else _Histories(participation, units, n)


def packed(*columns: Integers) -> list[bytes]:
    """The entries of each row as bytes, 8 each."""
    rows = np.stack(columns, axis=1).astype("<i8")
    return list(rows.view(f"V{8 * len(columns)}")[:, 0].tolist())


def unpacked(rows: Iterable[bytes], columns: int) -> Integers:
    """The columns again, shape (columns, rows)."""
    return np.array(np.frombuffer(b"".join(rows), "<i8").reshape(-1, columns).T, np.int64, order="C")

"""What filters share: their protocol, and the parts of a noise step."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np

from anechoic._validate import Array
from anechoic.errors import GuaranteeError
from anechoic.noise.arrays import MemoryColumns, Plan
from anechoic.noise.recurrence import (
    Autoregressive,
    MovingAverage,
    Recurrence,
)

MEMORY = ("store", "regenerate")


class Filter(Protocol):
    """One kind of recurrence over memory of `rows` rows, of which `used(t)` matter before step t."""

    kind: str
    rows: int

    def used(self, t: int) -> int:
        """The leading rows of the memory that hold the past of step t."""

    def plan(self, t: int) -> Plan:
        """What turns the memory of step t into row t and the memory of step t + 1, columns by columns."""

    def digest(self) -> str:
        """Hash of the coefficients, to tell streams of different strategies apart."""


def only_fresh(*weights: float) -> Plan:
    """Rows that need no memory."""

    def plan(columns: MemoryColumns) -> None:
        columns.draw(columns.row, *weights)

    return plan


def nothing(columns: MemoryColumns) -> None:
    """No work."""


def horizon(recurrence: Recurrence) -> int:
    """Steps after which the past is forgotten at the latest."""
    return recurrence.n if recurrence.period is None else min(recurrence.n, recurrence.period)


def all_rows(recurrence: Autoregressive | MovingAverage) -> Array:
    """Coefficients that tell this recurrence from every other of its kind, n and period."""
    last = horizon(recurrence) - 1
    if recurrence.stationary:
        return recurrence.row(last)
    return np.concatenate([recurrence.row(s) for s in range(last + 1)])


def past_gains(recurrence: Recurrence, t: int, count: int) -> Array:
    """Gains of rows t, t - 1, …, shape (count,)."""
    if recurrence.gains is None:
        return np.ones(count)
    return recurrence.gains[t - count + 1 : t + 1][::-1]


def checked_scale(scale: float, t: int, precision: str) -> float:
    """`scale` of the fresh row, if rows of that std can be written in their precision.

    Raises:
        GuaranteeError: otherwise: the row would carry no fresh noise, or be infinite.
    """
    limits = np.finfo(precision)
    if not float(limits.tiny) <= abs(scale) <= float(limits.max) / 100:
        raise GuaranteeError(
            f"row {t} needs fresh noise of std {scale!r}, beyond the range of {precision}: bring the std and "
            "the strategy's diagonal nearer to 1, or use dtype float64."
        )
    return float(scale)


def digest_of(kind: str, recurrence: Recurrence, std: float, coefficients: Array) -> str:
    gains = b"" if recurrence.gains is None else np.ascontiguousarray(recurrence.gains, "<f8").tobytes()
    rows = np.ascontiguousarray(coefficients, "<f8").tobytes()
    head = f"{kind} n={recurrence.n} period={recurrence.period} std={std!r} {len(gains)} {len(rows)} "
    return hashlib.sha256(head.encode() + gains + rows).hexdigest()

"""Base of the filters, and the parts of a noise step.

Emitted rows carry the noise std and the gain g_t of a column scaling. Both are folded into the coefficients:
memory that holds earlier emitted rows y = std * g * x enters step t with the factor g_t / g_{t-j}, so that no
row is passed over only to be scaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

from anechoic.errors import GuaranteeError
from anechoic.noise.numpy_arrays import NumpyColumns, Plan
from anechoic.noise.recurrence import Recurrence

R = TypeVar("R", bound=Recurrence)


class Filter(ABC, Generic[R]):
    """How one kind of recurrence is made, over memory of `rows` rows.

    Args:
        recurrence: of what is emitted.
        std: of one entry of the scaled fresh rows.
        precision: of the rows, "float32" or "float64".
    """

    def __init__(self, recurrence: R, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.kind = type(recurrence).__name__
        self.rows = recurrence.rows if recurrence.horizon > 1 else 0

    @abstractmethod
    def used(self, t: int) -> int:
        """The leading rows of the memory that hold the past of step t."""

    @abstractmethod
    def plan(self, t: int) -> Plan:
        """What turns the memory of step t into row t and the memory of step t + 1, columns by columns."""

    def digest(self) -> str:
        """Hash of the coefficients, to tell streams of different strategies apart."""
        return self._recurrence.digest(self.kind, self._std)

    def lead(self, scale: float, t: int) -> float:
        """`scale` of the fresh row, if rows of that std can be written in their precision.

        Raises:
            GuaranteeError: otherwise: the row would carry no fresh noise, or be infinite.
        """
        limits = np.finfo(self._precision)
        if not float(limits.tiny) <= abs(scale) <= float(limits.max) / 100:
            raise GuaranteeError(
                f"row {t} needs fresh noise of std {scale!r}, beyond the range of {self._precision}: bring"
                " the std and the strategy's diagonal nearer to 1, or use dtype float64."
            )
        return float(scale)


def only_fresh(*weights: float) -> Plan:
    """Rows that need no memory."""

    def plan(columns: NumpyColumns) -> None:
        columns.draw(columns.row, *weights)

    return plan

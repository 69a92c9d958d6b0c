"""A run that goes on from call to call: its noise belongs to one process and is never copied."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.linear.descent import Descent, FitRequest, Planned
from anechoic.linear.fitting import Problem, descent_of, sums_of
from anechoic.linear.keys import FitKeys
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation.accounts import accounts_of
from anechoic.runs.fork_guard import OwnProcess, Uncopyable
from anechoic.units.ids import content_of, digest_of, secret_of
from anechoic.units.ownership import Units


class OnlineRun(Uncopyable):
    """Steps under one mechanism, and who took part in them.

    Args:
        descent: on the weights.
        mechanism: of the run.
        secret: what digests of units are keyed with.
    """

    def __init__(self, descent: Descent, mechanism: Mechanism, secret: bytes) -> None:
        self.descent, self._mechanism, self._secret = descent, mechanism, secret
        self._owner = OwnProcess("run of partial_fit")
        self._numbers: dict[bytes, int] = {}
        self._accounts = accounts_of(mechanism.participation, 0, mechanism.steps)
        self._by_units: bool | None = None
        self._kind = b""  # of ids

    @classmethod
    def of(
        cls, asked: FitRequest, found: Planned, problem: Problem, outputs: int, keys: FitKeys
    ) -> OnlineRun:
        """At its first call."""
        descent = descent_of(asked, found, problem, outputs, keys)
        return cls(descent, found.mechanism, secret_of(keys.sampling))

    def step(self, problem: Problem, units: Units | None, unit_ids: Any) -> Array:
        """One release from the rows of a call; returns the weights.

        Raises:
            HorizonError: after the last step.
            GuaranteeError: in a fork, or from within another call.
            ValueError: if some calls have unit_ids and others not, or ids of another kind.
        """
        with self._owner.changing():
            if self._by_units not in (None, units is not None):
                raise ValueError("unit_ids were given in some calls of partial_fit and not in others.")
            self._by_units = units is not None
            sums = sums_of(self._mechanism, problem)
            if units is None:
                self.descent.step(sums.of_rows)
                return self.descent.weights
            places = np.flatnonzero(self._admitted(units, unit_ids))
            batch = units.grouped(places)
            self.descent.step(partial(sums.of_units, batch=batch))
            return self.descent.weights

    def _admitted(self, units: Units, unit_ids: Any) -> Any:
        """Which rows are of units that may take part in the next step; they are then noted."""
        if isinstance(unit_ids, Units) or units.shared:
            raise ValueError(
                "partial_fit knows units again by their labels: give one label a row, and rows of one owner."
            )
        labels = [label.item() if isinstance(label, np.generic) else label for label in np.asarray(unit_ids)]
        for kind in {content_of(label)[0] for label in labels}:
            if kind != (self._kind or kind):
                raise ValueError(
                    f"unit_ids are {kind.decode()}, and those of earlier calls {self._kind.decode()}: one"
                    " person would count as two. Give ids of one kind in all calls."
                )
            self._kind = kind
        digests = [digest_of(label, self._secret) for label in labels]
        rows = np.array([self._numbers.setdefault(one, len(self._numbers)) for one in digests], np.int64)
        self._accounts.grow(len(self._numbers))
        return self._accounts.admit(self.descent.steps, rows)

"""Round of clients: who was asked, what came back, and its result."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.federated.clients import ClientId
from anechoic.federated.flat_parameters import Layout
from anechoic.federated.grid import fault_of_integers, to_grid
from anechoic.noise.grid import Integers

_log = logging.getLogger(__name__)

Model = dict[str, np.ndarray[Any, Any]]

FOREIGN = "a client that was not asked"
DUPLICATE = "a second reply of one client"
ENOUGH = "more replies than the round asked for"
LATE = "late: the round is over"
OTHER_ROUND = "a reply to another round"
FAILED = "an error or nothing readable in place of an update"
UNREADABLE = "a reply that cannot be read"
NOT_THE_MODEL = "arrays that are not those of the model"
NOT_FINITE = "a number that is not finite"
NOT_ON_THE_GRID = "no update on the grid"


class OpenRound:
    """Open round: made by `Server.ask`, ended by `Server.close`.

    Attributes:
        step: row of noise that its release will use.
        attempt: rounds of this step before it, which were short.
        clients: ids of those that were asked.
        resumed: whether it is asked for again, after a restart or without having been closed.
        model: what they are to start from, by name; read-only.
        config: for the message, numbers and text: "step", "attempt", "clip_norm", "grid_bits", and
            "round", a name for this round and no other, which is to come back with the reply.
        answered: how many have replied so far, whatever they sent.
        reasons: of refusals so far.
        counted: clients whose updates are in the sum.
        total: that sum on the grid, int64; private.
        target: replies at which the round is full, and takes no more.
        present: clients that were heard of, whether they answered or not; a further attempt asks them first.

    One thread at a time adds to a round.
    """

    def __init__(
        self,
        step: int,
        attempt: int,
        clients: Iterable[ClientId],
        *,
        resumed: bool,
        model: Model,
        layout: Layout,
        clip_norm: float,
        grid_bits: int,
        name: str,
        target: int,
    ) -> None:
        self.step, self.attempt, self.resumed = step, attempt, resumed
        self.clients = tuple(clients)
        self.model = model
        for array in model.values():
            array.setflags(write=False)  # clients in one process would train on each other's weights
        self.config: dict[str, int | float | str] = {
            "step": step,
            "attempt": attempt,
            "clip_norm": clip_norm,
            "grid_bits": grid_bits,
            "round": name,
        }
        self.reasons: Counter[str] = Counter()
        self.counted = 0
        self.open, self.target = True, target
        self.present: set[ClientId] = set()
        self._layout, self._clip_norm, self._bits, self._name = layout, clip_norm, grid_bits, name
        self._waiting = set(self.clients)
        self.total: Integers = np.zeros(layout.dimension, np.int64)

    @property
    def answered(self) -> int:
        return len(self.clients) - len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether as many have answered as the sum is divided by: who was asked beyond that is not needed."""
        return self.answered >= self.target

    def add(self, client: Any, reply: Any, *, round: str | None = None) -> str | None:
        """Add the reply of a client, or return why not. Nothing that a client sends raises an error.

        A reply that is refused for what it holds counts as zero, and its client as one that answered: what
        was sent decides nothing but the sum.

        Args:
            client: id, as in `clients`.
            reply: the update as arrays by name, which are clipped and put on the grid here; or as the vector
                of `to_grid`, int64 or any narrower signed integers, whose norm is checked.
            round: the "round" of the config that came back with the reply, where the sender is not bound to
                a round otherwise.

        Returns:
            None, or the reason of the refusal.
        """
        refusal = self._claim(client, round)
        if refusal is not None:
            return self._noted(refusal)
        try:
            with np.errstate(all="ignore"):  # a caller's setting must not make contents an error
                refusal = self._take(reply)
        except Exception:  # whatever a client's object does when it is read, its client has answered
            refusal = self._noted(UNREADABLE)
        self.counted += refusal is None
        return refusal

    def _claim(self, client: Any, name: str | None) -> str | None:
        """Note that a client replies, if it may."""
        if not self.open:
            return LATE
        if name is not None and name != self._name:
            return OTHER_ROUND
        try:
            known = client in self._waiting
            replied = not known and client in self.clients
        except Exception:  # an id that cannot be compared is nobody's
            return FOREIGN
        if not known:
            return DUPLICATE if replied else FOREIGN
        if self.full:
            return ENOUGH
        self._waiting.discard(client)
        self.present.add(client)
        return None

    def _take(self, reply: Any) -> str | None:
        if reply is None:
            return self._noted(FAILED)
        if not isinstance(reply, Mapping):
            if type(reply) is np.ndarray and reply.shape == (self._layout.dimension,):
                reply = reply.copy()  # what is measured is what is added
            fault = fault_of_integers(reply, self._layout.dimension, self._bits)
            if fault is not None:
                return self._noted(NOT_ON_THE_GRID, fault)
            self.total += reply
            return None
        fault = self._layout.fault(reply)
        if fault is not None:
            return self._noted(NOT_THE_MODEL, fault)
        vector: Array = self._layout.flatten(reply)
        if not np.isfinite(vector).all():
            return self._noted(NOT_FINITE)
        self.total += to_grid(vector, clip_norm=self._clip_norm, grid_bits=self._bits)
        return None

    def _noted(self, kind: str, detail: str = "") -> str:
        """The reason of a refusal, counted by its kind: what a client makes up names no line of a report."""
        self.reasons[kind] += 1
        reason = f"{kind}: {detail}" if detail else kind
        _log.warning("step %d: a reply was refused: %s", self.step, reason)
        return reason


@dataclass(frozen=True, eq=False)
class RoundResult:
    """Result of a round.

    Attributes:
        released: whether a row of noise was used, and the model advanced.
        step: of the round.
        asked, answered: clients; who answered is not protected.
        counted: of those that answered, whose updates are in the sum as they came.
        reasons: of replies that were refused, with their number; for the operator, not for publication.
        update: the noisy mean, float64, shape (dimension,); None where nothing was released.
        model: what is to be sent next, by name.
    """

    released: bool
    step: int
    asked: int
    answered: int
    counted: int
    reasons: Counter[str]
    update: Array | None
    model: Model

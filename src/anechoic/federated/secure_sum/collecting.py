"""A stage of a round as the server sees it: whom it asks what, and what it takes for an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anechoic.federated.secure_sum import messages as wire
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Stage
from anechoic.federated.secure_sum.terms import Terms

Answer = TypeVar("Answer")


class Unrecoverable(Exception):
    """The shares that came do not give a secret that the sum needs; `seat` is whose."""

    def __init__(self, seat: int, what: str) -> None:
        super().__init__(what)
        self.seat = seat


@dataclass(frozen=True)
class SumOutcome:
    """How a round ended.

    Attributes:
        vector: the sum of the survivors' vectors, int64, shape (dimension,).
        survivors: their seats, ascending.
        wrong: (owner, holder) of shares that came and were not the ones committed to.
    """

    vector: NDArray[np.int64]
    survivors: tuple[int, ...]
    wrong: tuple[tuple[int, int], ...]


class Collecting(ABC, Generic[Answer]):
    """One stage: answers of the seats that are asked.

    Args:
        terms: of the round.
        asked: seats, ascending.
    """

    stage: Stage
    #: Set by the last stage when it is closed.
    outcome: SumOutcome | None = None

    def __init__(self, terms: Terms, asked: tuple[int, ...]) -> None:
        self.terms, self.asked = terms, asked
        self.answers: dict[int, Answer] = {}

    @abstractmethod
    def request(self, seat: int) -> Message:
        """What the client of a seat is sent."""

    @abstractmethod
    def read(self, seat: int, message: Mapping[str, Any]) -> Answer:
        """A client's answer, or a `Refusal`."""

    @abstractmethod
    def next(self) -> Collecting[Any] | None:
        """The stage after this one, for those who answered; raises `Unrecoverable`."""

    def receive(self, seat: int, message: Any) -> None:
        """Takes one answer of this stage, or raises a `Refusal` that leaves everything as it was."""
        stage = wire.stage_of(message)
        wire.check_round(message, self.terms.round_id)
        if stage is not self.stage:
            raise Refusal(
                Reason.STAGE, f"{stage.name.lower()} was sent where {self.stage.name.lower()} is open"
            )
        if seat not in self.asked:
            raise Refusal(Reason.STAGE, "the client has dropped out of this round")
        if seat in self.answers:
            raise Refusal(Reason.DUPLICATE, f"the stage {self.stage.name.lower()}")
        self.answers[seat] = self.read(seat, message)

    def enough(self, target: int | None) -> bool:
        """Whether the stage can be closed: `target` have answered, or all."""
        return len(self.answers) >= min(len(self.asked), target or len(self.asked))

    @property
    def answered(self) -> tuple[int, ...]:
        """Seats that answered, ascending."""
        return tuple(sorted(self.answers))

    def head(self) -> Message:
        """What every request of the stage begins with."""
        return wire.head(self.terms.round_id, self.stage)

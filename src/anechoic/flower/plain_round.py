"""One round in which the server sees every update."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict

from anechoic.federated.clients import ClientId
from anechoic.federated.round import Asked
from anechoic.flower.messages import Letters
from anechoic.flower.records import METRICS, TRAIN, vector_of


class PlainRound:
    """An open round, and the unprotected numbers that came back.

    Attributes:
        asked: of the server.
    """

    def __init__(self, asked: Asked, letters: Letters) -> None:
        self.asked = asked
        self._letters = letters
        self._metrics: dict[ClientId, dict[str, float]] = {}

    def messages(self) -> list[Message]:
        """To every client that was asked and is there."""
        return self._letters.write(self.asked.clients, TRAIN, model=True)

    def take(self, replies: Iterable[Message]) -> None:
        """Give each reply to the server, which refuses what it must, until it has enough of them."""
        for client, sent in self._letters.answered(replies, _read):
            vector, numbers = (None, {}) if sent is None else sent
            # no `round`: the message that it answers binds a reply to this round, whatever it says of itself
            if self.asked.add(client, vector) is None:
                self._metrics[client] = numbers
            if self.asked.full:
                return

    def mean_metrics(self, names: Collection[str]) -> MetricRecord | None:
        """Means over the clients that sent each of the numbers; None where nobody sent any."""
        means: dict[str, float] = {}
        for name in names:
            values = [found[name] for found in self._metrics.values() if name in found]
            if values:
                means[name] = sum(values) / len(values)
        return MetricRecord(means) if means else None  # type: ignore[arg-type]


def _read(content: RecordDict) -> tuple[Any, dict[str, float]]:
    """The update on the grid, and the unprotected numbers beside it."""
    return vector_of(content), _numbers(content)


def _numbers(content: RecordDict) -> dict[str, float]:
    record = content.get(METRICS)
    if not isinstance(record, MetricRecord):
        return {}
    found = {}
    for name, value in record.items():
        try:
            found[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):  # lists, and integers beyond every float
            continue
    return found

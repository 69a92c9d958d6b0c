"""One round in which the server sees every update."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from logging import getLogger
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from anechoic.federated.clients import ClientId
from anechoic.federated.round import Asked
from anechoic.flower.letters import Letters
from anechoic.flower.records import METRICS, TRAIN, UnreadableError, vector_of

_log = getLogger("flwr")

# Errors by which Flower says that a client did not answer. Every other one is what a client answered.
SILENT = frozenset(
    {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
)


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
        """Give each reply to the server, which refuses what it must; nothing that comes in raises."""
        for client, reply in self._letters.answered(replies):
            self._one(client, reply)

    def _one(self, client: ClientId, reply: Message) -> None:
        if reply.has_error():
            if reply.error.code in SILENT:
                _log.warning("a client did not answer (error %d)", reply.error.code)
            else:
                _log.debug("a client answered with error %d", reply.error.code)
                self.asked.add(client, None)  # which logs it
            return
        vector: Any = None
        try:
            vector = vector_of(reply.content)
        except UnreadableError as error:
            _log.warning("a reply was refused: %s", error)
        # no `round`: the message that it answers binds a reply to this round, whatever it says of itself
        if self.asked.add(client, vector) is None:
            self._metrics[client] = _numbers(reply.content)

    def mean_metrics(self, names: Collection[str]) -> MetricRecord | None:
        """Means over the clients that sent each of the numbers; None where nobody sent any."""
        means: dict[str, float] = {}
        for name in names:
            values = [found[name] for found in self._metrics.values() if name in found]
            if values:
                means[name] = sum(values) / len(values)
        return MetricRecord(means) if means else None  # type: ignore[arg-type]


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

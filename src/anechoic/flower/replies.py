"""One round's messages and what came back: whom a reply is from is decided by the message it answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from logging import getLogger
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from anechoic.federated.clients import ClientId
from anechoic.federated.round import Asked
from anechoic.flower.identity import Place
from anechoic.flower.records import METRICS, UnreadableError, vector_of

_log = getLogger("flwr")

# Errors by which Flower says that a client did not answer. Every other one is what a client answered.
_SILENT = {
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
}


class Round:
    """The open round, the messages sent for it, and the unprotected numbers that came back.

    Attributes:
        asked: of the server.
        messages: in the order in which they were made.
    """

    def __init__(self, asked: Asked, places: Mapping[ClientId, Place]) -> None:
        self.asked = asked
        self.messages: list[Message] = []
        self._places = places
        self._sent: list[tuple[ClientId, Message]] = []
        self._metrics: dict[ClientId, dict[str, float]] = {}

    def reached(self) -> Iterator[tuple[ClientId, Place]]:
        """Clients that were asked and are there. Who was asked before a restart may be gone since."""
        for client in self.asked.clients:
            if client in self._places:
                yield client, self._places[client]

    def send(self, client: ClientId, message: Message) -> None:
        """Note that this message goes to that client."""
        self._sent.append((client, message))
        self.messages.append(message)

    def take(self, replies: Iterable[Message]) -> None:
        """Give each reply to the server, which refuses what it must. Nothing that comes in raises an error."""
        # a message has its id only once it was pushed
        clients = {message.metadata.message_id: (client, message) for client, message in self._sent}
        for reply in replies:
            client, sent = clients.get(reply.metadata.reply_to_message_id, (None, None))
            if sent is None or client is None or reply.metadata.src_node_id != sent.metadata.dst_node_id:
                _unasked(reply)
            else:
                self._one(client, reply)

    def _one(self, client: ClientId, reply: Message) -> None:
        if reply.has_error():
            _log.warning("a client answered with error %d", reply.error.code)
            if reply.error.code in _SILENT:
                return
            self.asked.add(client, None)
            return
        content = reply.content
        try:
            vector: Any = vector_of(content)
        except UnreadableError as error:
            _log.warning("a reply was refused: %s", error)
            vector = None
        # no `round`: the message it answers binds a reply to this round, whatever it says of itself
        if self.asked.add(client, vector) is None:
            self._metrics[client] = _numbers(content)

    def mean_metrics(self, names: Collection[str]) -> MetricRecord | None:
        """Means over the clients that sent each of the numbers; None where nobody sent any."""
        means: dict[str, float] = {}
        for name in names:
            values = [found[name] for found in self._metrics.values() if name in found]
            if values:
                means[name] = sum(values) / len(values)
        return MetricRecord(means) if means else None


def _unasked(reply: Message) -> None:
    _log.warning(
        "a reply was refused: it answers no message of this round (late, of another run, or nobody's): round %r",
        reply.metadata.group_id,
    )


def _numbers(content: RecordDict) -> dict[str, float]:
    record = content.get(METRICS)
    if not isinstance(record, MetricRecord):
        return {}
    return {name: float(value) for name, value in record.items() if isinstance(value, int | float)}

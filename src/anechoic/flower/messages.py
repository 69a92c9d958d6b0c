"""The messages of one round, and which client a reply is from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from anechoic.federated.clients import ClientId
from anechoic.flower.exchange import SILENT, answer_in
from anechoic.flower.identity import Place
from anechoic.flower.records import ARRAYS, ASK, CONFIG

_log = getLogger("flwr")

Answer = TypeVar("Answer")


@dataclass
class Letters:
    """Writes to clients, and says whose reply is whose: by the message that it answers, never by its content.

    Attributes:
        server_round: as Flower counts, from 1.
        places: of the clients that are there.
        arrays: the model.
        config: for the training function, the same in every message.
        ask: for the mod, the same in every message of the round.
    """

    server_round: int
    places: Mapping[ClientId, Place]
    arrays: ArrayRecord
    config: Mapping[str, Any]
    ask: Mapping[str, Any]
    _sent: list[tuple[ClientId, Message]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.config = {**self.config, "server-round": self.server_round}

    def write(
        self,
        clients: Iterable[ClientId],
        stage: str,
        *,
        model: bool,
        more: Mapping[Any, RecordDict] | None = None,
    ) -> list[Message]:
        """A message to each of `clients` that is there; replies to earlier ones are not waited for any more.

        Args:
            clients: who was asked before a restart may be gone since.
            stage: of the mod.
            model: whether the message carries it, with the configuration.
            more: further records, by client.
        """
        reached = [(client, self.places[client]) for client in clients if client in self.places]
        self._sent = [
            (client, self._message(client, place, stage, model, (more or {}).get(client)))
            for client, place in reached
        ]
        return [message for _, message in self._sent]

    def _message(
        self, client: ClientId, place: Place, stage: str, model: bool, more: RecordDict | None
    ) -> Message:
        ask = ConfigRecord({**self.ask, "stage": stage, "shared": place.shared})
        config = ConfigRecord(dict(self.config))
        if place.shared:
            ask["user"] = config["user"] = client
        content = RecordDict({ARRAYS: self.arrays, CONFIG: config} if model else {})
        content[ASK] = ask
        content.update(more or {})
        return Message(content, place.node_id, MessageType.TRAIN, group_id=str(self.server_round))

    def answered(
        self, replies: Iterable[Message], read: Callable[[RecordDict], Answer]
    ) -> Iterator[tuple[ClientId, Answer | None]]:
        """(client, what it sent) for replies to the messages written last; others are logged and left out.

        Args:
            replies: whatever came.
            read: makes something of a reply's content. Where it raises, or the reply is an error, the client
                has answered with None.
        """
        # a message has its id only once it was pushed
        clients = {message.metadata.message_id: (client, message) for client, message in self._sent}
        for reply in replies:
            client, sent = clients.get(reply.metadata.reply_to_message_id, (None, None))
            if client is None or sent is None or reply.metadata.src_node_id != sent.metadata.dst_node_id:
                _log.warning(
                    "a reply was refused: it answers no message of this stage (late, or nobody's); round %r",
                    reply.metadata.group_id,
                )
            elif reply.has_error() and reply.error.code in SILENT:
                _log.warning("a client did not answer (error %d)", reply.error.code)
            else:
                yield client, answer_in(reply, read)

"""The messages of one round, and the way of its replies into the sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from anechoic.federated.clients import ClientId
from anechoic.federated.round import OpenRound
from anechoic.flower.exchange import SILENT, answer_in
from anechoic.flower.records import ARRAYS, ASK, CONFIG, TRAIN, record_of, vector_of

_log = getLogger("flwr")


#: Clients that are there, and their messages.
Sent = list[tuple[ClientId, Message]]


def messages_of(
    asked: OpenRound,
    places: Mapping[ClientId, int],
    server_round: int,
    config: Mapping[str, Any],
    ask: Mapping[str, Any],
) -> Sent:
    """Return a message for every client that was asked and is there.

    Args:
        asked: the round of the server.
        places: nodes at which clients are reached.
        config: for the training function.
        ask: for the mod, beside what `asked.config` says.
    """
    content = RecordDict(
        {
            ARRAYS: record_of(asked.model),
            CONFIG: ConfigRecord({**config, "server-round": server_round}),
            ASK: ConfigRecord({**asked.config, **ask, "stage": TRAIN}),
        }
    )
    # who was asked before a restart may be gone since
    return [
        (client, Message(content, places[client], MessageType.TRAIN, group_id=str(server_round)))
        for client in asked.clients
        if client in places
    ]


def add_replies(asked: OpenRound, sent: Sent, replies: Iterable[Message]) -> None:
    """Give each reply to the server, which refuses what it must, until it has enough of them.

    Whose reply it is follows from the message that it answers, never from its content.
    """
    # a message has its id only once it was pushed
    known = {message.metadata.message_id: (client, message) for client, message in sent}
    for reply in replies:
        client, message = known.get(reply.metadata.reply_to_message_id, (None, None))
        if message is None or reply.metadata.src_node_id != message.metadata.dst_node_id:
            _log.warning(
                "a reply was refused: it answers no message of this round (late, or nobody's); round %r",
                reply.metadata.group_id,
            )
        elif reply.has_error() and reply.error.code in SILENT:
            _log.warning("a client did not answer (error %d)", reply.error.code)
        else:
            # no `round`: the message binds a reply to this round, whatever it says of itself
            asked.add(client, answer_in(reply, vector_of))
        if asked.full:
            return

"""Who is behind a node: what the ledger remembers must last, and a node id does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from anechoic.federated.clients import ClientId, Clients
from anechoic.federated.server import Server
from anechoic.flower.exchange import MessageExchange, answer_in
from anechoic.flower.records import ASK, WHO

_log = getLogger("flwr")

_TRIES = 3  # times that a node is asked who it is
_SECONDS = 60.0


class ClientIdentity(ABC):
    """Says which client is behind a node. Final: `PublicKeys`, `Partitions`, `Labels`."""

    @abstractmethod
    def places(self, grid: Grid, exchange: MessageExchange) -> Mapping[ClientId, int]:
        """The clients that are there now, and the id of the node at which each is reached."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What identifies a client, and who answers for it: a sentence of the statement."""

    @property
    def unit(self) -> str:
        """What the guarantee protects: the unit of the mechanism."""
        return "client"

    def describe(self) -> str:
        """By what a state that is opened again is recognised: clients known by something else are others."""
        return type(self).__name__


class PublicKeys(ClientIdentity):
    """A node's public key, for a SuperLink with `--enable-supernode-auth`.

    Without node authentication a SuperNode makes a new key pair at each start, which Flower does not tell
    apart from a registered one: a client that starts again would be another one, and its participations
    forgotten.
    """

    def places(self, grid: Grid, exchange: MessageExchange) -> Mapping[ClientId, int]:
        """One client a key.

        Raises:
            ValueError: for a node without a key, or with one that Flower's simulation made up.
        """
        found: dict[ClientId, int] = {}
        for node in exchange.reached(grid.get_nodes):
            if not node.public_key.lstrip().startswith((b"-----BEGIN", b"ssh-", b"ecdsa-")):
                raise ValueError(
                    f"node {node.node_id} has no public key that lasts: start the SuperLink with"
                    " --enable-supernode-auth, or in a simulation use identity=Partitions()."
                )
            found[bytes(node.public_key)] = node.node_id
        return found

    @property
    def sentence(self) -> str:
        return (
            "A client is a registered public key (node authentication of the SuperLink, which must be on: a"
            " SuperNode without it has a new key at each start). Whoever registers two keys counts twice, and"
            " a device that is handed over keeps its key: where that happens, Labels says who it serves now."
        )


@dataclass
class Partitions(ClientIdentity):
    """The `partition-id` of a node, for simulations: the mod answers with it when asked.

    Attributes:
        key: the entry of `node_config` that identifies a node.
    """

    key: str = "partition-id"
    _known: dict[int, ClientId] = field(default_factory=dict, init=False, repr=False)
    _tries: Counter[int] = field(default_factory=Counter, init=False, repr=False)

    def places(self, grid: Grid, exchange: MessageExchange) -> Mapping[ClientId, int]:
        """One client a partition; nodes that do not answer, asked three times, are not there.

        Raises:
            ValueError: where nodes answer, but none has the entry.
        """
        nodes = list(exchange.reached(grid.get_node_ids))
        unknown = [node for node in nodes if node not in self._known and self._tries[node] < _TRIES]
        self._ask(grid, exchange, unknown)
        return {self._known[node]: node for node in nodes if node in self._known}

    def _ask(self, grid: Grid, exchange: MessageExchange, nodes: Sequence[int]) -> None:
        content = RecordDict({ASK: ConfigRecord({"stage": WHO, "key": self.key})})
        messages = [Message(content, node, MessageType.TRAIN, group_id=WHO) for node in nodes]
        self._tries.update(nodes)
        replies = replace(exchange, timeout=min(exchange.timeout, _SECONDS))(grid, messages)
        wanted = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        answered = 0
        for reply in replies:
            answered += 1
            node, name = wanted.get(reply.metadata.reply_to_message_id), answer_in(reply, _name_in)
            if node is not None and node == reply.metadata.src_node_id and name is not None:
                self._known[node] = name
        if answered and not self._known:
            raise ValueError(
                f"{answered} nodes answered, and none with {self.key!r}: give ClientApp the mod"
                " anechoic.flower.client.clipped_update_mod, and its nodes that entry in node_config."
            )

    def describe(self) -> str:
        """With the entry that names clients: under another one they would be strangers."""
        return f"Partitions of {self.key!r}"

    @property
    def sentence(self) -> str:
        return (
            f"A client is what its node says under {self.key!r}: for simulations. A node that says something"
            " else each time is another client each time."
        )


@dataclass(frozen=True)
class Labels(ClientIdentity):
    """The user behind a node, by a function of your own: for several devices of one, and handed-over ones.

    Attributes:
        of: from `NodeInfo` (`node_id`, `public_key`, `name`, `location`, `owner_aid`) to a label, or to None
            for a node that takes no part. Two nodes of one label are one client. As a device may change
            hands, a node trains with an empty `Context.state`.
    """

    of: Callable[[NodeInfo], ClientId | None]

    def places(self, grid: Grid, exchange: MessageExchange) -> Mapping[ClientId, int]:
        """One client a label, at the first of its nodes."""
        found: dict[ClientId, int] = {}
        for node in exchange.reached(grid.get_nodes):
            if (label := self.of(node)) is not None:
                found.setdefault(label, node.node_id)
        return found

    @property
    def sentence(self) -> str:
        return "A client is a label that a function of the operator gives to a node: it answers for it."

    @property
    def unit(self) -> str:
        """A user, on whatever devices."""
        return "user"


def _name_in(content: RecordDict) -> ClientId | None:
    record = content.get(WHO)
    name = record.get(WHO) if isinstance(record, ConfigRecord) else None
    if isinstance(name, bool) or not isinstance(name, str | int):
        return None
    return name


class Roll:
    """What `Server.clients` made of all clients seen so far: naming those who are there takes milliseconds.

    Args:
        server: that asks.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known = server.clients([])
        self._number: dict[ClientId, int] = {}

    def of(self, there: Mapping[ClientId, Any]) -> Clients:
        """The clients that are there."""
        if not there.keys() <= self._number.keys():
            self._known = self._server.clients([*self._number, *(there.keys() - self._number.keys())])
            self._number = {client: number for number, client in enumerate(self._known.ids)}
        present = np.zeros(len(self._number), bool)
        present[[self._number[client] for client in there]] = True
        return self._known.only(present)

"""Flower's `Grid` within one process: for tests and small studies."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_log = getLogger("flwr")

NodeConfig = Mapping[str, str | int | float | bool]


class Fate(StrEnum):
    """What becomes of one message and its reply."""

    ANSWERED = "answered"
    LOST = "lost"
    """The node is gone: it never sees the message."""
    LATE = "late"
    """The node works, and its reply comes with those of the next exchange."""
    TWICE = "twice"
    """The reply arrives two times."""
    FAILED = "failed"
    """The node answers with an error."""


class InProcessGrid(Grid):
    """Calls the `ClientApp` for each message, one after another, in this process.

    Each node keeps its `Context`, and so its state, until `restart`, which registers all nodes anew: as in a
    real federation a node id is random and does not last.

    Nothing is serialised on the way. A client's exception becomes an error reply, as with Flower's engines.

    Args:
        client_app: what every node runs.
        nodes: how many, each with `partition-id` and `num-partitions` in its `node_config`; or the
            `node_config` of each.
        run_config: of the run, the same for all nodes.
        public_keys: of each node, which last over a restart; None for nodes that are not authenticated.
        online: whether the node of that number is there now; None for always.
        fate: what becomes of a message to the node of that number; None for ANSWERED.

    Raises:
        ValueError: for no node, or another number of public keys.

    Example:
        >>> from flwr.app import Message, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> @app.train()
        ... def train(message, context):
        ...     return Message(RecordDict(), reply_to=message)
        >>> grid = InProcessGrid(app, nodes=3)
        >>> messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        >>> len(list(grid.send_and_receive(messages)))
        3
    """

    answers_at_once = True  # whoever sends need not wait for what has not come back

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int | Sequence[NodeConfig],
        *,
        run_config: NodeConfig | None = None,
        public_keys: Sequence[bytes] | None = None,
        online: Callable[[int], bool] | None = None,
        fate: Callable[[Message, int], Fate] | None = None,
    ) -> None:
        if isinstance(nodes, int):
            nodes = [{"partition-id": node, "num-partitions": nodes} for node in range(nodes)]
        if not nodes:
            raise ValueError("nodes=0: a federation has at least one node.")
        if public_keys is not None and len(public_keys) != len(nodes):
            raise ValueError(f"{len(public_keys)} public_keys for {len(nodes)} nodes: give one for each.")
        self.client_app = client_app
        self.online = online
        self.fate = fate
        self._configs = [dict(config) for config in nodes]
        self._run_config = dict(run_config or {})
        self._public_keys = public_keys
        self._run = Run.create_empty(run_id=secrets.randbits(63))
        self._under_way: dict[str, tuple[Message, int, Fate]] = {}
        self._late: list[tuple[Message, int, Fate]] = []
        self._due: list[tuple[Message, int, Fate]] = []
        self._sent = 0
        self._place_of: dict[int, int] = {}
        self._contexts: dict[int, Context] = {}
        _identify_this_process(self._run.run_id)
        self.restart()

    def restart(self) -> None:
        """Register all nodes anew: other node ids, empty states, no reply under way."""
        places = range(len(self._configs))
        self._place_of = {secrets.randbits(63): place for place in places}
        while len(self._place_of) < len(places):
            self._place_of[secrets.randbits(63)] = len(self._place_of)
        self._contexts.clear()
        self._under_way.clear()
        self._late.clear()
        self._due.clear()

    def place(self, node_id: int) -> int:
        """The number of a node, from 0, in the order of `nodes`."""
        return self._place_of[node_id]

    def set_run(self, run: Run) -> None:
        """Set the run that this grid works for."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid works for."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node; Flower prefers the constructor of `Message`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Of the nodes that are online."""
        if self.online is None:
            return list(self._place_of)
        return [node for node, place in self._place_of.items() if self.online(place)]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The nodes that are online, with their public keys if they have any."""
        keys = self._public_keys
        return [
            NodeInfo(node_id=node, public_key=keys[self._place_of[node]] if keys else b"")
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give each node its message; it works on it when its reply is asked for by `pull_messages`."""
        ids = []
        self._due, self._late = self._late, []
        self._under_way.clear()  # nobody asks for these any more
        for message in messages:
            self._sent += 1
            name = str(self._sent)
            message.metadata.__dict__["_message_id"] = name  # as Flower's grids do: there is no other way
            ids.append(name)
            place = self._place_of.get(message.metadata.dst_node_id)
            if place is None or (self.online is not None and not self.online(place)):
                continue
            fate = Fate.ANSWERED if self.fate is None else Fate(self.fate(message, place))
            if fate == Fate.LOST:
                continue
            if fate == Fate.LATE:
                self._late.append((message, place, fate))
            else:
                self._under_way[name] = message, place, fate
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages, with those of earlier exchanges that were late."""
        due, self._due = self._due, []
        wanted = [self._under_way.pop(name) for name in message_ids if name in self._under_way]
        return [
            reply
            for message, place, fate in (*due, *wanted)
            for reply in [self._answer(message, place, fate)] * (2 if fate == Fate.TWICE else 1)
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies of all nodes that answer; none waits, so `timeout` (seconds) has nothing to do."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message, place: int, fate: Fate) -> Message:
        if fate == Fate.FAILED:
            error = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason="the node failed")
            return Message(error, reply_to=message)
        own = Message(metadata=message.metadata, content=_own(message.content))  # type: ignore[call-overload]
        try:
            return self.client_app(own, self._context(message.metadata.dst_node_id, place))
        except Exception as error:  # what a client raises must not stop the others; the engines do the same
            _log.warning("node %d raised %s: %s", place, type(error).__name__, error)
            _log.debug("node %d raised", place, exc_info=error)
            found = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=f"{type(error)}:<'{error}'>")
            return Message(found, reply_to=message)

    def _context(self, node_id: int, place: int) -> Context:
        if place not in self._contexts:
            self._contexts[place] = Context(
                run_id=self._run.run_id,
                node_id=node_id,
                node_config=dict(self._configs[place]),
                state=RecordDict(),
                run_config=dict(self._run_config),
            )
        return self._contexts[place]


def _own(content: RecordDict) -> RecordDict:
    """Records of a client's own over the same bytes: what one takes out, another still finds."""
    return RecordDict({name: _copy(record) for name, record in content.items()})


def _copy(record: ArrayRecord | ConfigRecord | MetricRecord) -> ArrayRecord | ConfigRecord | MetricRecord:
    """A record with entries of its own, which are shared."""
    if isinstance(record, ArrayRecord):
        return ArrayRecord(dict(record))
    if isinstance(record, ConfigRecord):
        return ConfigRecord(dict(record))
    return MetricRecord(dict(record))


def _identify_this_process(run_id: int) -> None:
    """Flower lets only a process of a known task write messages: outside its engines we say which."""
    try:
        _ = TaskIdentity.task_id
    except RuntimeError:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID

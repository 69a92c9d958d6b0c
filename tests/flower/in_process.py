"""Flower's `Grid` within one process: nodes that answer, or do not, as a test says."""

import secrets
from enum import StrEnum
from logging import getLogger

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_log = getLogger("flwr")


class Fate(StrEnum):
    """What becomes of one message and its reply."""

    ANSWERED = "answered"
    LOST = "lost"  # the node is gone: it never sees the message
    LATE = "late"  # the node works, and its reply comes with those of the next exchange
    TWICE = "twice"
    FAILED = "failed"  # the node answers with an error


class InProcessGrid(Grid):
    """Calls the `ClientApp` for each message, one after another, in this process.

    Each node keeps its `Context` until `restart`, which registers all nodes anew: a node id is random and
    does not last. Where there is no reply the grid says so at once, by the error that a SuperLink sends in
    the end.

    Args:
        nodes: how many, each with its `partition-id`; or the `node_config` of each.
        public_keys: of each node; None for nodes that are not authenticated.
        online: whether the node of that number is there now; None for always.
        fate: what becomes of a message to the node of that number; None for ANSWERED.
    """

    def __init__(self, client_app, nodes, *, public_keys=None, online=None, fate=None):
        if isinstance(nodes, int):
            nodes = [{"partition-id": node} for node in range(nodes)]
        self.client_app, self.online, self.fate = client_app, online, fate
        self._configs, self._public_keys = nodes, public_keys
        self._run = Run.create_empty(run_id=secrets.randbits(63))
        self._sent = 0
        try:
            _ = TaskIdentity.task_id
        except RuntimeError:  # Flower lets only a process of a known task write messages
            TaskIdentity.task_id, TaskIdentity.run_id = 1, self._run.run_id
            TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.restart()

    def restart(self):
        """Register all nodes anew: other node ids, empty states, no reply under way."""
        self._place_of = {secrets.randbits(63): place for place in range(len(self._configs))}
        self._contexts, self._under_way, self._late, self._due = {}, {}, [], []

    def place(self, node_id):
        """The number of a node, from 0, in the order of `nodes`."""
        return self._place_of[node_id]

    def set_run(self, run):
        self._run = run

    @property
    def run(self):
        return self._run

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self):
        return [node for node, place in self._place_of.items() if self.online is None or self.online(place)]

    def get_nodes(self):
        keys = self._public_keys
        return [
            NodeInfo(node_id=node, public_key=keys[self._place_of[node]] if keys else b"")
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages):
        """Give each node its message; it works on it when its reply is asked for by `pull_messages`."""
        ids = []
        self._due, self._late = self._late, []
        self._under_way = {}  # nobody asks for these any more
        for message in messages:
            self._sent += 1
            name = str(self._sent)
            message.metadata.__dict__["_message_id"] = name  # as Flower's grids do: there is no other way
            ids.append(name)
            place = self._place_of.get(message.metadata.dst_node_id)
            if place is None or (self.online is not None and not self.online(place)):
                place, fate = None, Fate.LOST
            else:
                fate = Fate.ANSWERED if self.fate is None else Fate(self.fate(message, place))
            if fate == Fate.LATE:
                self._late.append((message, place, fate))
                fate = Fate.LOST
            self._under_way[name] = message, place, fate
        return ids

    def pull_messages(self, message_ids):
        """Replies to these messages, with those of earlier exchanges that were late."""
        due, self._due = self._due, []
        wanted = [self._under_way.pop(name) for name in message_ids if name in self._under_way]
        return [
            reply
            for message, place, fate in (*due, *wanted)
            for reply in [self._reply(message, place, fate)] * (2 if fate == Fate.TWICE else 1)
        ]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message, place, fate):
        if fate == Fate.LOST:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "no reply"), reply_to=message)
        if fate == Fate.FAILED:
            return Message(Error(ErrorCode.CLIENT_APP_CRASHED, "the node failed"), reply_to=message)
        return self._answer(message, place)

    def _answer(self, message, place):
        # records of its own over the same bytes: what a client takes out, another still finds
        content = RecordDict({name: type(record)(dict(record)) for name, record in message.content.items()})
        node = message.metadata.dst_node_id
        context = self._contexts.setdefault(
            place, Context(self._run.run_id, node, dict(self._configs[place]), RecordDict(), {})
        )
        try:
            return self.client_app(Message(metadata=message.metadata, content=content), context)
        except Exception as error:  # what a client raises must not stop the others; the engines do the same
            _log.debug("node %d raised", place, exc_info=error)
            found = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>")
            return Message(found, reply_to=message)

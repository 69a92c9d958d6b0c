"""The grid within one process: states, node ids, and what can become of a reply."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from anechoic.flower.grid import Fate, InProcessGrid

app = ClientApp()


@app.train()
def train(message, context):
    """Counts the messages of a node, takes its arrays away, and fails where it is told to."""
    if message.content["config"].get("fail"):
        raise ZeroDivisionError("secret")
    seen = context.state.get("seen", ConfigRecord({"times": 0}))["times"] + 1
    context.state["seen"] = ConfigRecord({"times": seen})
    found = len(message.content["arrays"])
    message.content["arrays"].clear()
    answer = ConfigRecord({"times": seen, "found": found, "partition": context.node_config["partition-id"]})
    return Message(RecordDict({"answer": answer}), reply_to=message)


def ask(grid, nodes=None, **config):
    content = RecordDict({"arrays": ArrayRecord([np.zeros(2)]), "config": ConfigRecord(config)})
    nodes = grid.get_node_ids() if nodes is None else nodes
    replies = grid.send_and_receive([Message(content, node, "train", group_id="7") for node in nodes])
    return list(replies)


def answers(replies):
    return [dict(reply.content["answer"]) for reply in replies]


def test_each_node_answers_with_its_own_state_and_its_own_copy():
    grid = InProcessGrid(app, nodes=3)
    first, second = answers(ask(grid)), answers(ask(grid))
    assert [answer["partition"] for answer in first] == [0, 1, 2]
    assert [answer["times"] for answer in second] == [2, 2, 2]
    assert [answer["found"] for answer in second] == [1, 1, 1]


def test_replies_name_their_message_and_node():
    grid = InProcessGrid(app, nodes=2)
    node = next(iter(grid.get_node_ids()))
    message = Message(RecordDict({"config": ConfigRecord(), "arrays": ArrayRecord()}), node, "train")
    [reply] = grid.send_and_receive([message])
    assert reply.metadata.src_node_id == node
    assert reply.metadata.reply_to_message_id == message.metadata.message_id != ""


def test_a_restart_registers_anew():
    grid = InProcessGrid(app, nodes=4)
    before = set(grid.get_node_ids())
    ask(grid)
    grid.restart()
    assert not before & set(grid.get_node_ids())
    assert [answer["times"] for answer in answers(ask(grid))] == [1, 1, 1, 1]


def test_an_exception_is_an_error_reply():
    [reply] = ask(InProcessGrid(app, nodes=1), fail=True)
    assert reply.has_error()
    assert "ZeroDivisionError" in reply.error.reason


@pytest.mark.parametrize(
    ("fate", "now", "next_time"), [("answered", 1, 1), ("lost", 0, 0), ("late", 0, 1), ("twice", 2, 2)]
)
def test_fates(fate, now, next_time):
    grid = InProcessGrid(app, nodes=1, fate=lambda message, place: Fate(fate))
    assert len(ask(grid)) == now
    assert len(ask(grid)) == next_time


def test_a_late_reply_belongs_to_its_own_message():
    grid = InProcessGrid(app, nodes=1, fate=lambda message, place: Fate.LATE)
    ask(grid)
    [late] = ask(grid)
    assert answers([late])[0]["times"] == 1


def test_a_failed_node_answers_with_an_error():
    [reply] = ask(InProcessGrid(app, nodes=1, fate=lambda message, place: Fate.FAILED))
    assert reply.has_error()


def test_nodes_that_are_offline_are_not_there():
    grid = InProcessGrid(app, nodes=3, online=lambda place: place != 1)
    assert len(list(grid.get_node_ids())) == 2
    grid.online = lambda place: place == 1
    [answer] = answers(ask(grid))
    assert answer["partition"] == 1


def test_public_keys_last():
    keys = [b"-----BEGIN a", b"-----BEGIN b"]
    grid = InProcessGrid(app, nodes=2, public_keys=keys)
    grid.restart()
    assert [node.public_key for node in grid.get_nodes()] == keys


@pytest.mark.parametrize("arguments", [{"nodes": 0}, {"nodes": 2, "public_keys": [b"one"]}])
def test_refuses(arguments):
    with pytest.raises(ValueError, match="node"):
        InProcessGrid(app, **arguments)

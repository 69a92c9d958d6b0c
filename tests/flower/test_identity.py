"""Who is behind a node."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from anechoic.flower import Labels, Partitions, PublicKeys
from anechoic.flower.exchange import MessageExchange
from tests.flower import small
from tests.flower.in_process import Fate, InProcessGrid

EXCHANGE = MessageExchange(timeout=1.0)


def test_partitions_are_asked_for_and_remembered():
    grid = small.grid(nodes=5)
    identity, asked = Partitions(), []
    real = grid.push_messages
    grid.push_messages = lambda messages: asked.append(len(list(messages))) or real(messages)
    first = identity.places(grid, EXCHANGE)
    assert sorted(first) == [0, 1, 2, 3, 4]
    assert [grid.place(node) for node in first.values()] == list(first)
    assert identity.places(grid, EXCHANGE) == first
    assert [number for number in asked if number] == [5]
    grid.restart()
    again = identity.places(grid, EXCHANGE)
    assert sorted(again) == sorted(first) and again != first


def test_a_silent_node_is_asked_three_times_and_is_not_there():
    asked = []

    def fate(message, place):
        asked.append(place)
        return Fate.LOST if place == 1 else Fate.ANSWERED

    grid, identity = small.grid(nodes=3, fate=fate), Partitions()
    for _ in range(5):
        assert sorted(identity.places(grid, EXCHANGE)) == [0, 2]
    assert asked.count(1) == 3


def test_two_nodes_of_one_partition_are_one_client():
    grid = InProcessGrid(small.client_app(), [{"partition-id": 0}, {"partition-id": 0}, {"partition-id": 1}])
    assert sorted(Partitions().places(grid, EXCHANGE)) == [0, 1]


@pytest.mark.parametrize("answer", [True, 1.5, b"x", [1]])
def test_odd_names_are_nobodys(answer):
    app = ClientApp()

    @app.train()
    def train(message, context):
        name = 7 if context.node_config["partition-id"] else answer
        return Message(RecordDict({"who": ConfigRecord({"who": name})}), reply_to=message)

    assert list(Partitions().places(InProcessGrid(app, 2), EXCHANGE)) == [7]


def test_an_answer_of_another_node_names_nobody():
    grid = small.grid(nodes=2)
    real = grid._answer

    def forged(message, place):
        reply = real(message, place)
        reply.metadata.__dict__["_src_node_id"] += place
        return reply

    grid._answer = forged
    assert list(Partitions().places(grid, EXCHANGE)) == [0]


def test_public_keys():
    keys = [b"-----BEGIN PUBLIC KEY-----\nA", b"-----BEGIN PUBLIC KEY-----\nB"]
    assert list(PublicKeys().places(small.grid(nodes=2, public_keys=keys), EXCHANGE)) == keys
    for made_up in (None, [b"\x01" * 32, b"\x02" * 32]):  # as by a simulation
        with pytest.raises(ValueError, match="Partitions"):
            PublicKeys().places(small.grid(nodes=2, public_keys=made_up), EXCHANGE)


def test_labels():
    grid = small.grid(nodes=4)
    people = {0: "ann", 1: "bob", 2: None, 3: "ann"}
    identity = Labels(lambda node: people[grid.place(node.node_id)])
    places = identity.places(grid, EXCHANGE)
    assert {name: grid.place(node) for name, node in places.items()} == {"ann": 0, "bob": 1}
    assert (identity.unit, Partitions().unit) == ("user", "client")

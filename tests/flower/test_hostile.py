"""Hostile replies over the real path: none moves the model beyond the clip norm, and no restart stumbles."""

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from google.protobuf.message import DecodeError

from anechoic.federated.server import Server
from anechoic.flower.records import arrays_of, record_of
from tests.flower import small
from tests.flower.app import evil
from tests.flower.in_process import InProcessGrid

BITS = 24
GOOD = np.array([2**22, 0, -(2**22), 5, 0, 1, 2**20], np.int64)
WHOLE = np.iinfo(np.int64)


def _content(vector, name="update", **more):
    return RecordDict({"update": record_of({name: vector}), **more})


def _raw(data, stype="numpy.ndarray"):
    return RecordDict({"update": ArrayRecord({"update": Array("int32", (7,), stype, data)})})


#: What a reply holds that counts as zero.
REFUSED = {
    "nothing": RecordDict(),
    "weights": RecordDict({"arrays": record_of(small.initial())}),
    "floats": _content(np.random.default_rng(1).normal(size=7)),
    "NaN": _content(np.full(7, np.nan)),
    "infinite": _content(np.full(7, np.inf, np.float32)),
    "another shape": _content(np.zeros(6, np.int64)),
    "a matrix": _content(np.zeros((7, 1), np.int64)),
    "long": _content(np.zeros(100_000, np.int8)),
    "huge": _content(np.random.default_rng(1).integers(WHOLE.min, WHOLE.max, 7)),
    "smallest": _content(np.full(7, WHOLE.min)),
    "a little too long": _content(np.array([2**BITS + 1, 0, 0, 0, 0, 0, 0])),
    "squares that wrap": _content(np.array([2**32, 2**32, 0, 0, 0, 0, 0])),
    "unsigned": _content(np.full(7, 2**63, np.uint64)),
    "booleans": _content(np.ones(7, bool)),
    "text": _content(np.array(["a"] * 7)),
    "complex": _content(np.ones(7, complex)),
    "another name": _content(np.zeros(7, np.int64), name="w"),
    "no array": RecordDict({"update": ConfigRecord({"update": [1] * 7})}),
    "noise": _raw(np.random.default_rng(1).bytes(50)),
    "a pickle": _raw(b"\x80\x04N.", "pickle"),
    "error": Error(code=2, reason="x"),
    "odd error": Error(code=77),
}
#: What counts as the update in it, whatever else it says.
COUNTED = {
    "a negative count": _content(GOOD, count=MetricRecord({"num-examples": -(10**6)})),
    "a huge count": _content(GOOD, count=MetricRecord({"num-examples": 10**9})),
}


class Lying(InProcessGrid):
    """The first client of each round answers with `content`, and replies come in that nobody asked for."""

    def __init__(self, content):
        super().__init__(small.client_app(), small.CLIENTS)
        self.content, self.old, self.hostile, self.sent = content, [], {}, 0

    def _answer(self, message, place):
        step = message.content["anechoic"].get("step")
        if step is None or self.hostile.setdefault(step, place) != place:
            return super()._answer(message, place)
        self.sent += 1
        return Message(self.content, reply_to=message)

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        strangers = []
        for reply in replies[:3]:  # replays of the round before, a stranger, an answer in another's name
            as_if = Message(RecordDict(), 12345, "train")
            as_if.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
            strangers += [*self.old, Message(_content(GOOD), reply_to=as_if), *replies[-1:]]
        self.sent += len(strangers)
        self.old = replies[:1]
        return [*strangers, *replies]


@pytest.mark.parametrize("kind", sorted(REFUSED | COUNTED))
@pytest.mark.few(4)
def test_a_hostile_reply_counts_as_zero_and_nothing_stops(kind):
    grid = Lying((REFUSED | COUNTED)[kind])
    models, found = small.run(over=grid)
    assert len(models) == small.ROUNDS and found.stopped is None
    if kind in REFUSED:
        hostile = {(client, step) for step, client in grid.hostile.items()}
        small.same(models, small.models_without_flower(answers=lambda *who: who not in hostile))
    assert grid.sent > 50


class Rubbish(InProcessGrid):
    """Every client of `liars` answers with rubbish, some of which the transport itself cannot read."""

    def __init__(self, seed, liars):
        super().__init__(small.client_app(), small.CLIENTS)
        self.draw, self.liars, self.rubbish = random.Random(seed), liars, 0

    def _answer(self, message, place):
        lies = place in self.liars and message.content["anechoic"]["stage"] != "who"
        if not lies or self.draw.random() < 0.1:
            return super()._answer(message, place)
        self.rubbish += 1
        if self.draw.random() < 0.2:
            raise DecodeError("Error parsing message")
        return Message(evil.contents(self.draw), reply_to=message)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 6), *(pytest.param(seed, 60, marks=pytest.mark.slow) for seed in range(3))]
)
def test_liars_move_a_sum_by_their_clipped_updates_at_most_and_stop_nothing(monkeypatch, seed, rounds):
    rests, real, liars = [], Server.close, {1, 4, 7, 9}

    def closed(server, asked):
        honest = (client for client in asked.clients if client not in liars)
        expected = sum(
            small.vector(asked.model, client, asked.step + 1, server.grid_bits) for client in honest
        )
        rest = asked.total - expected
        there = sum(client in liars for client in asked.clients)
        assert sum(int(entry) ** 2 for entry in rest) <= there**2 * 4**server.grid_bits
        rests.append(rest)
        return real(server, asked)

    monkeypatch.setattr(Server, "close", closed)
    grid = Rubbish(seed, liars)
    models, found = small.run(small.strategy(mechanism=small.mechanism(rounds=rounds)), grid)
    assert len(models) == len(rests) == rounds and found.stopped is None and grid.rubbish > rounds / 2


def test_only_the_update_leaves():
    seen, grid = [], small.grid()
    real = grid.pull_messages
    grid.pull_messages = lambda ids: seen.extend(found := list(real(ids))) or found
    small.run(over=grid, rounds=2)
    updates = [reply.content for reply in seen if "update" in reply.content]
    assert len(updates) == 2 * small.PER_ROUND
    for content in updates:
        assert list(content) == ["update"]
        [vector] = arrays_of(content["update"]).values()
        assert vector.dtype == np.int32 and vector.shape == (7,)
        assert sum(int(entry) ** 2 for entry in vector) <= 4**BITS


def test_a_server_that_wants_weights_gets_nothing():
    fedavg = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=1)
    replies = []
    real = fedavg.aggregate_train
    fedavg.aggregate_train = lambda number, found: replies.extend(found) or real(number, replies)
    fedavg.start(small.grid(), record_of(small.initial()), 1)
    assert len(replies) == small.CLIENTS and all(reply.has_error() for reply in replies)


def test_a_server_whose_clients_lack_the_mod_is_told_so():
    with pytest.raises(ValueError, match="clipped_update_mod"):
        small.run(over=small.grid(small.client_app(mods=[])))

"""Hostile replies over the real path: none moves the model beyond the clip norm or stops a run."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from anechoic.flower import clipped_update_mod
from anechoic.flower.grid import InProcessGrid
from anechoic.flower.records import arrays_of, record_of
from tests.flower import small

BITS = 24
GOOD = np.array([2**22, 0, -(2**22), 5, 0, 1, 2**20], np.int64)


def _content(vector, name="update", **more):
    return RecordDict({"update": record_of({name: vector}), **more})


def _raw(data, stype="numpy.ndarray"):
    return RecordDict({"update": ArrayRecord({"update": Array("int32", (7,), stype, data)})})


def kinds():
    """Contents of replies, by name; each a function of a random generator."""
    whole = np.iinfo(np.int64)
    return {
        "nothing": lambda rng: RecordDict(),
        "weights": lambda rng: RecordDict({"arrays": record_of(small.initial())}),
        "floats": lambda rng: _content(rng.normal(size=7)),
        "NaN": lambda rng: _content(np.full(7, np.nan)),
        "infinite": lambda rng: _content(np.full(7, np.inf, np.float32)),
        "another shape": lambda rng: _content(np.zeros(int(rng.integers(0, 7)), np.int64)),
        "a matrix": lambda rng: _content(np.zeros((7, 1), np.int64)),
        "long": lambda rng: _content(np.zeros(100_000, np.int8)),
        "huge": lambda rng: _content(rng.integers(whole.min, whole.max, 7)),
        "smallest": lambda rng: _content(np.full(7, whole.min)),
        "a little too long": lambda rng: _content(np.array([2**BITS + 1, 0, 0, 0, 0, 0, 0])),
        "squares that wrap": lambda rng: _content(np.array([2**32, 2**32, 0, 0, 0, 0, 0])),
        "unsigned": lambda rng: _content(np.full(7, 2**63, np.uint64)),
        "booleans": lambda rng: _content(np.ones(7, bool)),
        "text": lambda rng: _content(np.array(["a"] * 7)),
        "complex": lambda rng: _content(np.ones(7, complex)),
        "another name": lambda rng: _content(np.zeros(7, np.int64), name="w"),
        "no array": lambda rng: RecordDict({"update": ConfigRecord({"update": [1] * 7})}),
        "noise": lambda rng: _raw(rng.bytes(50)),
        "a bomb": lambda rng: _raw(_header(10**12) + b"\0" * 28),
        "a pickle": lambda rng: _raw(b"\x80\x04N.", "pickle"),
        "negative counts": lambda rng: _content(
            GOOD, count=MetricRecord({"num-examples": -(10**6)}), metrics=MetricRecord({"loss": math.nan})
        ),
        "huge counts": lambda rng: _content(GOOD, count=MetricRecord({"num-examples": 10**9})),
        "error": lambda rng: Error(code=2, reason="x"),
        "odd error": lambda rng: Error(code=77),
    }


COUNTED = {"negative counts", "huge counts"}


def _header(length):
    text = b"{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % length
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n"


class Hostile(InProcessGrid):
    """The first client of each round is hostile, and replies come in that nobody asked for."""

    def __init__(self, make, rng):
        super().__init__(small.client_app(), small.CLIENTS)
        self.make, self.rng = make, rng
        self.old, self.hostile, self.sent = [], set(), 0

    def _answer(self, message, place, fate):
        if message.content["anechoic"]["stage"] == "who":
            return super()._answer(message, place, fate)
        step = message.content["anechoic"]["step"]
        if step in {found for found, _ in self.hostile}:
            return super()._answer(message, place, fate)
        self.hostile.add((step, place))
        self.sent += 1
        return Message(self.make(self.rng), reply_to=message)

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        strangers = []
        for reply in replies[:3]:  # replays of the round before, a stranger, an answer in another's name
            stranger = Message(RecordDict({"update": record_of({"update": GOOD})}), reply_to=_as_if(reply))
            strangers += [*self.old, stranger, *replies[-1:]]
        self.sent += len(strangers)
        self.old = replies[:1]
        return [*strangers, *replies]


def _as_if(reply):
    """The message that this reply answers, as if another node had got it."""
    message = Message(RecordDict(), 12345, "train")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message


@pytest.mark.parametrize("kind", sorted(kinds()))
@pytest.mark.few(4)
def test_a_hostile_reply_counts_as_zero_and_nothing_stops(kind):
    grid = Hostile(kinds()[kind], np.random.default_rng(1))
    models, found = small.run(over=grid)
    assert len(models) == small.ROUNDS and found.stopped is None
    if kind not in COUNTED:
        hostile = {(client, step) for step, client in grid.hostile}
        small.same(models, small.models_without_flower(answers=lambda *who: who not in hostile))
    assert grid.sent > 50


def test_words_of_an_exception_do_not_leave_the_client():
    def training(message, context):
        raise ValueError("patient 17 has no heartbeat")

    app = small.client_app(training)
    grid = small.grid(app)
    seen = []
    real = grid.pull_messages
    grid.pull_messages = lambda ids: seen.append(list(real(ids))) or seen[-1]
    small.run(over=grid, rounds=1)
    errors = [reply.error.reason for replies in seen for reply in replies if reply.has_error()]
    assert len(errors) == small.PER_ROUND
    assert not any("patient" in reason or "ValueError" in reason for reason in errors)


def test_only_the_update_and_a_count_of_one_leave():
    seen = []
    grid = small.grid()
    real = grid.pull_messages
    grid.pull_messages = lambda ids: seen.extend(found := list(real(ids))) or found
    small.run(over=grid, rounds=2)
    updates = [reply.content for reply in seen if "update" in reply.content]
    assert len(updates) == 2 * small.PER_ROUND
    for content in updates:
        assert sorted(content) == ["count", "update"]
        assert dict(content["count"]) == {"num-examples": 1}
        [vector] = arrays_of(content["update"]).values()
        assert vector.dtype == np.int32 and vector.shape == (7,)
        assert sum(int(entry) ** 2 for entry in vector) <= 4**BITS


def test_a_server_that_wants_weights_gets_nothing():
    from flwr.serverapp.strategy import FedAvg

    fedavg = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=1)
    replies = []
    real = fedavg.aggregate_train
    fedavg.aggregate_train = lambda number, found: replies.extend(found) or real(number, replies)
    fedavg.start(small.grid(), record_of(small.initial()), 1)
    assert len(replies) == small.CLIENTS and all(reply.has_error() for reply in replies)


@pytest.mark.parametrize("mod", [clipped_update_mod, None], ids=["with the mod", "without"])
def test_clients_without_the_mod_are_told_so(mod):
    app = small.client_app(mods=[] if mod is None else [mod])
    if mod is None:
        with pytest.raises(ValueError, match="clipped_update_mod"):
            small.run(over=small.grid(app))
    else:
        assert len(small.run(over=small.grid(app))[0]) == small.ROUNDS


def test_a_server_with_a_state_survives_refusals(tmp_path):
    found = small.strategy(state=tmp_path / "state", key=None)
    models, _ = small.run(found, Hostile(kinds()["huge"], np.random.default_rng(1)))
    refused = found.report().refused
    found.close()
    assert len(models) == small.ROUNDS and sum(refused.values()) >= small.ROUNDS
    again = small.strategy(state=tmp_path / "state", key=None)
    again.open(record_of(small.initial()))
    assert again.report().refused == refused

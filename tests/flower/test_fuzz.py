"""Whatever a client sends counts as its clipped update or as nothing, and no restart stumbles over it."""

import random
import warnings

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from google.protobuf.message import DecodeError

from anechoic.federated.server import Server
from anechoic.flower.grid import InProcessGrid
from anechoic.flower.records import UnreadableError, read, record_of, vector_of
from tests.flower import small
from tests.flower.app import evil


@pytest.mark.slow
def test_three_thousand_hostile_headers_are_arrays_or_unreadable():
    draw, found, refused = random.Random(1), 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3000):
            array = evil.array(draw)
            try:
                seen = read(array)
            except UnreadableError:
                refused += 1
            else:
                found += 1
                assert (
                    seen.nbytes <= len(array.data) and not seen.flags.writeable and seen.dtype.kind in "iuf"
                )
                seen.sum()
    assert found > 5 and refused > 2000


@pytest.mark.parametrize(
    "text",
    [
        f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({'1, ' * 65}), }}",
        "{'descr': ('<i8', (2,)), 'fortran_order': False, 'shape': (1,), }",
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': (0, {10**17}), }}",
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': (0, {10**30}), }}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (True, 7), }",
        "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-7,), }",
    ],
)
@pytest.mark.parametrize("size", [0, 8, 16, 28])
def test_heads_that_numpy_parses_and_no_update_has_are_unreadable(text, size):
    line = text.encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + bytes(size)
    with pytest.raises(UnreadableError):
        read(evil.Array("int32", (7,), "numpy.ndarray", data))


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "c16", "?", ">i4", ">f8"]
)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (7,), (2, 3), (1,) * 32], ids=str)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.few(100)
def test_every_plain_array_is_read_as_it_was(dtype, shape, order):
    array = np.asarray(np.random.default_rng(1).integers(0, 2, shape), dtype=dtype, order=order)
    [(_, sent)] = record_of({"a": array}).items()
    found = read(sent)
    assert found.dtype == array.dtype and found.shape == array.shape
    np.testing.assert_array_equal(found, array)


class Hostile(InProcessGrid):
    """Every client of `liars` answers with rubbish, some of which the transport itself cannot read."""

    def __init__(self, seed, liars, app=None):
        super().__init__(app or small.client_app(), small.CLIENTS)
        self.draw, self.liars, self.rubbish = random.Random(seed), liars, 0

    def _answer(self, message, place, fate):
        lies = place in self.liars and message.content["anechoic"]["stage"] != "who"
        if not lies or self.draw.random() < 0.1:
            return super()._answer(message, place, fate)
        self.rubbish += 1
        if self.draw.random() < 0.2:
            raise DecodeError("Error parsing message")
        return Message(evil.contents(self.draw), reply_to=message)


ROUNDS = 60


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_liars_move_a_sum_by_their_clipped_updates_at_most_and_stop_nothing(monkeypatch, seed):
    rests, real = [], Server.close

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
    liars = {1, 4, 7, 9}
    grid = Hostile(seed, liars)
    models, found = small.run(small.strategy(mechanism=small.mechanism(rounds=ROUNDS)), grid)
    assert len(models) == len(rests) == ROUNDS and found.stopped is None and grid.rubbish > 45


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.slow
def test_every_restart_works_with_a_liar_in_the_open_round(tmp_path, masked):
    """The open round is asked again of the same clients: what killed a server once would do so each time."""
    options = {"state": tmp_path / "state", "key": None, "masked": masked, "patience": 20.0}
    options |= {"discipline": small.CoolDown(1), "clients_per_round": small.CLIENTS}
    for rounds in range(1, small.ROUNDS + 1):
        found = small.strategy(**options)
        grid = Hostile(rounds, {3})
        found.start(grid, record_of(small.initial()), rounds)
        assert found.stopped is None and found.server.step == rounds
        found.close()
        killed = small.strategy(**options)
        if not killed.open(record_of(small.initial())).finished:
            list(killed.configure_train(rounds + 1, record_of(small.initial()), small.ConfigRecord(), grid))
        killed.close()


def test_a_grid_that_does_not_work_is_not_taken_for_a_client_that_lies():
    class Broken(InProcessGrid):
        def pull_messages(self, message_ids):
            raise ConnectionError("the SuperLink is gone")

        def get_node_ids(self):
            if self._sent > small.CLIENTS:
                raise ConnectionError("the SuperLink is gone")
            return super().get_node_ids()

    grid = Broken(small.client_app(), small.CLIENTS)
    with pytest.raises(ValueError, match="nodes answered"):  # as none of them can be read
        small.run(over=grid)
    grid._sent = small.CLIENTS
    with pytest.raises(ConnectionError):
        small.run(over=grid)


def test_what_an_evaluation_answers_stops_nothing():
    class Evaluating(small.FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            raise KeyError("a client left a number out")

    found = small.strategy(unprotected_evaluation=Evaluating(fraction_evaluate=0.5))
    result = found.start(small.grid(), record_of(small.initial()))
    assert found.server.finished and result.evaluate_metrics_clientapp == {}


def test_no_content_of_an_update_is_anything_but_integers_or_unreadable():
    draw = random.Random(2)
    for _ in range(1000):
        content = evil.contents(draw)
        if isinstance(content, RecordDict):
            try:
                assert vector_of(content).dtype.kind == "i"
            except UnreadableError:
                continue

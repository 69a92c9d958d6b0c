"""What is seen of a commit that failed, and of replies that change or break while they are read."""

import os
import zipfile
from collections.abc import Mapping

import numpy as np
import pytest

from anechoic.errors import CheckpointError, GuaranteeError
from anechoic.federated import round as round_module
from tests.federated.small import run_round, small_server, update_of


class Full(OSError):
    """No room on the disk."""


@pytest.mark.parametrize("call", range(5))
def test_a_model_is_seen_when_it_is_on_disk_and_not_before(tmp_path, monkeypatch, call):
    """Wherever a commit fails, the server shows what its state says: else its row would be used twice."""
    server = small_server(state=tmp_path / "run")
    run_round(server, range(20))
    asked = server.ask(range(20))
    for client in asked.clients:
        asked.add(client, update_of(client, 1))
    calls, real = iter(range(100)), os.fsync

    def fsync(handle):
        if next(calls) == call:
            raise Full
        return real(handle)

    before = server.model
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        try:
            server.close(asked)
        except (Full, CheckpointError):
            assert server.step == 1 and server.report().released == 1 and not server.finished
            for name, array in before.items():
                np.testing.assert_array_equal(server.model[name], array)
            with pytest.raises(GuaranteeError):
                server.ask(range(20))
        else:
            assert server.step == 2 and call > 1, "the first of these are calls of every commit"
    shown = server.step, server.model
    server.shut()
    with small_server(state=tmp_path / "run") as again:
        assert again.step >= shown[0]
        if again.step == shown[0]:
            for name, array in shown[1].items():
                np.testing.assert_array_equal(again.model[name], array)


def test_nobody_sees_a_model_while_it_is_written(tmp_path, monkeypatch):
    seen = []
    with small_server(state=tmp_path / "run") as server:
        real = server._state.save_model

        def save_model(standing):
            real(standing)
            seen.append((server.step, server.model["w"].copy(), server.report().released))

        monkeypatch.setattr(server._state, "save_model", save_model)
        first = server.model["w"]
        run_round(server, range(20))
    ((step, model, released),) = seen
    assert (step, released) == (0, 0)
    np.testing.assert_array_equal(model, first)


def test_what_is_measured_is_what_is_added(monkeypatch):
    """A buffer that somebody else writes to, as shared memory may be."""
    server = small_server()
    asked = server.ask(range(20))
    reply, real = np.zeros(server.layout.dimension, np.int64), round_module.fault_of_integers

    def changed_afterwards(given, *rest):
        fault = real(given, *rest)
        reply[0] = 2**40
        return fault

    monkeypatch.setattr(round_module, "fault_of_integers", changed_afterwards)
    assert asked.add(asked.clients[0], reply) is None
    assert not asked.total.any()


class Damaged(Mapping):
    def __getitem__(self, name):
        raise zipfile.BadZipFile("not a zip file")

    def __iter__(self):
        return iter(["w", "b", "seen"])

    def __len__(self):
        return 3


def test_what_breaks_when_it_is_read_is_an_answer_with_zero():
    server = small_server()
    asked = server.ask(range(20))
    assert asked.add(asked.clients[0], Damaged()) == "a reply that cannot be read"
    tiny = {"w": np.full((2, 2), 1e-45, np.float32), "b": np.array(5e-324)}
    with np.errstate(all="raise"):  # of the caller's: no update is to depend on it
        assert asked.add(asked.clients[1], tiny) is None
    assert asked.answered == 2 and not asked.total.any()


def test_an_array_of_bytes_names_nobody():
    with pytest.raises(ValueError, match="forgets zeros"):
        small_server().ask(np.array([b"key\0", b"other"]))

"""A state that is put back, or opened again, costs another release with noise of its own."""

import shutil

import numpy as np
import pytest

from anechoic import federated
from anechoic.errors import CheckpointError
from tests.federated.small import KEY, small_mechanism

SIZE = 300
ZERO = {"w": np.zeros(SIZE)}


def server_at(state, key=KEY, **options):
    policy = federated.MinSeparation(3, 3)
    return federated.Server(
        ZERO,
        mechanism=small_mechanism(policy, 3),
        policy=policy,
        clients_per_round=3,
        state=state,
        key=key,
        **options,
    )


def update_of_a_round(server, value):
    asked = server.ask(range(9))
    for client in asked.clients:
        asked.add(client, {"w": np.full(SIZE, value)})
    return server.close(asked).update


@pytest.mark.usefixtures("salted")
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("between", [1, 4])
def test_an_older_state_put_back_does_not_repeat_noise(tmp_path, monkeypatch, key, between):
    """With snapshots of the noise after each round, or with rows that are made again from their salts."""
    monkeypatch.setattr("anechoic.federated.store.RunStore.rows_between", lambda *_: between)
    state, found = tmp_path / "run", []
    for _ in range(2):
        with server_at(state, key) as server:
            update_of_a_round(server, 0.0)
    shutil.copytree(state, tmp_path / "older")
    for _ in range(2):
        shutil.rmtree(state)
        shutil.copytree(tmp_path / "older", state)
        with server_at(state, key, adopt=True) as server:
            found.append(update_of_a_round(server, 0.0))
    spread = np.std(found[0])
    assert np.std(found[0] - found[1]) > 0.3 * spread
    assert np.mean(np.abs(found[0] - found[1]) < 0.02 * spread) < 0.2


@pytest.mark.usefixtures("salted")
def test_servers_in_memory_with_one_key_share_no_noise_and_no_round():
    one, other = server_at(None), server_at(None)
    assert one.ask(range(3)).config["round"] != other.ask(range(3)).config["round"]
    updates = [update_of_a_round(server, 0.0) for server in (one, other)]
    assert np.mean(updates[0] == updates[1]) < 0.01


@pytest.mark.usefixtures("salted")
@pytest.mark.parametrize("between", [2, 5])
def test_over_many_openings_noise_goes_on_exactly(tmp_path, monkeypatch, recorder, between):
    """Rows that are made again after a restart are those that were released: correlated rows rest on them."""
    monkeypatch.setattr("anechoic.federated.store.RunStore.rows_between", lambda *_: between)
    made = []
    for _ in range(7):
        with server_at(tmp_path / "run") as server:
            again = recorder.rows[:]
            first = server.step - len(again)
            for step, row in enumerate(again, first):
                np.testing.assert_array_equal(row, made[step])
            recorder.rows.clear()
            update_of_a_round(server, 0.0)
            made += recorder.rows
            recorder.rows.clear()
    assert len(made) == 7


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with server_at(tmp_path / "run") as server:
        asked = server.ask(range(9))
        asked.add(asked.clients[0], {"w": np.ones(SIZE)})
        with monkeypatch.context() as patch:
            patch.setattr("anechoic.runs.atomic_files.os.fsync", full)
            with pytest.raises(CheckpointError, match="No space left on device.*Make room on the disk"):
                server.close(asked)
    with server_at(tmp_path / "run") as server:
        assert server.ask([]).resumed and server.step == 0


@pytest.mark.usefixtures("salted")
def test_short_rounds_that_ask_more_go_on_from_a_state(tmp_path):
    """The clients of a short round are charged once, and the first asked, after it was opened again, too."""
    options = {"over_selection": 1.0, "min_replies": 2}
    with server_at(tmp_path / "run", **options) as server:
        asked = server.ask(range(30))
        asked.add(asked.clients[1], None)
        assert not server.close(asked).released
    with server_at(tmp_path / "run", **options) as server:
        again = server.ask(range(30))
        assert set(again.clients) == set(asked.clients) and not again.resumed
    with server_at(tmp_path / "run", **options) as server:
        opened = server.ask(range(30))
        assert opened.resumed and opened.clients == again.clients
        for client in opened.clients:
            opened.add(client, {"w": np.zeros(SIZE)})
        assert server.close(opened).released and opened.answered == 3
        assert server.report().ledger.participations == server.asked_per_round == 6

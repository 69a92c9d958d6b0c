"""kill -9 between any two instructions: the same clients, rows and models, and nobody is forgotten."""

import json

import pytest

import anechoic.federated
import anechoic.runs
from anechoic import federated
from tests.federated.small import KEY, small_server, update_of
from tests.runs.kills import folders, killed_at, lines_of_a_run, places

ROOMS = folders(anechoic.federated, anechoic.runs)
ROUNDS = 4
CLIENTS = range(11)


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    monkeypatch.setattr("anechoic.federated.store.RunStore.rows_between", lambda *_: 2)


def server_at(state):
    return small_server(
        federated.MinSeparation(2, 3), state=state, key=KEY, min_replies=2, optimizer=federated.FedAdam(0.1)
    )


def run(state, log):
    """What an operator's program does: go on where the state stands, and log what was sent and released."""
    with server_at(state) as server:
        while server.step < ROUNDS:
            asked = server.ask(CLIENTS)
            note(log, ["asked", asked.step, asked.attempt, *asked.clients])
            silent = asked.step == 1 and asked.attempt == 0  # a short round on the way
            for client in () if silent else asked.clients[:2]:
                assert asked.add(client, update_of(client, asked.step)) is None
                assert asked.add(client, None) is not None
            closed = server.close(asked)
            if closed.released:
                note(log, ["released", asked.step, closed.update.tobytes().hex(), bits_of(closed.model)])
        return bits_of(server.model), server.report()


def bits_of(model):
    return b"".join(array.tobytes() for array in model.values()).hex()


def note(log, entry):
    if log is not None:
        with open(log, "ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")


def try_kills(folder, kills):
    """Deaths; after each the run goes on, and is held against one in memory that was never killed."""
    expected = folder / "expected.log"
    model, report = run(None, expected)
    wanted = [json.loads(line) for line in expected.read_bytes().splitlines()]
    total = lines_of_a_run(run, folder / "all", None, rooms=ROOMS)
    deaths = 0
    for place in places(total, kills):
        state, log = folder / f"{place}", folder / f"{place}.log"
        deaths += killed_at(run, place, state, log, rooms=ROOMS)
        found_model, found_report = run(state, log)
        entries = [json.loads(line) for line in log.read_bytes().splitlines()]
        # whatever was sent or shown, before the death or after it, is that of the run without one: the same
        # clients for each round, the same noise, the same model, bit for bit
        assert all(entry in wanted for entry in entries), f"killed before line {place}"
        assert {tuple(entry[:2]) for entry in wanted} == {tuple(entry[:2]) for entry in entries} | lost(
            wanted, entries
        )
        assert found_model == model
        assert found_report.ledger == report.ledger  # nobody is forgotten, and nobody charged twice
        assert (found_report.released, found_report.short) == (report.released, report.short)
        assert found_report.refused == report.refused
        with server_at(state) as server:
            assert server.step == ROUNDS and bits_of(server.model) == model
        assert len(list(state.iterdir())) <= 4  # the state file and its lock, one model, one memory of noise
    return deaths


def lost(wanted, entries):
    """At most one entry: committed, but not logged before the death."""
    missing = [entry for entry in wanted if entry not in entries]
    assert len(missing) <= 1
    return {tuple(entry[:2]) for entry in missing}


def test_killed_at_some_places(tmp_path):
    assert try_kills(tmp_path, 4) >= 3


@pytest.mark.slow
def test_killed_at_many_places(tmp_path):
    assert try_kills(tmp_path, 60) >= 55

"""kill -9 between any two instructions: the same clients, rows and models, and nobody is forgotten."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

import anechoic.federated
import anechoic.runs
from anechoic import federated
from tests.federated.small import KEY, small_server, update_of

ROOMS = tuple(str(Path(room.__file__).parent) for room in (anechoic.federated, anechoic.runs))
ROUNDS = 4
CLIENTS = range(11)


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    monkeypatch.setattr("anechoic.federated.store.RunStore.rows_between", lambda *_: 2)


def server_at(state, counter):
    return small_server(
        federated.CoolDown(2, 3),
        state=state,
        counter=counter,
        key=KEY,
        min_replies=2,
        optimizer=federated.FedAdam(0.1),
    )


def run(state, counter, log):
    """What an operator's program does: go on where the state stands, and log what was sent and released."""
    with server_at(state, counter) as server:
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


def killed_at(line, state, counter, log):
    """Run in a child process that dies before the given line of the rooms; whether it died."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame, event, _):
            nonlocal left
            if not frame.f_code.co_filename.startswith(ROOMS):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            run(state, counter, log)
        finally:
            sys.settrace(None)
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def lines_of_a_run(folder):
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(ROOMS):
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        run(folder / "all", folder / "all.counter", None)
    finally:
        sys.settrace(None)
    return count


def try_kills(folder, kills):
    """Deaths; after each the run goes on, and is held against one in memory that was never killed."""
    expected = folder / "expected.log"
    model, report = run(None, None, expected)
    wanted = [json.loads(line) for line in expected.read_bytes().splitlines()]
    total = lines_of_a_run(folder)
    deaths = 0
    for number in range(kills):
        place = 1 + number * (total - 1) // max(1, kills - 1)
        state, counter, log = (folder / f"{number}{end}" for end in ("", ".counter", ".log"))
        deaths += killed_at(place, state, counter, log)
        found_model, found_report = run(state, counter, log)
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
        with server_at(state, counter) as server:
            assert server.step == ROUNDS and bits_of(server.model) == model
        assert len(list(state.iterdir())) <= 3  # the state file, one model, one memory of noise
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
    assert try_kills(tmp_path, 120) >= 115

"""Releases are exactly what they must be: sums on the grid plus row t of C^-1 Z, over the constant."""

import copy
import os
import threading
import time

import numpy as np
import pytest

import anechoic as an
from anechoic import federated
from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError, MismatchError
from anechoic.federated import to_grid
from tests.federated.small import (
    BITS,
    CLIP,
    KEY,
    ROUNDS,
    run_round,
    small_mechanism,
    small_model,
    small_server,
    update_of,
    vector_of,
)


def expected_update(clients, step, row, per_round):
    total = sum(
        (to_grid(vector_of(client, step), clip_norm=CLIP, grid_bits=BITS) for client in clients),
        np.zeros(5, np.int64),
    )
    return (total + row) * (CLIP * 2.0**-BITS / per_round)


def test_rows_are_those_of_the_inverse(recorder):
    """Multiplied by C the rows are i.i.d.: neighbours are uncorrelated, and have the std of the mechanism."""
    wide = {"w": np.zeros(4000)}
    policy = federated.MinSeparation(3, 3)
    mechanism = small_mechanism(policy, 3)
    server = federated.Server(wide, mechanism=mechanism, policy=policy, clients_per_round=3, key=KEY)
    for _ in range(ROUNDS):
        server.close(_answered_with_nothing(server))
    assert server.finished
    with pytest.raises(HorizonError, match=r"all rounds of this run \(9\)"):
        server.ask(range(30))
    fresh = mechanism.strategy.to_dense() @ np.array(recorder.rows) * 2.0**-BITS
    np.testing.assert_allclose(fresh.std(axis=1), mechanism.noise_std, rtol=0.06)
    assert np.abs(np.corrcoef(fresh) - np.eye(ROUNDS)).max() < 0.07


def _answered_with_nothing(server):
    asked = server.ask(range(99))
    for client in asked.clients:
        asked.add(client, np.zeros(server.layout.dimension, np.int64))
    return asked


def test_integers_count_as_arrays_do():
    updates = []
    for on_the_grid in (False, True):
        server = small_server()
        asked = server.ask(range(9))
        for client in asked.clients:
            reply = update_of(client, 0)
            if on_the_grid:
                reply = to_grid(vector_of(client, 0), clip_norm=CLIP, grid_bits=BITS)
            assert asked.add(client, reply, round=asked.config["round"]) is None
        updates.append(server.close(asked).update)
    np.testing.assert_array_equal(*updates)


def test_a_short_round_releases_nothing_uses_no_row_and_is_charged(recorder):
    server = small_server(min_replies=2)
    before = server.model
    asked = server.ask(range(20))
    asked.add(asked.clients[0], update_of(asked.clients[0], 0))
    closed = server.close(asked)
    assert not closed.released and closed.update is None and closed.answered == 1
    assert server.step == 0 and recorder.rows == []
    for name, array in before.items():
        np.testing.assert_array_equal(server.model[name], array)
    everybody = server.clients(range(20))
    assert (~server._ledger.allowed(everybody, 2)).sum() == 3 and server._ledger.allowed(everybody, 3).all()
    again = server.ask(range(20))
    assert (again.step, again.attempt, again.resumed) == (0, 1, False)
    assert again.config["round"] != asked.config["round"]
    for client in again.clients:
        assert again.add(client, update_of(client, 0)) is None
    closed = server.close(again)
    np.testing.assert_array_equal(closed.update, expected_update(again.clients, 0, recorder.rows[0], 3))
    assert server.step == 1 and len(recorder.rows) == 1


def test_a_cohort_that_was_short_may_be_asked_again_in_its_step():
    server = small_server(federated.Cohorts(2), min_replies=3)
    ledger = server._ledger
    first = [id for id in range(40) if ledger.allowed(ledger.clients([id]), 0).all()][:3]
    asked = server.ask(first)
    assert not server.close(asked).released
    assert run_round(server, first)[1].released
    with pytest.raises(federated.TooFewClients):
        server.ask(first)  # step 1 is the other cohort's


def test_shortness_depends_on_who_answered_not_on_what():
    server = small_server(min_replies=3)
    asked = server.ask(range(20))
    for client in asked.clients:
        assert asked.add(client, {"w": np.full((2, 2), np.nan, np.float32), "b": np.array(0.0)}) is not None
    closed = server.close(asked)
    assert closed.released and closed.answered == 3
    assert closed.reasons == {"a number that is not finite": 3}


def test_an_open_round_is_asked_for_again_with_the_same_clients():
    server = small_server()
    asked = server.ask(range(20))
    asked.add(asked.clients[0], update_of(asked.clients[0], 0))
    again = server.ask([])
    assert again.resumed and again.clients == asked.clients and again.answered == 0
    assert again.config == asked.config
    assert asked.add(asked.clients[1], update_of(asked.clients[1], 0)) == "late: the round is over"
    with pytest.raises(DesynchronizedError, match="not the open one"):
        server.close(asked)
    server.close(again)
    with pytest.raises(DesynchronizedError, match="not the open one"):
        server.close(again)


def test_starved_says_how_many_and_charges_nobody():
    server = small_server(min_replies=2)
    run_round(server, range(3))
    before = server._ledger.summary()
    with pytest.raises(federated.TooFewClients, match="4 clients that are there 1 may take part") as caught:
        server.ask([0, 1, 2, 3])
    assert (caught.value.step, caught.value.there, caught.value.allowed) == (1, 4, 1)
    assert caught.value.needed == 2 and "If there are no others, the run is over" in str(caught.value)
    assert server._ledger.summary() == before
    asked = server.ask([0, 1, 2, 3, 4])  # smaller, with the same divisor
    assert set(asked.clients) == {3, 4}


def test_whom_to_ask_follows_from_the_key_the_step_and_who_is_there():
    one, other = small_server(), small_server()
    found = set(one.ask(range(50)).clients)
    assert found == set(other.ask([*range(25, 50), *range(25), 3]).clients)  # in whatever order they come
    different = small_server(key=bytes(32)).ask(range(50)).clients
    assert set(different) != found
    known = small_server()
    assert set(known.ask(known.clients(range(50))).clients) == found


def test_config_is_plain_and_a_model_is_a_copy():
    server = small_server()
    asked = server.ask(range(9))
    assert all(type(value) in (int, float, str) for value in asked.config.values())
    assert (asked.config["clip_norm"], asked.config["grid_bits"]) == (CLIP, BITS) == (CLIP, server.grid_bits)
    with pytest.raises(ValueError, match="read-only"):
        asked.model["w"][:] = 9  # clients of one process would train on each other's weights
    server.model["w"][:] = 9
    assert server.model["w"][0, 0] == 1
    assert server.close(asked).model["w"].flags.writeable


def test_a_server_cannot_be_copied_or_shared_with_a_fork():
    server = small_server()
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(server)
    server.owner._number = os.getpid() + 1
    with pytest.raises(GuaranteeError, match="is a fork"):
        server.ask(range(9))
    server.shut()
    with pytest.raises(GuaranteeError, match="this server is closed"):
        server.ask(range(9))


def test_two_threads_that_close_one_round_release_it_once(monkeypatch):
    """Two rows for one sum would be two releases of it."""
    server = small_server()
    asked, end, outcomes = server.ask(range(9)), server._end, []
    for client in asked.clients:
        asked.add(client, {name: np.zeros_like(value) for name, value in server.model.items()})

    def slowly(*arguments):
        time.sleep(0.1)
        return end(*arguments)

    def close():
        try:
            outcomes.append(server.close(asked).released)
        except DesynchronizedError:
            outcomes.append(None)

    monkeypatch.setattr(server, "_end", slowly)
    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [None, True]
    assert server.step == 1


def test_after_a_round_that_failed_half_way_no_row_is_used():
    """A row was drawn: the next one would be that of another step."""
    server = small_server(optimizer=federated.SGD(lambda step: -1.0))
    asked = server.ask(range(9))
    asked.add(asked.clients[0], update_of(0, 0))
    with pytest.raises(ValueError, match=r"lr gives -1\.0"):
        server.close(asked)
    for again in (lambda: server.ask(range(9)), lambda: server.close(asked)):
        with pytest.raises(GuaranteeError, match="failed half-way"):
            again()


POLICY = federated.MinSeparation(3, 3)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"mechanism": None}, ValueError, "must be an anechoic.Mechanism"),
        ({"policy": an.participation.MinSep(3, 3)}, ValueError, "must be Cohorts"),
        ({"clients_per_round": 4}, MismatchError, "divides by 3, but clients_per_round=4"),
        ({"clients_per_round": 0}, ValueError, "clients_per_round=0"),
        ({"policy": federated.MinSeparation(4, 3)}, MismatchError, "enforces MinSep"),
        ({"policy": federated.Cohorts(3)}, MismatchError, "enforces Cyclic"),
        ({"clip_norm": 1.0}, MismatchError, "the mechanism's is 0.5"),
        ({"min_replies": 4}, ValueError, "exceeds clients_per_round"),
        ({"min_replies": 0}, ValueError, "min_replies=0"),
        ({"optimizer": 1.0}, ValueError, "must be a ServerOptimizer"),
        ({"mechanism": small_mechanism(POLICY, 3, unit="example")}, MismatchError, "protects one example"),
        ({"key": bytes(16)}, ValueError, "has 16 bytes"),
        ({"exclude": ()}, ValueError, "'seen' has dtype"),
    ],
)
def test_what_does_not_fit_is_refused(options, kind, words):
    settings = {
        "mechanism": small_mechanism(POLICY, 3),
        "policy": POLICY,
        "clients_per_round": 3,
        "exclude": ["seen"],
    }
    with pytest.raises(kind, match=words):
        federated.Server(small_model(), **{**settings, **options})


def test_amplification_is_refused():
    sampling = an.sampling.Poisson(examples=1000, batch_size=3, steps=ROUNDS)
    mechanism = an.calibrate(
        an.strategies.Identity(ROUNDS), sampling=sampling, noise_multiplier=1.0, delta=1e-6, unit="client"
    )
    with pytest.raises(MismatchError, match="claims amplification"):
        federated.Server(
            small_model(), mechanism=mechanism, policy=POLICY, clients_per_round=3, exclude=["seen"]
        )

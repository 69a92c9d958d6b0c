"""A whole run against brute force, which finds each of the faults that other servers have had."""

import numpy as np
import pytest

from anechoic import federated
from anechoic.federated.participation_policy import MinSeparation
from anechoic.federated.server import Server
from anechoic.federated.store import RunStore
from anechoic.federated.vectors import Vectors
from anechoic.keys import derive
from anechoic.noise.grid import spacing
from anechoic.participation import accounts
from tests.federated.small import BITS, CLIP, KEY, ROUNDS, run_round, small_server, vector_of

CLIENTS, PER_ROUND = 13, 4
OPTIMIZER = federated.SGD(0.5, momentum=0.9)
FIRST = accounts.first_step


def rows_of(mechanism):
    """All rows of noise on the grid, made from the key without a server."""
    key = derive(KEY, f"federated noise {mechanism.fingerprint}", size=32)
    stream = mechanism.stream(5, key=derive(key, "opening ", size=32))
    state, rows = stream.init(), []
    for _ in range(ROUNDS):
        row, state = stream.next(state)
        rows.append(row)
    return rows


def audit(folder, policy):
    """A run that is opened anew before every round, with silent clients and starved and short rounds."""
    server = small_server(policy, PER_ROUND, optimizer=OPTIMIZER)
    rows = rows_of(server.mechanism)
    taken = {}
    model, velocity = np.array([1.0, 2, 3, -4, 0.5]), np.zeros(5)
    for step in range(ROUNDS):
        with small_server(
            policy, PER_ROUND, optimizer=OPTIMIZER, state=folder / "run", min_replies=2
        ) as server:
            assert server.step == step
            asked, closed = run_round(server, range(CLIENTS), silent=step % 3)
        for client in asked.clients:
            taken.setdefault(client, []).append(step)
            assert policy.participation.allows(taken[client], ROUNDS), f"step {step} asks {asked.clients}"
        assert closed.released
        total = np.zeros(5)
        for client in asked.clients[step % 3 :]:
            vector = vector_of(client, step)
            clipped = vector * min(1.0, CLIP / np.linalg.norm(vector))
            total += np.trunc(clipped * 2.0**BITS / CLIP)
        # clipping in float64 may differ in the last integer of an entry
        expected = (total + rows[step]) * CLIP * 2.0**-BITS / PER_ROUND
        np.testing.assert_allclose(closed.update, expected, rtol=0, atol=20 * CLIP * 2.0**-BITS)
        velocity = 0.9 * velocity + closed.update
        model = model + 0.5 * velocity
        np.testing.assert_array_equal(closed.model["b"], model[4])
        np.testing.assert_array_equal(closed.model["w"].ravel(), model[:4].astype(np.float32))


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    monkeypatch.setattr("anechoic.federated.store.RunStore.rows_between", lambda *_: 2)


@pytest.mark.parametrize("policy", [MinSeparation(2, 3), MinSeparation(3), federated.Cohorts(2)])
def test_the_whole_run_is_as_it_must_be(tmp_path, policy):
    audit(tmp_path, policy)


def weighted(patch):
    """Weights by number of examples: one client's update counts twice."""
    real = federated.to_grid

    def twice(update, **options):
        return real(update, **options) * (1 + (update[0] > 0))

    patch.setattr("anechoic.federated.round.to_grid", twice)


def released_as(patch, release):
    patch.setattr(Server, "_release", release)


def noise_after_momentum(patch):
    def release(server, standing, asked):
        noise = server._noise.next()
        scale = spacing(CLIP, BITS) / PER_ROUND
        standing.model, standing.memory = OPTIMIZER.advance(
            standing.model, asked.total * scale, standing.memory, standing.step
        )
        standing.model = standing.model + 0.5 * noise * scale
        standing.step += 1
        server._state.save_model(standing)
        return (asked.total + noise) * scale

    released_as(patch, release)


def noise_not_advanced(patch):
    """A row of noise is used again after each restart."""

    def forgetful(server):
        server._snapshot = 0

    patch.setattr(Server, "_remember", forgetful)


def divisor_by_replies(patch):
    real = Server._release

    def release(server, standing, asked):
        server.clients_per_round = asked.answered
        return real(server, standing, asked)

    released_as(patch, release)


def one_round_too_early(patch):
    patch.setattr(accounts, "first_step", lambda rule, step, last, count: FIRST(rule, step, last - 1, count))


def one_time_too_often(patch):
    patch.setattr(accounts, "first_step", lambda rule, step, last, count: FIRST(rule, step, last, count - 1))


def ledger_lost(patch):
    patch.setattr(RunStore, "entries", lambda _: ())


def momentum_lost(patch):
    real = Vectors.read

    def read(vectors, written, again):
        found = real(vectors, written, again)
        return {name: 0 * array if name.startswith("memory") else array for name, array in found.items()}

    patch.setattr(Vectors, "read", read)


def not_clipped(patch):
    def whole(update, **_):
        return np.trunc(np.asarray(update) * 2.0**BITS / CLIP).astype(np.int64)

    patch.setattr("anechoic.federated.round.to_grid", whole)


@pytest.mark.parametrize(
    "fault",
    [
        weighted,
        noise_after_momentum,
        noise_not_advanced,
        divisor_by_replies,
        one_round_too_early,
        one_time_too_often,
        ledger_lost,
        momentum_lost,
        not_clipped,
    ],
)
def test_every_fault_is_found(tmp_path, monkeypatch, fault):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        audit(tmp_path, MinSeparation(2, 3))

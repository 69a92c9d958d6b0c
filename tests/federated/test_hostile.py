"""A thousand malformed and hostile replies: none moves a model beyond the clip bound or stops a run."""

import logging

import numpy as np

from anechoic import federated
from anechoic.federated import to_grid
from tests.federated.small import BITS, CLIP, small_mechanism, update_of, vector_of

PER_ROUND, ROUNDS = 40, 9
GOOD = {"w": np.ones((2, 2), np.float32), "b": np.array(1.0)}


def malformed(rng):
    """One reply that is no update; each kind comes many times."""
    n = int(rng.integers(1, 9))
    odd = rng.choice([np.nan, np.inf, -np.inf])
    spoiled = np.ones((2, 2), np.float32)
    spoiled[n % 2, 0] = odd
    kinds = [
        None,
        n,
        "update",
        b"\0" * n,
        [1.0] * n,
        {},
        {"w": GOOD["w"]},
        {**GOOD, "w": spoiled},
        {**GOOD, "b": np.array(odd)},
        {**GOOD, "w": np.ones((n, 3), np.float32)},
        {**GOOD, "w": np.ones(4, np.float32)},
        {**GOOD, "w": np.ones((2, 2))},
        {**GOOD, "w": np.ones((2, 2), np.complex64)},
        {**GOOD, "w": np.ones((2, 2), object)},
        {**GOOD, "w": np.ones((2, 2), np.int32)},
        {**GOOD, "w": np.array([["1", "2"], ["3", "4"]])},
        {**GOOD, "w": np.zeros((2, 2), [("x", "f4")])},
        {**GOOD, "w": np.zeros((0, 2), np.float32)},
        {**GOOD, "w": np.ma.masked_array(np.full((2, 2), 1e9, np.float32), mask=True)},
        {**GOOD, "w": np.ones((2, 2), np.float32).view(np.recarray)},
        {**GOOD, "w": [[1.0, 1.0], [1.0, 1.0]]},
        {**GOOD, "b": 1.0},
        {**GOOD, "num-examples": np.array(-n)},
        {**GOOD, 3: np.array(1.0)},
        np.full(5, 2**BITS, np.int64),
        np.full(5, 2**32, np.int64),  # whose squares are 0 in int64
        np.array([-(2**63), 0, 0, 0, 0], np.int64),
        np.array([2**62, 2**62, 2**62, 2**62, 0], np.int64),
        np.array([2**63 - 1] * 5, np.int64),
        np.array([2**BITS, 1, 0, 0, 0], np.int64),
        np.full(5, 2**31 - 1, np.int32),  # whose squares are 1 in int32
        np.zeros(5, np.uint64),
        np.zeros(5, object),
        np.zeros(5),
        np.zeros((5, 1), np.int64),
        np.zeros(n + 5, np.int64),
        np.zeros(5, ">i8"),
        np.ma.masked_array(np.full(5, 2**40), mask=True),
    ]
    return kinds[rng.integers(len(kinds))]


def hostile(rng):
    """One reply in the right form that is as large as can be, or odd."""
    sign = rng.choice([-1.0, 1.0])
    tiny = np.nextafter(0.0, 1.0)
    kinds = [
        {"w": np.full((2, 2), sign * 3e38, np.float32), "b": np.array(sign * 1.7e308)},
        {"w": np.zeros((2, 2), np.float32), "b": np.array(sign * tiny)},
        {"w": np.full((2, 2), sign, np.float32)[::-1].T, "b": np.float64(sign)},
        {**GOOD, "seen": np.array(-7)},  # what is not trained is not read
        np.array([int(sign) * (2**BITS - 2), 0, 0, 0, 0]),
        np.zeros(5, np.int64),
        np.zeros(5, np.int16),
    ]
    return kinds[rng.integers(len(kinds))]


NOBODY = [None, "nobody", -1, 10**30, float("nan"), (1, 2), [3], {}, object(), np.array([1, 2]), b"", True]


def _server_of(per_round, **options):
    policy = federated.MinSeparation(2)
    return federated.Server(
        {"w": np.zeros((2, 2), np.float32), "b": np.array(0.0), "seen": np.array(7)},
        mechanism=small_mechanism(policy, per_round),
        policy=policy,
        clients_per_round=per_round,
        exclude=["seen"],
        **options,
    )


def test_a_thousand_replies_change_nothing_beyond_the_clip_bound(recorder, caplog, tmp_path):
    caplog.set_level(logging.CRITICAL)
    rng = np.random.default_rng(7)
    server = _server_of(PER_ROUND, state=tmp_path / "run")
    sent, before = 0, []
    for step in range(ROUNDS):
        asked = server.ask([f"client {i}" for i in range(3 * PER_ROUND)])
        assert asked.step == step
        honest = np.zeros(5, np.int64)
        names = dict.fromkeys(asked.clients)
        accepted = 0
        for place, client in enumerate(names):
            for _ in range(2):  # whatever is sent for somebody else, or for another round, counts for nobody
                stranger = NOBODY[rng.integers(len(NOBODY))]
                assert asked.add(stranger, GOOD) == "a client that was not asked"
                sent += 1
            if before:
                old, its_clients = before[rng.integers(len(before))]
                assert old.add(its_clients[place], GOOD) == "late: the round is over"
                assert asked.add(client, GOOD, round=old.config["round"]) == "a reply to another round"
                sent += 2
            if place % 3 == 0:
                assert asked.add(client, malformed(rng)) is not None
                sent += 1
            elif place % 3 == 1:
                accepted += asked.add(client, hostile(rng), round=asked.config["round"]) is None
                sent += 1
            else:
                assert asked.add(client, update_of(place, step)) is None
                honest += to_grid(vector_of(place, step), clip_norm=CLIP, grid_bits=BITS)
            assert asked.add(client, GOOD) == "a second reply of one client"
            sent += 1
        moved = [int(entry) for entry in asked.total - honest]
        assert sum(entry**2 for entry in moved) <= (accepted * 2**BITS) ** 2
        closed = server.close(asked)
        assert closed.released and closed.answered == PER_ROUND
        assert np.isfinite(server.model["w"]).all() and server.model["seen"] == 7
        expected = (asked.total + recorder.rows[step]) * (CLIP * 2.0**-BITS / PER_ROUND)
        np.testing.assert_array_equal(closed.update, expected)
        before.append((asked, asked.clients))
    assert sent >= 1000 and server.finished
    refused = server.report().refused
    assert sum(refused.values()) > 700 and len(refused) <= 7  # kinds, not what clients make up
    server.shut()


def test_every_kind_of_malformed_reply_is_refused_with_a_reason():
    """By kind: the reason names it, and the round goes on."""
    rng, reasons = np.random.default_rng(1), set()
    asked = _server_of(150).ask(range(150))
    for client in asked.clients:
        reasons.add(asked.add(client, malformed(rng)).partition(":")[0])
        assert not asked.total.any()
    assert asked.answered == 150 and reasons == {
        "arrays that are not those of the model",
        "a number that is not finite",
        "an error or nothing readable in place of an update",
        "no update on the grid",
    }

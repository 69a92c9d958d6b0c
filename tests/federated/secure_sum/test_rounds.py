"""Whole rounds: the masked sum is the plain sum, whoever falls silent when, and else nothing."""

from itertools import chain, combinations, product

import numpy as np
import pytest

from anechoic.federated.secure_sum import Aborted, Stage, SumServer
from anechoic.federated.secure_sum.messages import Reason
from anechoic.federated.secure_sum.terms import least_threshold
from tests.federated.secure_sum.driver import GRID_BITS, carry, new_round, one_stage, vectors_for

STAGES = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASKING]


def subsets(names):
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def expected_sum(count, threshold, vectors, silent):
    """What the round has to give, and whose vectors; None where it has to end without a result."""
    left, summed = set(range(count)), None
    for stage in STAGES:
        left -= set(silent.get(stage, ()))
        if len(left) < threshold:
            return None
        if stage is Stage.MASKED:
            summed = tuple(sorted(left))
    return sum((vectors[name] for name in summed), np.zeros_like(vectors[0])), summed


def check(count, threshold, silent, dimension=3, **arguments):
    vectors = vectors_for(count, dimension, seed=count)
    server, clients = new_round(count, dimension, threshold=threshold, **arguments)
    carry(server, clients, vectors, silent)
    expected = expected_sum(count, threshold, vectors, silent)
    if expected is None:
        assert "are needed" in server.aborted and server.requests() == {}
        with pytest.raises(Aborted, match=f"{threshold} are needed"):
            server.result()
    else:
        found = server.result()
        assert found.vector.dtype == np.int64
        np.testing.assert_array_equal(found.vector, expected[0])
        assert found.clients == expected[1] and found.round_id == server.terms.round_id
    assert server.stage is None and server.waiting == ()


@pytest.mark.parametrize("dimension", [0, 1, 3, 1000])
@pytest.mark.parametrize("count", range(2, 8))
def test_the_masked_sum_is_the_sum(count, dimension):
    check(count, least_threshold(count), {}, dimension)


@pytest.mark.parametrize("grid_bits", [2, 20, 28, 29, 30])
def test_both_rings_at_the_bound(grid_bits):
    server, clients = new_round(4, 2, grid_bits)
    vectors = [np.array([2**grid_bits, 0]), np.array([0, -(2**grid_bits)])] * 2
    carry(server, clients, vectors)
    assert server.result().vector.tolist() == [2 * 2**grid_bits, -2 * 2**grid_bits]
    assert server.terms.ring_bits == (32 if grid_bits <= 28 else 64)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.few(2)
def test_every_subset_of_four_may_fall_silent_at_every_stage(stage):
    for silent in subsets(range(4)):
        check(4, 3, {stage: silent})


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [4, 5])
@pytest.mark.parametrize("stage", STAGES)
def test_every_subset_of_five_may_fall_silent_at_every_stage(stage, threshold):
    for silent in subsets(range(5)):
        check(5, threshold, {stage: silent})


@pytest.mark.slow
def test_every_schedule_of_four():
    for when in product([*STAGES, None], repeat=4):
        check(4, 3, {stage: [n for n in range(4) if when[n] is stage] for stage in STAGES})


def test_one_falls_silent_in_each_stage():
    check(10, 7, {Stage.SHARES: [1], Stage.MASKED: [4], Stage.UNMASKING: [0]}, 50)


def test_ids_are_whatever_the_transport_has():
    names = ["a", 7, b"key", (1, "x")]
    server = SumServer(names, dimension=3, grid_bits=GRID_BITS, smallest_sum=2)
    _, clients = new_round(4, 3)
    vectors = dict(zip(names, vectors_for(4, 3), strict=True))
    carry(server, dict(zip(names, clients.values(), strict=True)), vectors, {Stage.MASKED: ["a"]})
    assert server.result().clients == (7, b"key", (1, "x"))


def test_an_aborted_server_holds_nothing_that_it_was_sent():
    vectors = vectors_for(3, 4)
    server, clients = new_round(3, 4)
    carry(server, clients, vectors, until=Stage.UNMASKING)
    one_stage(server, clients, vectors, silent=[1])
    assert not server.advance()
    assert server._open is None and server._result is None
    assert "2 of 3 clients answered the stage unmasking, 3 are needed" in server.aborted
    assert server.receive(1, {}).reason is Reason.STAGE
    assert not server.advance()


def test_the_result_is_asked_for_too_early():
    server, _ = new_round(3)
    with pytest.raises(ValueError, match="advance"):
        server.result()


def test_a_silent_client_is_asked_again():
    vectors = vectors_for(3, 5)
    server, clients = new_round(3)
    carry(server, clients, vectors, until=Stage.MASKED)
    one_stage(server, {**clients}, vectors, silent=[2])
    assert server.waiting == (2,) and list(server.requests()) == [2]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"clients": ["a"]}, "smallest_sum=2 of 1 clients"),
        ({"clients": ["a", "b", "a"]}, "'a' is asked twice"),
        ({"threshold": 2}, "threshold=2 must lie between 3, more than two thirds, and clients=4"),
        ({"threshold": 5}, "threshold=5"),
        ({"grid_bits": 31}, "grid_bits=31 must be at most 30"),
        ({"grid_bits": -1}, "grid_bits=-1"),
        ({"dimension": -1}, "dimension=-1"),
        ({"round_id": b""}, "round_id"),
        ({"context": "model"}, "context"),
        ({"smallest_sum": 5}, "fewer than smallest_sum=5 of 4 clients"),
        ({"smallest_sum": 4, "threshold": 3}, "fewer than smallest_sum=4"),
        ({"smallest_sum": 1}, "smallest_sum=1"),
    ],
)
def test_bad_settings_are_refused(arguments, why):
    given = {"clients": list("abcd"), "dimension": 3, "grid_bits": 10, "smallest_sum": 2, **arguments}
    with pytest.raises(ValueError, match=why):
        SumServer(given.pop("clients"), **given)


def test_the_least_threshold_lets_a_third_drop_out():
    assert [least_threshold(n) for n in (2, 3, 4, 5, 6, 7, 100)] == [2, 3, 3, 4, 5, 5, 67]

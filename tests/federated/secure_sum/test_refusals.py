"""What may not be taken is refused with its reason, on both sides, and changes nothing."""

from collections import Counter

import numpy as np
import pytest

from anechoic.federated.secure_sum import Stage, SumClient, SumServer
from anechoic.federated.secure_sum.messages import Reason, Refused
from tests.federated.secure_sum.driver import (
    GRID_BITS,
    answer,
    carry,
    new_client,
    new_round,
    vectors_for,
)

STAGES = list(Stage)
VECTORS = vectors_for(4, 5)


def mutations(message):
    """Messages that differ from this one in one field: gone, of another type, longer, shorter, empty."""
    yield from (None, [], b"", 7, {}, {"stage": 1})
    for field, value in message.items():
        yield {name: v for name, v in message.items() if name != field}
        others = [None, "text", 1.5, True, -1, 2**70, [], [None], {}, np.int64(1)]
        if isinstance(value, bytes):
            others += [b"", value + b"\0", value[:-1], value.decode("latin-1"), bytearray(value)]
        if isinstance(value, list):
            others += [
                value[:-1],
                [*value, value[-1]],
                tuple(value),
                [[v] for v in value],
                [*value[:-1], None],
            ]
            if isinstance(value[0], bytes):
                others += [[v + b"\0" for v in value], [v[:-1] for v in value], [0] * len(value)]
            else:
                others += [
                    value[::-1],
                    [value[0]] * len(value),
                    [0, *value[1:]],
                    [*value[:-1], 99],
                    [True, *value[1:]],
                ]
        for other in others:
            if type(other) is not type(value) or other != value:
                yield {**message, field: other}


def proper(stage, message, changed):
    """Whether a client cannot tell what was changed from a good message: another round, fewer survivors."""
    if stage is Stage.KEYS:
        return type(changed["round"]) is bytes and changed["round"] not in (b"", message["round"])
    return stage is Stage.UNMASKING and str(changed["survivors"]) == "[1, 2, 3]"


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_refuses_what_is_malformed_and_then_answers_what_is_not(stage):
    server, clients = new_round(4, threshold=3)
    carry(server, clients, VECTORS, until=stage)
    message, before = server.requests()[1], clients[1].memory()
    reasons = Counter()
    for wrong in mutations(message):
        if isinstance(wrong, dict) and wrong.keys() == message.keys() and proper(stage, message, wrong):
            continue
        reply = clients[1].answer(wrong, VECTORS[1])
        assert isinstance(reply, Refused), wrong
        reasons[reply.reason] += 1
        assert clients[1].memory() == before
    assert reasons[Reason.MALFORMED] > 20 and reasons[Reason.ROUND] > 0
    carry(server, clients, VECTORS)
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS))


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_refuses_what_is_malformed_and_then_takes_what_is_not(stage):
    server, clients = new_round(4, threshold=3)
    carry(server, clients, VECTORS, until=stage)
    message = answer(clients[1], server.requests()[1], VECTORS[1])
    count = 0
    for wrong in mutations(message):
        found = server.receive(1, wrong)
        assert isinstance(found, Refused), wrong
        assert str(found).startswith(found.reason.value) and found.detail
        count += 1
    assert count > 30 and server.refused.total() == count
    assert server.receive(1, message) is None
    for name, request in server.requests().items():
        assert server.receive(name, answer(clients[name], request, VECTORS[name])) is None
    server.advance()
    carry(server, clients, VECTORS)
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS))


def recorded(count=3, **arguments):
    """A whole round with all that was sent: stage → name → (request, reply)."""
    server, clients = new_round(count, **arguments)
    sent = {}
    while (stage := server.stage) is not None:
        sent[stage] = {}
        for name, request in server.requests().items():
            reply = answer(clients[name], request, VECTORS[name])
            sent[stage][name] = request, reply
            assert server.receive(name, reply) is None
        server.advance()
    return server, clients, sent


def test_answers_of_other_rounds_stages_and_clients_are_refused():
    _, _, old = recorded()
    server, clients = new_round(3)
    while (stage := server.stage) is not None:
        assert server.receive(0, old[stage][0][1]).reason is Reason.ROUND
        assert server.receive("nobody", old[stage][0][1]).reason is Reason.FOREIGN
        replies = {n: answer(clients[n], r, VECTORS[n]) for n, r in server.requests().items()}
        for other in set(Stage) - {stage}:
            assert server.receive(0, {**replies[0], "stage": int(other)}).reason is Reason.STAGE
        for name, reply in replies.items():
            assert server.receive(name, reply) is None
            assert server.receive(name, reply).reason is Reason.DUPLICATE
        server.advance()
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS[:3]))
    assert server.refused == {
        Reason.ROUND: 4,
        Reason.FOREIGN: 4,
        Reason.STAGE: 12,
        Reason.DUPLICATE: 12,
    }


def test_old_messages_under_the_new_round_s_id_do_not_help():
    """A server that gives two rounds one id, or a client that writes the new id on old answers."""
    _, _, old = recorded(round_id=b"r")
    server, clients = new_round(3, round_id=b"r")
    requests = server.requests()
    assert not isinstance(clients[0].answer(requests[0]), Refused)
    assert clients[0].answer(old[Stage.SHARES][0][0]).reason is Reason.KEYS
    carry(*(fresh := new_round(3, round_id=b"r")), VECTORS, until=Stage.MASKED)
    assert fresh[1][0].answer(old[Stage.MASKED][0][0], VECTORS[0]).reason is Reason.SHARE


def test_a_late_answer_is_refused():
    server, clients = new_round(4, threshold=3)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    late = answer(clients[0], server.requests()[0], VECTORS[0])
    for name in (1, 2, 3):
        server.receive(name, answer(clients[name], server.requests()[name], VECTORS[name]))
    server.advance()
    assert server.receive(0, late).reason is Reason.STAGE
    assert server.receive(0, {**late, "stage": int(Stage.UNMASKING)}).reason is Reason.STAGE  # dropped out
    carry(server, clients, VECTORS)
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS[1:]))


def test_a_client_answers_each_stage_once_and_in_order():
    _, clients, sent = recorded()
    for stage in sent:
        assert clients[0].answer(sent[stage][0][0], VECTORS[0]).reason is Reason.DUPLICATE
    fresh = new_client()
    for stage in (Stage.SHARES, Stage.MASKED, Stage.UNMASKING):
        assert fresh.answer(sent[stage][0][0], VECTORS[0]).reason is Reason.STAGE
    fresh.answer(sent[Stage.KEYS][0][0])
    for stage in (Stage.MASKED, Stage.UNMASKING):
        assert fresh.answer({**sent[Stage.MASKED][0][0], "stage": int(stage)}).reason is Reason.STAGE
    assert fresh.answer(new_round(3)[0].requests()[0]).reason is Reason.ROUND


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"dimension": 6}, "dimension is 5, but this client has 6"),
        ({"grid_bits": GRID_BITS + 1}, f"grid_bits is {GRID_BITS}"),
        ({"smallest_sum": 4}, "threshold is 3, below smallest_sum=4"),
        ({"context": b"another model"}, "context"),
    ],
)
def test_terms_that_the_client_does_not_accept(arguments, why):
    server, _ = new_round(3)
    client = new_client(**arguments)
    reply = client.answer(server.requests()[0])
    assert reply.reason is Reason.TERMS and why in reply.detail
    assert client.answered is None and client.memory() == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"clients": 6}, "threshold=3 must lie between 5"),
        ({"clients": 1, "threshold": 1}, "clients=1"),
        ({"threshold": 6}, "threshold=6"),
        ({"clients": 5}, "threshold=3 must lie between 4, more than two thirds"),
    ],
)
def test_a_server_cannot_offer_terms_that_break_the_rules(change, why):
    server, clients = new_round(4)
    reply = clients[0].answer({**server.requests()[0], **change})
    assert reply.reason is Reason.TERMS and why in reply.detail


@pytest.mark.parametrize("vector", [None, np.zeros(4, np.int64), np.zeros(5), np.full(5, 2**GRID_BITS)])
def test_a_vector_of_the_caller_s_own_that_breaks_a_rule_is_an_error(vector):
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    before = clients[0].memory()
    with pytest.raises(ValueError, match="vector"):
        clients[0].answer(server.requests()[0], vector)
    with pytest.raises(ValueError, match=r"call answer\(message, vector\)"):
        clients[0].answer(server.requests()[0])
    assert clients[0].memory() == before
    carry(server, clients, VECTORS)
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS[:3]))


def test_keys_that_others_would_not_accept_are_refused_by_the_server():
    server, clients = new_round(4, threshold=3)
    replies = {name: clients[name].answer(request) for name, request in server.requests().items()}
    assert server.receive(0, replies[0]) is None
    for wrong in (
        {**replies[1], "mask_key": replies[1]["encryption_key"]},
        {**replies[1], "mask_key": replies[0]["mask_key"]},
        {**replies[1], "encryption_key": replies[0]["mask_key"]},
        {**replies[1], "mask_key": bytes(32)},  # a point of low order
    ):
        assert server.receive(1, wrong).reason is Reason.KEYS
    for name in (1, 2, 3):
        assert server.receive(name, replies[name]) is None


def test_a_memory_of_something_else_is_refused():
    with pytest.raises(ValueError, match="'colour' is no field"):
        SumClient.resume({"colour": 1}, dimension=5, grid_bits=GRID_BITS)


def test_servers_ask_whom_they_know():
    with pytest.raises(TypeError):
        SumServer([["a"], ["b"]], dimension=1, grid_bits=1)


@pytest.mark.parametrize("count", range(2, 40))
def test_clients_enforce_two_thirds_and_the_smallest_sum_whatever_a_server_offers(count):
    """Half of the clients and one would let two who help the server open one vector of any number."""
    server, _ = new_round(count)
    offer = server.requests()[0]
    for threshold in range(count + 1):
        for smallest in (2, 10):
            reply = new_client(smallest_sum=smallest).answer({**offer, "threshold": threshold})
            fits = 3 * threshold > 2 * count and threshold >= smallest
            assert isinstance(reply, Refused) != fits


def test_ten_are_the_fewest_in_a_sum_unless_both_sides_say_otherwise():
    with pytest.raises(ValueError, match="smallest_sum=10 of 9 clients"):
        SumServer(range(9), dimension=5, grid_bits=GRID_BITS)
    reply = SumClient(dimension=5, grid_bits=GRID_BITS).answer(new_round(9)[0].requests()[0])
    assert reply.reason is Reason.TERMS and "threshold is 7, below smallest_sum=10" in reply.detail

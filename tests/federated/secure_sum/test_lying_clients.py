"""Clients that lie: what is found out, what ends the round, and what is summed as it came."""

import numpy as np
import pytest

from anechoic.federated.secure_sum import Aborted, Stage
from anechoic.federated.secure_sum.keys import KeyPair
from anechoic.federated.secure_sum.messages import Reason
from tests.federated.secure_sum.driver import answer, carry, new_round, one_stage, vectors_for

VECTORS = vectors_for(7, 5)


def flipped(share):
    return bytes([*share[:-1], share[-1] ^ 1])


def replies_of(server, clients):
    return {
        name: answer(clients[name], request, VECTORS[name]) for name, request in server.requests().items()
    }


def finish(server, replies):
    for name, reply in replies.items():
        server.receive(name, reply)
    server.advance()


@pytest.mark.parametrize("silent", [[], [6]])
def test_wrong_shares_are_left_out_and_named(silent):
    server, clients = new_round(7)
    carry(server, clients, VECTORS, {Stage.MASKED: silent}, until=Stage.UNMASKING)
    replies = replies_of(server, clients)
    for owner in (1, 6):
        replies[0]["shares"][owner] = flipped(replies[0]["shares"][owner])
    finish(server, replies)
    found = server.result()
    np.testing.assert_array_equal(found.vector, sum(VECTORS[: 7 - len(silent)]))
    assert found.wrong_shares == ((1, 0), (6, 0))


def test_shares_of_the_other_kind_are_wrong():
    """A holder that gives the share of the mask key of a client that survived is not believed."""
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, until=Stage.UNMASKING)
    held = clients[0].memory()
    replies = replies_of(server, clients)
    replies[0]["shares"] = held["mask_key_shares"]
    assert server.receive(0, replies.pop(0)).reason is Reason.SHARE
    finish(server, replies)
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS[:5]))


@pytest.mark.parametrize("silent", [[], [4]])
def test_too_few_good_shares_end_the_round(silent):
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, {Stage.MASKED: silent}, until=Stage.UNMASKING)
    replies = replies_of(server, clients)
    for name in (0, 1):
        replies[name]["shares"][4] = flipped(replies[name]["shares"][4])
    finish(server, replies)
    good = 3 - len(silent)
    assert f"{good} good shares came of seat 5's secret, 4 are needed" in server.aborted
    with pytest.raises(Aborted, match="masks cannot be taken off") as caught:
        server.result()
    assert caught.value.client == 4


def test_a_reply_without_a_good_share_is_refused():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.UNMASKING)
    reply = replies_of(server, clients)[0]
    assert server.receive(0, {**reply, "shares": [b"", b"", b""]}).reason is Reason.SHARE
    assert (
        server.receive(0, {**reply, "shares": [flipped(s) for s in reply["shares"]]}).reason is Reason.SHARE
    )
    assert server.receive(0, reply) is None


def test_a_client_that_shared_another_seed_than_it_committed_to():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    replies = replies_of(server, clients)
    replies[1]["seed_commitment"] = bytes(16)
    finish(server, replies)
    carry(server, clients, VECTORS)
    assert "seat 2 shared another seed" in server.aborted


def test_a_client_that_shared_another_mask_key_than_its_own():
    server, clients = new_round(4, threshold=3)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    own = clients[3]._memory.mask_key
    clients[3]._memory.mask_key = KeyPair.fresh().private
    one_stage(server, clients, VECTORS)
    clients[3]._memory.mask_key = own
    server.advance()
    carry(server, clients, VECTORS, {Stage.MASKED: [3]})
    assert "seat 4 shared another mask key" in server.aborted


def test_a_client_that_shared_what_is_no_secret():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.UNMASKING)
    unmasking = server._open
    # shares that fit their commitments, of a polynomial whose value at 0 is 2**256
    seats = (1, 2, 3)
    unmasking._kept[1] = {seat: (2**256).to_bytes(33, "big") for seat in seats}
    unmasking.answers = {seat: {} for seat in seats}
    assert not server.advance() and "seat 1 shared no secret of 32 bytes" in server.aborted


def test_a_client_that_drops_out_with_a_good_or_bad_share_of_nobody_changes_nothing():
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    replies = replies_of(server, clients)
    replies[4]["sealed"] = [flipped(one) for one in replies[4]["sealed"]]
    finish(server, replies)
    carry(server, clients, VECTORS, {Stage.UNMASKING: []})
    # only the client itself can open a share of its secrets: too few
    assert "1 good shares came of seat 5's secret, 4 are needed" in server.aborted


def test_any_vector_is_summed_as_it_came_but_moves_no_other_s_share():
    """There is no proof of norms: a client that lies makes the sum what it likes."""
    for sent in (2**29, -(2**31), 12345):
        sums = []
        for honest in (0, 1000):
            vectors = [np.array([honest]), np.array([5]), np.array([0])]
            server, clients = new_round(3, 1)
            carry(server, clients, vectors, until=Stage.MASKED)
            replies = {n: answer(clients[n], r, vectors[n]) for n, r in server.requests().items()}
            words = np.frombuffer(replies[2]["vector"], "<u4") + np.array([sent % 2**32], "<u4")
            finish(server, {**replies, 2: {**replies[2], "vector": words.tobytes()}})
            carry(server, clients, vectors)
            sums.append(int(server.result().vector[0]))
        assert abs(sums[1] - sums[0]) <= 1000
        if abs(sent) < 2**29:
            assert sums == [sent + 5, sent + 1005]

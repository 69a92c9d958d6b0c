"""Signed rounds: a server that makes up clients, exchanges keys or shows two lists of survivors."""

import numpy as np
import pytest

from anechoic.federated.secure_sum import Reason, Refused, Stage, SumClient, identity_of
from anechoic.federated.secure_sum.keys import KeyPair, sign
from anechoic.federated.secure_sum.roster import Entry
from tests.federated.secure_sum.driver import GRID_BITS, carry, new_round, one_stage, vectors_for

PRIVATE = [bytes([n]) * 32 for n in range(1, 6)]
VECTORS = vectors_for(5, 5)


def signed_round(**arguments):
    return new_round(5, identities=PRIVATE, threshold=3, **arguments)


@pytest.mark.parametrize("stage", [None, *Stage])
def test_a_signed_round_gives_the_sum_and_survives_silence(stage):
    server, clients = signed_round()
    carry(server, clients, VECTORS, {stage: [0, 4]})
    assert server.aborted is None
    found = server.result()
    assert found.clients == (
        (1, 2, 3) if stage in (Stage.KEYS, Stage.SHARES, Stage.MASKED) else (0, 1, 2, 3, 4)
    )
    np.testing.assert_array_equal(found.vector, sum(VECTORS[name] for name in found.clients))


def test_too_few_signatures_end_the_round():
    server, clients = signed_round()
    carry(server, clients, VECTORS, {Stage.SURVIVORS: [0, 1, 2]})
    assert "2 of 5 clients answered the stage survivors" in server.aborted


def forged(entry, private, terms, seat):
    """An entry with keys of the server's own, signed with `private`."""
    keys = Entry(KeyPair.fresh().public, KeyPair.fresh().public)
    return Entry(keys.encryption_key, keys.mask_key, entry, sign(private, keys.statement(terms, seat)))


def with_last(request, entry):
    """The roster with another entry in the fifth seat."""
    fields = ("encryption_keys", "mask_keys", "identities", "signatures")
    values = (entry.encryption_key, entry.mask_key, entry.identity, entry.signature)
    return {**request, **{f: [*request[f][:4], value] for f, value in zip(fields, values, strict=True)}}


@pytest.mark.parametrize(
    "case", ["keys exchanged", "another's signature", "unknown identity", "seat exchanged"]
)
def test_keys_that_no_known_client_signed_are_refused(case):
    server, clients = signed_round()
    carry(server, clients, VECTORS, until=Stage.SHARES)
    request = server.requests()[0]
    if case == "unknown identity":  # a client that the server made up, signed by itself
        private = bytes([99]) * 32
        entry = forged(identity_of(private), private, server.terms, 5)
    elif case == "keys exchanged":  # the server in the middle: its own keys under a known client's name
        entry = forged(request["identities"][4], bytes([99]) * 32, server.terms, 5)
    elif case == "another's signature":
        keys = (request[field][4] for field in ("encryption_keys", "mask_keys", "identities"))
        entry = Entry(*keys, request["signatures"][3])
    else:
        entry = forged(request["identities"][4], PRIVATE[4], server.terms, 4)
    reply = clients[0].answer(with_last(request, entry))
    assert isinstance(reply, Refused) and reply.reason is Reason.SIGNATURE and "seat 5" in reply.detail
    # the same made by the client itself passes
    entry = forged(request["identities"][4], PRIVATE[4], server.terms, 5)
    assert not isinstance(clients[0].answer(with_last(request, entry)), Refused)


def test_one_identity_in_two_seats_is_refused():
    server, clients = signed_round()
    carry(server, clients, VECTORS, until=Stage.SHARES)
    request = server.requests()[0]
    entry = forged(request["identities"][3], PRIVATE[3], server.terms, 5)
    reply = clients[0].answer(with_last(request, entry))
    assert reply.reason is Reason.KEYS and "identity" in reply.detail


def test_signatures_of_another_round_are_refused():
    old, old_clients = signed_round()
    reply = old_clients[0].answer(old.requests()[0])
    server, _ = signed_round()
    assert server.receive(0, {**reply, "round": server.terms.round_id}).reason is Reason.SIGNATURE


def test_the_server_takes_only_the_identity_it_knows():
    server, clients = signed_round()
    replies = {n: clients[n].answer(r) for n, r in server.requests().items()}
    assert server.receive(1, replies[0]).reason is Reason.SIGNATURE
    # a known client in another's seat, with a signature that is good
    entry = forged(identity_of(PRIVATE[0]), PRIVATE[0], server.terms, 2)
    assert server.receive(1, {**replies[0], **entry.fields()}).reason is Reason.SIGNATURE
    wrong = {**replies[0], "signature": bytes(64)}
    assert server.receive(0, wrong).reason is Reason.SIGNATURE
    assert server.receive(0, {**replies[0], "identity": bytes(32)}).reason is Reason.SIGNATURE
    assert server.receive(0, replies[0]) is None


def test_two_lists_of_survivors_are_not_unmasked():
    server, clients = signed_round()
    carry(server, clients, VECTORS, until=Stage.SURVIVORS)
    requests = server.requests()
    lists = {0: [1, 2, 3], 1: [1, 2, 3, 4, 5], 2: [1, 2, 3, 4, 5], 3: [1, 2, 3, 4, 5], 4: [1, 2, 3, 4, 5]}
    replies = {n: clients[n].answer({**requests[n], "survivors": lists[n]}) for n in clients}
    assert server.receive(0, replies[0]).reason is Reason.SIGNATURE
    for name in (1, 2, 3, 4):
        assert server.receive(name, replies[name]) is None
    server.advance()
    request = server.requests()[1]
    # the first client signed another list than the one it shall unmask, and the other has one signature only
    assert clients[0].answer(request).reason is Reason.CLIENTS
    signatures = [replies[name]["signature"] for name in range(3)]
    short = {**request, "survivors": [1, 2, 3], "signers": [1, 2, 3], "signatures": signatures}
    assert clients[0].answer(short).reason is Reason.SIGNATURE
    assert clients[1].answer(short).reason is Reason.CLIENTS
    assert not isinstance(clients[1].answer(request), Refused)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: {"signers": m["signers"][:2], "signatures": m["signatures"][:2]}, Reason.CLIENTS),
        (lambda m: {"signers": [1, 1, 2], "signatures": m["signatures"][:3]}, Reason.MALFORMED),
        (lambda m: {"signatures": m["signatures"][::-1]}, Reason.SIGNATURE),
        (lambda m: {"signatures": [bytes(64)] * len(m["signatures"])}, Reason.SIGNATURE),
    ],
)
def test_a_client_unmasks_only_what_enough_have_signed(change, reason):
    server, clients = signed_round()
    carry(server, clients, VECTORS, until=Stage.UNMASKING)
    request = server.requests()[0]
    assert clients[0].answer({**request, **change(request)}).reason is reason
    assert not isinstance(clients[0].answer(request), Refused)


def test_a_signer_that_is_no_survivor_does_not_count():
    server, clients = signed_round()
    carry(server, clients, VECTORS, {Stage.MASKED: [4]}, until=Stage.UNMASKING)
    request = server.requests()[0]
    assert clients[0].answer({**request, "signers": [1, 2, 3, 5]}).reason is Reason.CLIENTS


def test_a_client_that_signs_takes_part_in_no_round_that_is_not_signed():
    server, _ = new_round(5, threshold=3)
    client = SumClient(dimension=5, grid_bits=GRID_BITS, identity=PRIVATE[0], known=[identity_of(PRIVATE[0])])
    reply = client.answer(server.requests()[0])
    assert reply.reason is Reason.TERMS and "signs" in reply.detail


def test_identity_and_known_belong_together():
    both = {"dimension": 1, "grid_bits": 10}
    with pytest.raises(ValueError, match="own public key"):
        SumClient(**both, identity=PRIVATE[0], known=[identity_of(PRIVATE[1])])
    with pytest.raises(ValueError, match="belong together"):
        SumClient(**both, known=[])
    with pytest.raises(ValueError, match="identity has 5 bytes"):
        SumClient(**both, identity=b"short", known=[])


def test_a_server_s_stage_is_one_more_only_where_it_is_signed():
    for identities, stages in ((None, 4), (PRIVATE, 5)):
        server, clients = new_round(5, identities=identities)
        count = 0
        while server.stage is not None:
            one_stage(server, clients, VECTORS)
            server.advance()
            count += 1
        assert count == stages

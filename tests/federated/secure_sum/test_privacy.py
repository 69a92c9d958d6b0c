"""What a server may learn: the sum. What a server that lies is not given: both secrets of one client."""

import dataclasses
import hashlib

import numpy as np
import pytest
from scipy import stats

from anechoic.federated.secure_sum import Stage, SumClient
from anechoic.federated.secure_sum.keys import KeyPair, digest, encoded, expand
from anechoic.federated.secure_sum.messages import Reason, Refused
from anechoic.federated.secure_sum.ring import add_masks
from tests.federated.secure_sum.driver import (
    GRID_BITS,
    answer,
    carry,
    new_client,
    new_round,
    one_stage,
    vectors_for,
)

VECTORS = vectors_for(5, 5)


def at_unmasking(count=5, threshold=4, silent=(), **arguments):
    server, clients = new_round(count, threshold=threshold, **arguments)
    carry(server, clients, VECTORS, {Stage.MASKED: silent}, until=Stage.UNMASKING)
    return server, clients, {name: client.memory() for name, client in clients.items()}


def test_one_share_of_each_client_and_never_both():
    server, clients, held = at_unmasking(silent=[2])
    reply = clients[0].answer(server.requests()[0])
    for index, (seat, share) in enumerate(zip(held[0]["senders"], reply["shares"], strict=True)):
        given, kept = ("mask_key_shares", "seed_shares") if seat == 3 else ("seed_shares", "mask_key_shares")
        assert share == held[0][given][index] and held[0][kept][index] not in reply["shares"]


def test_a_server_that_asks_twice_is_refused():
    server, clients, _ = at_unmasking()
    request = server.requests()[0]
    other = {**request, "survivors": [1, 2, 3]}  # 4 and 5 survived, and are now said to have dropped out
    assert not isinstance(clients[0].answer(request), Refused)
    assert clients[0].answer(other).reason is Reason.DUPLICATE
    assert clients[0].answer(request).reason is Reason.DUPLICATE


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ([1, 1, 2, 3], Reason.MALFORMED),  # one twice
        ([3, 2, 1], Reason.MALFORMED),
        ([0, 1, 2], Reason.MALFORMED),
        ([1, 2, 3, 6], Reason.MALFORMED),  # not asked
        ([2, 3, 5], Reason.CLIENTS),  # without the client itself, whose mask key would be given
        ([1, 2], Reason.CLIENTS),  # below the threshold
        ([1], Reason.CLIENTS),
        ([], Reason.CLIENTS),
        ([1, 2, 4], Reason.CLIENTS),  # 4 shared no secrets
    ],
)
def test_lists_of_survivors_that_may_not_be(survivors, reason):
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, {Stage.SHARES: [3]}, until=Stage.UNMASKING)
    reply = clients[0].answer({**server.requests()[0], "survivors": survivors})
    assert isinstance(reply, Refused) and reply.reason is reason


def test_no_list_says_of_a_client_that_it_both_survived_and_dropped_out():
    """Who dropped out follows from who survived: no list of them is read, so the two cannot overlap."""
    server, clients, held = at_unmasking(silent=[2])
    request = {**server.requests()[0], "dropped": [1, 2, 3, 4, 5]}
    shares = clients[0].answer(request)["shares"]
    assert shares == [
        held[0]["mask_key_shares" if seat == 3 else "seed_shares"][seat - 1] for seat in range(1, 6)
    ]


def test_a_roster_below_the_threshold_is_refused():
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    request = server.requests()[0]
    fields = ("seats", "encryption_keys", "mask_keys")
    reply = clients[0].answer({**request, **{field: request[field][:3] for field in fields}})
    assert reply.reason is Reason.CLIENTS and "below the threshold of 4" in reply.detail


@pytest.mark.parametrize("senders", [[1, 2], [2, 3, 4, 5], [1, 2, 3, 4, 5, 5], [1, 2, 3, 4, 6], []])
def test_lists_of_senders_that_may_not_be(senders):
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    request = server.requests()[0]
    sealed = request["sealed"][: max(len(senders) - 1, 0)]
    reply = clients[0].answer({**request, "senders": senders, "sealed": sealed}, VECTORS[0])
    assert isinstance(reply, Refused) and reply.reason in (Reason.CLIENTS, Reason.MALFORMED)


def test_a_sender_that_sent_no_keys_is_refused():
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, {Stage.KEYS: [4]}, until=Stage.MASKED)
    request = server.requests()[0]
    assert request["senders"] == [1, 2, 3, 4]
    for senders in ([1, 2, 3, 5], [1, 2, 3, 4, 5]):
        sealed = [request["sealed"][0]] * (len(senders) - 1)
        reply = clients[0].answer({**request, "senders": senders, "sealed": sealed}, VECTORS[0])
        assert reply.reason is Reason.CLIENTS


def test_a_point_of_low_order_makes_no_key():
    """Its shared secret is zero, which anybody knows: no share is sealed with it, no vector masked."""
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    request = server.requests()[0]
    wrong = {**request, "encryption_keys": [*request["encryption_keys"][:4], bytes(32)]}
    reply = clients[0].answer(wrong)
    assert reply.reason is Reason.KEYS and "low order" in reply.detail
    # a mask key of that kind, shown to all but its owner: found when the vector is to be masked
    for name in range(4):
        wrong = {**request, "mask_keys": [*request["mask_keys"][:4], bytes(32)]}
        assert server.receive(name, clients[name].answer(wrong)) is None
    shares = clients[4].answer(request)
    assert server.receive(4, shares) is None
    server.advance()
    reply = clients[0].answer(server.requests()[0], VECTORS[0])
    assert reply.reason is Reason.KEYS and "low order" in reply.detail


def test_a_server_that_changes_the_client_s_own_keys_is_refused():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    request = server.requests()[0]
    for field in ("encryption_keys", "mask_keys"):
        keys = [KeyPair.fresh().public, *request[field][1:]]
        assert clients[0].answer({**request, field: keys}).reason is Reason.KEYS
    without = {
        "seats": [2, 3, 4],
        "encryption_keys": [KeyPair.fresh().public for _ in range(3)],
        "mask_keys": [KeyPair.fresh().public for _ in range(3)],
    }
    server, clients = new_round(4)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    assert clients[0].answer({**server.requests()[0], **without}).reason is Reason.KEYS


@pytest.mark.parametrize(
    ("field", "source"),
    [("encryption_keys", "encryption_keys"), ("mask_keys", "mask_keys"), ("mask_keys", "encryption_keys")],
)
def test_a_roster_with_one_key_twice_is_refused(field, source):
    """Two seats of one key are one client, which the threshold would count twice."""
    server, clients = new_round(4)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    request = server.requests()[0]
    reply = clients[0].answer({**request, field: [*request[field][:3], request[source][2]]})
    assert reply.reason is Reason.KEYS and "twice" in reply.detail


@pytest.mark.parametrize("field", ["encryption_keys", "mask_keys"])
def test_clients_that_were_shown_different_keys_do_not_unmask(field):
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.SHARES)
    replies = {}
    for name, request in server.requests().items():
        if name == 0:
            request = {**request, field: [*request[field][:-1], KeyPair.fresh().public]}
        replies[name] = clients[name].answer(request)
        assert server.receive(name, replies[name]) is None
    server.advance()
    for name, request in server.requests().items():
        assert clients[name].answer(request, VECTORS[name]).reason is Reason.SHARE


@pytest.mark.parametrize("change", [{"round": b"another"}, {"clients": 4, "threshold": 3}])
def test_clients_that_were_shown_different_terms_do_not_unmask(change):
    server, clients = new_round(3)
    for name, request in server.requests().items():
        reply = clients[name].answer({**request, **(change if name == 0 else {})})
        assert server.receive(name, {**reply, "round": server.terms.round_id}) is None
    server.advance()
    for name, request in server.requests().items():
        reply = clients[name].answer(
            {**request, "round": change.get("round", request["round"]) if name == 0 else request["round"]}
        )
        assert server.receive(name, {**reply, "round": server.terms.round_id}) is None
    server.advance()
    for name in (1, 2):
        assert clients[name].answer(server.requests()[name], VECTORS[name]).reason is Reason.SHARE


def test_clients_that_saw_different_models_do_not_unmask():
    """A server that tells every client the digest of what it sent to it: the context is in the keys."""
    server, clients = new_round(3)
    for name, request in server.requests().items():
        clients[name] = new_client(context=b"model %d" % name)
        offered = {**request, "context": hashlib.sha256(b"model %d" % name).digest()}
        assert server.receive(name, clients[name].answer(offered)) is None
    server.advance()
    one_stage(server, clients, VECTORS)
    server.advance()
    for name, request in server.requests().items():
        assert clients[name].answer(request, VECTORS[name]).reason is Reason.SHARE


def test_shares_for_another_or_changed_do_not_open():
    server, clients = new_round(5, threshold=4)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    request = server.requests()[0]
    sealed = request["sealed"]
    flipped = [bytes([one[0] ^ 1]) + one[1:] for one in sealed]
    for wrong in (flipped, sealed[::-1], server.requests()[1]["sealed"]):
        reply = clients[0].answer({**request, "sealed": wrong}, VECTORS[0])
        assert isinstance(reply, Refused) and reply.reason is Reason.SHARE
    # one of four is missing: the threshold is met with the client's own
    reply = clients[0].answer({**request, "sealed": [flipped[0], *sealed[1:]]}, VECTORS[0])
    assert not isinstance(reply, Refused)
    assert clients[0].memory()["seed_shares"][1] == clients[0].memory()["mask_key_shares"][1] == b""


# What the server sees is uniform.


def uniform(words):
    """p-values of chi-squared tests on bytes and on bits."""
    octets = words.view(np.uint8)
    bits = np.unpackbits(octets.reshape(len(words), -1), axis=1)
    statistic = ((bits.sum(axis=0) - len(words) / 2) ** 2 / (len(words) / 4)).sum()
    return stats.chisquare(np.bincount(octets, minlength=256)).pvalue, stats.chi2.sf(statistic, bits.shape[1])


def masked_words(count, vectors, dimension):
    """What the server receives of each client, as words."""
    server, clients = new_round(count, dimension)
    carry(server, clients, vectors, until=Stage.MASKED)
    replies = {n: answer(clients[n], r, vectors[n]) for n, r in server.requests().items()}
    return {
        n: np.frombuffer(reply["vector"], f"<u{server.terms.ring_bits // 8}") for n, reply in replies.items()
    }


@pytest.mark.parametrize("value", [0, 1, -1, 2**8 - 1])
def test_a_masked_vector_looks_alike_whatever_it_hides(value):
    """All other vectors are equal. Neither the words, nor their sum before it is unmasked, show the value."""
    dimension = 2**14
    vectors = [np.full(dimension, value), np.zeros(dimension, int), np.zeros(dimension, int)]
    words = masked_words(3, vectors, dimension)
    for seen in (words[0], words[0] - words[1], words[0] + words[1] + words[2]):
        assert min(uniform(seen)) > 1e-6


@pytest.mark.slow
def test_a_masked_entry_is_uniform_over_rounds_and_independent_of_its_input():
    found = {value: [] for value in (0, 2**GRID_BITS)}
    for value, seen in found.items():
        for _ in range(40):
            vectors = [np.array([value, 0]), np.zeros(2, int)]
            seen.append(masked_words(2, vectors, 2)[0][0] / 2**32)
    low, high = found.values()
    assert stats.kstest(low, "uniform").pvalue > 1e-6 and stats.kstest(high, "uniform").pvalue > 1e-6
    assert stats.ks_2samp(low, high).pvalue > 1e-6


def test_both_secrets_are_needed():
    """With the mask that all others share but not its own, or the other way round, nothing is seen."""
    dimension = 2**12
    server, clients = new_round(2, dimension)
    vectors = [np.full(dimension, 7), np.full(dimension, 9)]
    carry(server, clients, vectors, until=Stage.MASKED)
    held = clients[0].memory()
    reply = clients[0].answer(server.requests()[0], vectors[0])
    client = SumClient.resume(held, dimension=dimension, grid_bits=GRID_BITS)
    roster = client._roster
    pair = KeyPair.of(held["mask_key"])
    self_key = roster.self_mask_key(1, held["seed"])
    pair_key = roster.pair_mask_key(1, 2, pair.agree(roster.entries[2].mask_key))
    for keys, hidden in (([self_key], True), ([pair_key], True), ([self_key, pair_key], False)):
        words = np.frombuffer(reply["vector"], "<u4").copy()
        add_masks(words, [(key, -1) for key in keys])
        assert (words == 7).all() != hidden
        if hidden:
            assert min(uniform(words)) > 1e-6


# Keys.


def test_a_secret_counts_with_all_of_its_256_bits():
    """Secrets that agree in their last, or first, 32 bits give unrelated keys, and so do all other bits."""
    secret = bytes(range(32))
    low, high = bytes(28) + secret[28:], secret[:4] + bytes(28)
    found = {expand(one, b"salt", b"mask") for one in (secret, low, high)}
    number = int.from_bytes(secret, "big")
    found |= {expand((number ^ 1 << bit).to_bytes(32, "big"), b"salt", b"mask") for bit in range(256)}
    assert len(found) == 3 + 256


def test_no_two_lists_of_parts_have_one_encoding():
    lists = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc"), ()]
    assert len({encoded(*parts) for parts in lists}) == len({digest(b"", *parts) for parts in lists}) == 6


def test_what_is_derived_depends_on_round_purpose_and_parties():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    one = SumClient.resume(clients[0].memory(), dimension=5, grid_bits=GRID_BITS)._roster
    other_terms = dataclasses.replace(one.terms, round_id=b"other")
    other = dataclasses.replace(one, terms=other_terms)
    secret = bytes(32)
    keys = [
        one.self_mask_key(1, secret),
        one.self_mask_key(2, secret),
        other.self_mask_key(1, secret),
        one.pair_mask_key(1, 2, secret),
        one.pair_mask_key(1, 3, secret),
        other.pair_mask_key(1, 2, secret),
        one.sealing_key(1, 2, secret),
        one.sealing_key(2, 1, secret),
        one.sealing_key(1, 3, secret),
        other.sealing_key(1, 2, secret),
    ]
    assert len(set(keys)) == len(keys) and all(len(key) == 32 for key in keys)
    assert one.pair_mask_key(2, 1, secret) == keys[3]
    assert (
        len({one.sealed_for(1, 2), one.sealed_for(2, 1), one.sealed_for(1, 3), other.sealed_for(1, 2)}) == 4
    )


def test_commitments_are_of_one_round_kind_and_place():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    one = SumClient.resume(clients[0].memory(), dimension=5, grid_bits=GRID_BITS)._roster
    other = dataclasses.replace(one, terms=dataclasses.replace(one.terms, round_id=b"other"))
    share, places = bytes(33), [(b"seed", 1, 2), (b"mask key", 1, 2), (b"seed", 3, 2), (b"seed", 1, 3)]
    found = [roster.share_commitment(*place, share) for roster in (one, other) for place in places]
    found += [one.share_commitment(*places[0], bytes(32) + b"\1")]
    found += [roster.seed_commitment(owner, bytes(32)) for roster in (one, other) for owner in (1, 2)]
    assert len(set(found)) == 13 and {len(commitment) for commitment in found} == {16}


def test_no_key_is_in_two_rounds():
    secrets = []
    for _ in range(2):
        server, clients = new_round(3, round_id=b"the same")
        carry(server, clients, VECTORS, until=Stage.SHARES)
        for client in clients.values():
            held = client.memory()
            secrets += [held["seed"], held["encryption_key"], held["mask_key"]]
    assert len(set(secrets)) == 18


# What a client keeps.


def test_secrets_go_when_they_were_used_for_the_last_time():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.UNMASKING)
    held = clients[0].memory()
    assert not {"seed", "mask_key", "encryption_key"} & held.keys()
    carry(server, clients, VECTORS)
    assert set(clients[0].memory()) == {"answered"} | {name for name in held if name.startswith("offer.")}
    assert clients[0].answered is Stage.UNMASKING


def test_secrets_do_not_show():
    server, clients = new_round(3)
    carry(server, clients, VECTORS, until=Stage.MASKED)
    seed = clients[0].memory()["seed"]
    for shown in (repr(clients[0]), repr(clients[0]._memory), repr(KeyPair.of(seed))):
        assert repr(seed)[2:-1] not in shown and seed.hex() not in shown


def test_clients_that_are_resumed_before_every_message():
    server, clients = new_round(5, threshold=4)
    arguments = {"dimension": 5, "grid_bits": GRID_BITS, "smallest_sum": 2}
    while (stage := server.stage) is not None:
        for name in clients:
            memory = clients[name].memory()
            for field, value in memory.items():  # plain, flat, nothing empty but missing shares
                assert type(field) is str and type(value) in (bytes, int, list)
                assert type(value) is not list or (value and len({type(item) for item in value}) == 1)
            clients[name] = SumClient.resume(memory, **arguments)
        one_stage(server, clients, VECTORS, silent=[4] if stage is Stage.MASKED else [])
        server.advance()
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS[:4]))

"""Whom a ledger lets take part keeps to the participation that the mechanism is calibrated for."""

import struct

import numpy as np
import pytest

from anechoic import federated
from anechoic.errors import GuaranteeError
from anechoic.federated.ledger import ParticipationLedger as Ledger
from anechoic.participation import Cyclic, MinSep

KEY = bytes(32)
POLICIES = [
    federated.Cohorts(1),
    federated.Cohorts(3),
    federated.MinSeparation(1),
    federated.MinSeparation(1, 2),
    federated.MinSeparation(3),
    federated.MinSeparation(4, 2),
    federated.MinSeparation(20),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_allowed_keeps_to_the_participation_and_nobody_else_does(policy, seed):
    """Brute force: a client is allowed in a step exactly if the schema allows all its steps with that one."""
    n, clients, rng = 13, 8, np.random.default_rng(seed)
    ledger = Ledger(policy, KEY)
    everybody = ledger.clients(range(clients))
    cohorts = isinstance(policy, federated.Cohorts)
    steps = [[] for _ in range(clients)]
    for step in range(n):
        allowed = ledger.allowed(everybody, step)
        for client in range(clients):
            expected = policy.participation.allows([*steps[client], step], n)
            if cohorts:
                expected = expected and everybody.groups[client] == step % policy.count
            assert allowed[client] == expected
        taken = allowed & (rng.random(clients) < 0.6)
        first = ledger.charge(everybody.only(taken), step)
        assert len(first) == taken.sum()
        assert ledger.allowed(everybody, step)[taken].all()  # the same step may be asked for again
        assert ledger.charge(everybody.only(taken), step) == {}  # and is one step
        for client in np.flatnonzero(taken):
            steps[client].append(step)
    summary = ledger.summary()
    counts, gaps = [len(s) for s in steps], [np.diff(s).min() for s in steps if len(s) > 1]
    assert summary.participations == sum(counts) and summary.most == max(counts)
    assert summary.clients == sum(count > 0 for count in counts)
    assert summary.nearest == (min(gaps) if gaps else None)


def test_a_client_that_may_not_is_not_charged():
    ledger = Ledger(federated.MinSeparation(3), KEY)
    both = ledger.clients(["a", "b"])
    ledger.charge(both.only(np.array([True, False])), 0)
    before = ledger.summary()
    with pytest.raises(GuaranteeError, match="may not take part"):
        ledger.charge(both, 2)
    assert ledger.summary() == before
    ledger.charge(both, 3)
    assert ledger.summary().nearest == 3


def test_an_entry_is_written_as_it_always_was_and_read_again():
    """Steps, the last of them, and the nearest two: states of earlier versions are read."""
    ledger, written = Ledger(federated.MinSeparation(2), KEY), {}
    for step, ids in [(0, ["a"]), (3, ["a", "b"]), (8, ["a"])]:
        written |= ledger.charge(ledger.clients(ids), step)
    assert sorted(written.values()) == sorted(struct.pack("<QQQ", *e) for e in [(3, 8, 3), (1, 3, 2**62)])
    again = Ledger(federated.MinSeparation(2), KEY, written)
    assert again.summary() == ledger.summary()
    assert again.allowed(again.clients(["a", "b", "c"]), 9).tolist() == [False, True, True]


def test_equal_ids_are_one_client_and_others_are_not():
    ledger = Ledger(federated.MinSeparation(2), KEY)
    found = ledger.clients([7, "7", b"7", np.int64(7), "7", 8])
    assert found.ids.tolist() == [7, "7", b"7", 8] and len(set(found.places.tolist())) == 4
    assert ledger.clients(np.array(["7", "x"])).places[0] == found.places[1]
    assert ledger.clients({"7"}).places[0] == found.places[1]
    assert ledger.clients(iter([8])).places[0] == found.places[3]
    assert len(ledger.clients([])) == 0


@pytest.mark.parametrize(
    "available", ["ann", b"ann", {1: 2}, 7, None, [None], [1.5], [True], np.zeros(2), np.zeros((2, 2), int)]
)
def test_what_names_no_clients_is_refused(available):
    with pytest.raises(ValueError):
        Ledger(federated.MinSeparation(2), KEY).clients(available)


def test_clients_of_another_ledger_are_refused():
    one, other = (Ledger(federated.MinSeparation(2), KEY), Ledger(federated.MinSeparation(2), KEY))
    strangers = other.clients(["b", "a"])
    for ask in (one.allowed, one.charge):
        with pytest.raises(ValueError, match="another server"):
            ask(strangers.only(np.array([True, False])), 0)


def test_cohorts_by_hash_follow_from_the_key_alone():
    ledger = Ledger(federated.Cohorts(4), KEY)
    some = ledger.clients(range(400))
    again = Ledger(federated.Cohorts(4), KEY).clients(range(399, -1, -1))
    np.testing.assert_array_equal(some.groups, again.groups[::-1])
    sizes = np.bincount(some.groups, minlength=4)
    assert sizes.min() > 60  # 100 on average, 4 standard deviations below
    assert (Ledger(federated.Cohorts(4), bytes([1] * 32)).clients(range(400)).groups != some.groups).any()


def test_subsets_keep_order_and_digests():
    ledger = Ledger(federated.MinSeparation(2), KEY)
    everybody = ledger.clients(range(50))
    mask = np.arange(50) % 3 == 1
    some = everybody.only(mask)
    assert some.ids.tolist() == list(range(1, 50, 3))
    direct = ledger.clients(range(1, 50, 3))
    np.testing.assert_array_equal(
        some.by_digest(np.ones(len(some), bool)), direct.by_digest(np.ones(len(direct), bool))
    )
    with pytest.raises(ValueError, match="a mask is bool"):
        everybody.only(np.arange(50))


@pytest.mark.parametrize(
    ("policy", "schema"),
    [
        (federated.Cohorts(5), Cyclic(5)),
        (federated.MinSeparation(5), MinSep(5)),
        (federated.MinSeparation(5, 2), MinSep(5, 2)),
    ],
)
def test_policies_name_their_participation(policy, schema):
    assert policy.participation == schema


@pytest.mark.parametrize(
    "make",
    [
        lambda: federated.Cohorts(0),
        lambda: federated.Cohorts(2.5),
        lambda: federated.MinSeparation(0),
        lambda: federated.MinSeparation(3, 0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ValueError):
        make()

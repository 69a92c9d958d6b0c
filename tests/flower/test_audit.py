"""The audit over the real path: a canary's part of each release is exact, and seeded faults are noticed.

Two runs with the same key have the same noise. What a release changes by when one client, the canary, sends
another update is then that client's update on the grid over the constant divisor, to the last bit.
"""

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from anechoic.federated import Server
from anechoic.federated.round import OpenRound
from anechoic.flower.records import arrays_of, record_of
from tests.flower import small

CANARY = 4
ZERO = {"w": np.zeros((2, 3)), "scale": 0.0}
LARGE = {"w": np.full((2, 3), 8.0), "scale": 8.0}
SEPARATION = small.POLICY.separation


def canary_app(update):
    """The canary adds `update`; the others leave the model as it is: only the canary tells runs apart."""

    def training(message, context):
        arrays = arrays_of(message.content["arrays"])
        partition = context.node_config["partition-id"]
        change = update if partition == CANARY else ZERO
        new = {
            "w": arrays["w"] + np.asarray(change["w"], np.float32),
            "scale": np.asarray(arrays["scale"] + change["scale"]),
            "seen": arrays["seen"],
        }
        return Message(RecordDict({"arrays": record_of(new)}), reply_to=message)

    return small.client_app(training)


def releases(monkeypatch, update, **options):
    """(noisy means, whether the canary answered, who was asked) of each step of a run."""
    seen = []
    real = Server.close

    def closed(server, asked):
        took_part = CANARY in asked.clients and CANARY not in asked._waiting
        found = real(server, asked)
        if found.released:
            seen.append((found.update, took_part, asked.clients))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Server, "close", closed)
        small.run(small.strategy(**options), small.grid(canary_app(update)))
    updates, took_part, clients = zip(*seen, strict=True)
    return np.array(updates), list(took_part), clients


def audit(monkeypatch, **options):
    """What the canary changed in each release, as integers, and the steps it was in."""
    without, took_part, clients = releases(monkeypatch, ZERO, **options)
    with_it, also, _ = releases(monkeypatch, LARGE, **options)
    assert took_part == also, "who takes part may not depend on what a client sends"
    unit = small.CLIP * 2.0**-24 / small.PER_ROUND
    sums = np.rint((with_it - without) / unit)
    change = np.linalg.norm(sums, axis=1) / 2.0**24
    steps = np.flatnonzero(took_part)
    assert not change[~np.array(took_part)].any(), "a release changed by a client that was not in it"
    assert change[steps].max(initial=0.0) <= 1.0, "one client changed a release by more than the clip norm"
    assert change[steps].min(initial=1.0) >= 0.999, "a clipped update is nearly as long as the clip norm"
    for client in range(small.CLIENTS):
        parts = [step for step, asked in enumerate(clients) if client in asked]
        assert not np.any(np.diff(parts) < SEPARATION), "a client took part again too early"
    return sums, steps


def test_the_canary_is_bounded_and_exact(monkeypatch):
    sums, steps = audit(monkeypatch)
    assert len(steps) >= 1 and len(sums) == small.ROUNDS
    # what the canary added, as integers: 8 in each of 7 entries, as well as float32 can say it, clipped
    for step in steps:
        assert np.abs(sums[step] - 2**24 / np.sqrt(7)).max() < 2


def test_weights_by_number_of_examples_are_noticed(monkeypatch):
    real = OpenRound.add

    def weighted(own, client, reply):
        if client == CANARY:
            own.total += reply.astype(np.int64) * 9
        return real(own, client, reply)

    monkeypatch.setattr(OpenRound, "add", weighted)
    with pytest.raises(AssertionError, match="more than the clip norm"):
        audit(monkeypatch)

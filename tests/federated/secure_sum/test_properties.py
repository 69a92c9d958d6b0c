"""Random schedules of silence and random messages."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.federated.secure_sum import Stage, SumServer
from anechoic.federated.secure_sum.messages import Refused
from anechoic.federated.secure_sum.terms import least_threshold
from tests.federated.secure_sum.driver import GRID_BITS, carry, new_client, new_round, vectors_for

STAGES = list(Stage)
VECTORS = vectors_for(7, 3)


@st.composite
def schedules(draw):
    """(clients, threshold, stage → names that fall silent)."""
    count = draw(st.integers(2, 7))
    threshold = draw(st.integers(least_threshold(count), count))
    when = draw(st.lists(st.sampled_from([*STAGES, None, None, None]), min_size=count, max_size=count))
    silent = {stage: [name for name in range(count) if when[name] is stage] for stage in STAGES}
    return count, threshold, silent


@settings(max_examples=25, deadline=None, derandomize=True)
@given(schedules())
@pytest.mark.slow
def test_the_sum_of_those_who_sent_vectors_or_no_result(schedule):
    count, threshold, silent = schedule
    server, clients = new_round(count, 3, threshold=threshold)
    carry(server, clients, VECTORS, silent)
    left, summed = set(range(count)), ()
    for stage, names in silent.items():
        left -= set(names)
        if len(left) < threshold:
            assert stage.name.lower() in server.aborted
            return
        summed = tuple(sorted(left)) if stage is Stage.MASKED else summed
    assert server.result().clients == summed
    np.testing.assert_array_equal(server.result().vector, sum(VECTORS[name] for name in summed))


ODD = (None, True, 0, 1, -1, 2**70, 1.5, float("nan"), "a", b"", b"r", bytes(32), bytes(64), [], [1], [2, 1])
ODD += (
    [b""],
    [bytes(32)] * 2,
    [[1]],
    {},
    {"a": 1},
    (1, 2),
    {1},
    np.zeros(2),
    np.int64(2),
    object,
    bytearray(32),
)
FIELDS = (
    "protocol round stage seat clients dimension grid_bits threshold context encryption_key mask_key "
    "seats encryption_keys mask_keys senders sealed vector survivors shares"
)


def test_a_thousand_odd_messages_are_refused_and_none_raises():
    draw = random.Random(3)
    server = SumServer(["a", "b"], dimension=3, grid_bits=GRID_BITS, smallest_sum=2, round_id=b"r")
    client = new_client(3)
    for _ in range(1000):
        message = {field: draw.choice(ODD) for field in FIELDS.split() if draw.random() < 0.8}
        if draw.random() < 0.7:  # past the head, into the fields
            stage = draw.choice(list(Stage))
            message |= {"protocol": b"anechoic.secure_sum.2", "round": b"r", "stage": int(stage)}
        for one in (message, draw.choice(ODD)):
            assert isinstance(server.receive("a", one), Refused)
            assert isinstance(client.answer(one), Refused)
    assert server.waiting == ("a", "b") and client.answered is None
    assert server.refused.total() == 2000

"""The ledger on its own: order of deliveries, sums and releases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError
from anechoic.runs import ledger as ledgers
from anechoic.runs.ledger import Delivery, ReleaseLedger

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch):
    """Each test begins at release 0 under one key."""
    monkeypatch.setattr(ledgers, "_check_first", lambda key_hash, step: None)


def begun(steps=3):
    ledger = ReleaseLedger(steps)
    ledger.start(KEY)
    return ledger, ledger.open()


def make(ledger):
    if ledger.due().last:
        with ledger.releasing():
            pass
    else:
        with ledger.summing():
            pass


def test_batches_in_order_are_released():
    ledger, turn = begun()
    for t in range(3):
        for chunk in range(2):
            ledger.deliver(turn, Delivery(t, 5, chunk, 2))
            make(ledger)
    assert ledger.releases == 3
    assert ledger.unfinished == ""
    with pytest.raises(HorizonError):
        ledger.due()
    with pytest.raises(HorizonError):
        ledger.open()


@pytest.mark.parametrize("delivery", [Delivery(1, 5), Delivery(0, 5, 1, 2), Delivery(2, 0)])
def test_a_batch_out_of_turn_is_refused(delivery):
    ledger, turn = begun()
    with pytest.raises(DesynchronizedError, match="came up when 0"):
        ledger.deliver(turn, delivery)


def test_a_batch_whose_release_was_made_is_not_due():
    # as after an interrupt between the end of a release and the note of it
    ledger, turn = begun()
    ledger.deliver(turn, Delivery(0, 5))
    ledger.releases = 1
    with pytest.raises(DesynchronizedError, match="no batch was delivered for release 1"):
        ledger.due()


def test_a_release_counts_before_its_noise_is_drawn():
    ledger, turn = begun()
    ledger.deliver(turn, Delivery(0, 5))
    with pytest.raises(GuaranteeError):
        ledger.check_releasing()
    with ledger.releasing() as step:
        ledger.check_releasing()
        assert step == 0
        assert ledger.releases == 1
    with pytest.raises(GuaranteeError):
        ledger.check_releasing()


def test_steps_are_positive():
    with pytest.raises(ValueError, match="steps=0"):
        ReleaseLedger(0)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(["open", "deliver", "make", "abandon"]), max_size=40), st.integers(1, 3))
@pytest.mark.slow
def test_whatever_is_tried_every_release_has_one_whole_batch(moves, chunks):
    ledger = ReleaseLedger(4)
    ledger.start(KEY)
    turn, place, made = None, (0, 0), []
    for move in moves:
        try:
            if move == "open":
                turn, place = ledger.open(), (ledger.releases, 0)
            elif move == "deliver" and turn is not None and place[0] < 4:
                ledger.deliver(turn, Delivery(place[0], 5, place[1], chunks))
                step, chunk = place
                place = (step, chunk + 1) if chunk + 1 < chunks else (step + 1, 0)
            elif move == "make":
                delivery = ledger.due()
                made.append((delivery.step, delivery.chunk))
                make(ledger)
            elif move == "abandon":
                ledger.abandon()
                made = [m for m in made if m[0] < ledger.releases]
        except GuaranteeError:
            pass
        done = [m for m in made if m[0] < ledger.releases]
        assert done == [(t, c) for t in range(ledger.releases) for c in range(chunks)]

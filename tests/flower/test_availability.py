"""Waiting for clients and for replies: bounded, and by a clock of the test's own."""

import pytest

from anechoic.flower.exchange import Exchange, Waiting
from tests.flower import small


class Clock:
    def __init__(self):
        self.now, self.naps = 100.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += seconds


def waiting(fewest, patience):
    clock = Clock()
    return Waiting(fewest, patience, sleep=clock.sleep, clock=clock), clock


def test_waits_until_enough_are_there():
    found, clock = waiting(3, 60)
    seen = iter([{}, {1: 0}, {1: 0, 2: 0, 3: 0}])
    assert len(found.for_enough(lambda: next(seen))) == 3
    assert clock.now == 102


def test_goes_on_with_those_who_are_there_when_patience_is_spent():
    found, clock = waiting(3, 5)
    assert found.for_enough(lambda: {1: 0}) == {1: 0}
    assert clock.now == 105 and found.over


def test_waits_for_others():
    found, clock = waiting(1, 60)
    seen = iter([{1: 0}, {1: 5}, {2: 0}])
    assert found.for_others({1: 0}, lambda: next(seen)) == {2: 0}
    assert found.for_others({1: 0}, lambda: {1: 0}) is None
    assert clock.now == 160


def test_a_round_begins_anew():
    found, clock = waiting(1, 5)
    clock.now += 10
    assert found.over
    found.begin()
    assert not found.over


def test_says_so_every_ten_seconds(caplog):
    found, _ = waiting(3, 35)
    with caplog.at_level("INFO", logger="flwr"):
        found.for_enough(dict)
    assert len([record for record in caplog.records if "min_available" in record.message]) == 4


def test_short_rounds_come_ever_more_rarely():
    found, clock = waiting(1, 400)
    while found.after_short():
        pass
    assert clock.naps[:4] == [0.125, 0.25, 0.5, 1.0]
    assert max(clock.naps) == 60.0 and sum(clock.naps) == 400.0, "the patience is kept to the second"
    found.begin()
    assert found.after_short() and clock.naps[-1] == 0.125, "the next round begins anew"


def test_many_short_rounds_are_no_error():
    found, clock = waiting(1, float("inf"))
    for _ in range(2000):
        assert found.after_short()
    assert clock.naps[-1] == 60.0


@pytest.mark.parametrize("patience", [-1.0, float("nan"), "x", None, True])
def test_refuses(patience):
    with pytest.raises(ValueError, match=r"patience=.* must be a number of seconds"):
        Waiting(1, patience)


@pytest.mark.parametrize("timeout", [0, -1.0, "x", float("nan")])
def test_an_exchange_refuses(timeout):
    with pytest.raises(ValueError, match="timeout="):
        Exchange(timeout)


class Slow:
    """A grid whose replies come one by one, some seconds apart; the last never."""

    def __init__(self, clock):
        self.clock, self.inner = clock, small.grid(nodes=3)
        self.due = [103.0, 107.0, float("inf")]

    def push_messages(self, messages):
        self.ids = list(self.inner.push_messages(messages))
        return self.ids

    def pull_messages(self, ids):
        due = [name for name, when in zip(self.ids, self.due, strict=True) if when <= self.clock.now]
        return self.inner.pull_messages([name for name in due if name in ids])


def test_an_exchange_ends_with_its_timeout_or_the_last_reply():
    for timeout, expected, end in [(5.0, 1, 105.0), (20.0, 2, 120.0)]:
        clock = Clock()
        slow = Slow(clock)
        exchange = Exchange(timeout, sleep=clock.sleep, clock=clock)
        messages = [
            small.Message(small.RecordDict(), node, "train", group_id="1")
            for node in slow.inner.get_node_ids()
        ]
        assert len(list(exchange(slow, messages))) == expected
        assert clock.now == pytest.approx(end)
        assert max(clock.naps) <= 1.0 and clock.naps[0] == pytest.approx(0.05)
    assert list(exchange(slow, [])) == []


def test_a_round_is_over_with_the_replies_it_needs():
    """The third node never answers: nobody waits for it, nor for the timeout."""
    clock = Clock()
    slow = Slow(clock)
    exchange = Exchange(3600.0, sleep=clock.sleep, clock=clock)
    messages = [
        small.Message(small.RecordDict(), node, "train", group_id="1") for node in slow.inner.get_node_ids()
    ]
    replies = exchange(slow, messages)
    next(replies), next(replies)
    assert 107.0 <= clock.now < 108.5


def test_one_reply_is_fetched_at_a_time():
    """What the caller does not keep is gone before the next one comes."""
    asked, grid = [], small.grid(nodes=5)
    real = grid.pull_messages
    grid.pull_messages = lambda ids: asked.append(list(ids)) or real(ids)
    messages = [small.Message(small.RecordDict(), node, "train") for node in grid.get_node_ids()]
    for number, _ in enumerate(Exchange(1.0)(grid, messages), start=1):
        assert len(asked) == number and all(len(ids) == 1 for ids in asked)
    assert number == 5

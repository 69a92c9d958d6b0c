"""Waiting for clients and for replies: bounded, and by a clock of the test's own."""

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from httpx import ConnectTimeout

from anechoic.flower.exchange import ClientWait, MessageExchange
from tests.flower import small
from tests.flower.in_process import InProcessGrid


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
    return ClientWait(fewest, patience, sleep=clock.sleep, clock=clock), clock


def test_waits_until_enough_are_there():
    found, clock = waiting(3, 60)
    seen = iter([{}, {1: 0}, {1: 0, 2: 0, 3: 0}])
    assert len(found.for_enough(lambda: next(seen))) == 3
    assert clock.now == 102


def test_goes_on_with_those_who_are_there_when_patience_is_spent(caplog):
    found, clock = waiting(3, 35)
    with caplog.at_level("INFO", logger="flwr"):
        assert found.for_enough(lambda: {1: 0}) == {1: 0}
    assert clock.now == 135 and found.over
    assert caplog.text.count("min_available") == 4, "a line every ten seconds"
    found.begin()
    assert not found.over


def test_waits_for_others():
    found, clock = waiting(1, 60)
    seen = iter([{1: 0}, {1: 5}, {2: 0}])
    assert found.for_others({1: 0}, lambda: next(seen)) == {2: 0}
    assert found.for_others({1: 0}, lambda: {1: 0}) is None
    assert clock.now == 160


def test_short_rounds_come_ever_more_rarely():
    found, clock = waiting(1, 400)
    while found.after_short():
        pass
    assert clock.naps[:4] == [0.125, 0.25, 0.5, 1.0]
    assert max(clock.naps) == 60.0 and sum(clock.naps) == 400.0, "the patience is kept to the second"
    found.begin()
    assert found.after_short() and clock.naps[-1] == 0.125, "the next round begins anew"
    found, clock = waiting(1, float("inf"))
    assert all(found.after_short() for _ in range(2000)) and clock.naps[-1] == 60.0


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (lambda patience: ClientWait(1, patience), "patience", [-1.0, float("nan"), "x", None, True]),
        (MessageExchange, "timeout", [0, -1.0, "x", float("nan")]),
    ],
)
def test_refuses(make, name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"{name}="):
            make(value)


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


def slow_replies(timeout):
    clock = Clock()
    slow = Slow(clock)
    messages = [Message(RecordDict(), node, "train") for node in slow.inner.get_node_ids()]
    return clock, MessageExchange(timeout, sleep=clock.sleep, clock=clock)(slow, messages)


@pytest.mark.parametrize(("timeout", "expected", "end"), [(5.0, 1, 105.0), (20.0, 2, 120.0)])
def test_an_exchange_ends_with_its_timeout_or_the_last_reply(timeout, expected, end):
    clock, replies = slow_replies(timeout)
    assert len(list(replies)) == expected
    assert clock.now == pytest.approx(end)
    assert max(clock.naps) <= 1.0 and clock.naps[0] == pytest.approx(0.05)


def test_a_round_is_over_with_the_replies_it_needs():
    """The third node never answers: nobody waits for it, nor for the timeout."""
    clock, replies = slow_replies(3600.0)
    next(replies), next(replies)
    assert 107.0 <= clock.now < 108.5


def test_one_reply_is_fetched_at_a_time():
    """What the caller does not keep is gone before the next one comes."""
    asked, grid = [], small.grid(nodes=5)
    real = grid.pull_messages
    grid.pull_messages = lambda ids: asked.append(list(ids)) or real(ids)
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    for number, _ in enumerate(MessageExchange(1.0)(grid, messages), start=1):
        assert len(asked) == number and all(len(ids) == 1 for ids in asked)
    assert number == 5


class Failing(InProcessGrid):
    """Every second call fails, as where the network is away for a moment."""

    calls, error = 0, None

    def _fail(self):
        self.calls += 1
        if self.calls % 2:
            raise self.error

    def pull_messages(self, message_ids):
        self._fail()
        return super().pull_messages(message_ids)

    def push_messages(self, messages):
        self._fail()
        return super().push_messages(messages)

    def get_nodes(self):
        self._fail()
        return super().get_nodes()

    def get_node_ids(self):
        self._fail()
        return super().get_node_ids()


@pytest.mark.parametrize("error", [ConnectionError("away"), TimeoutError(), ConnectTimeout("away")], ids=repr)
def test_a_connection_that_fails_for_a_moment_is_nobodys_answer(monkeypatch, error):
    grid = Failing(small.client_app(), small.CLIENTS)
    grid.error = error
    models, found = small.run(over=grid, rounds=2)
    small.same(models, small.models_without_flower(rounds=2))
    assert not found.report().refused


def test_a_grid_that_does_not_work_is_not_taken_for_a_client_that_lies():
    grid = small.grid()
    found = small.strategy()
    small.run(found, grid, rounds=1)
    before = found.server.model
    grid.pull_messages = lambda ids: (_ for _ in ()).throw(ConnectionError("the SuperLink is gone"))
    found.start(grid, small.record_of(small.initial()), timeout=0.1)
    assert "too few clients answered" in found.stopped and not found.report().refused
    np.testing.assert_array_equal(found.server.model["w"], before["w"])

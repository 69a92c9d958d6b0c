"""What is read while a stream changes: nothing of a change that may still be undone."""

import enum
import json
import threading
from decimal import Decimal

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import GuaranteeError
from tests.streaming.released import bytes_of


@pytest.fixture(params=["memory", "file"])
def total(request, tmp_path):
    state = tmp_path / "s.db" if request.param == "file" else None
    return streaming.Stream(streaming.Sum(bound=1.0), epsilon=1.0, horizon=20, state=state)


def in_the_third_step(stream, monkeypatch, act):
    """`act` is called in the middle of a group: two of its steps are made, none is kept."""
    publish, calls = stream._publish, []

    def interfering(*arguments):
        calls.append(None)
        if len(calls) == 3:
            act()
        return publish(*arguments)

    monkeypatch.setattr(stream, "_publish", interfering)


def seen(stream):
    return len(list(stream.releases())), len(stream.band()), stream.step, stream.get().step + 1


def test_what_is_not_kept_is_not_read_by_the_same_thread(total, monkeypatch):
    """As by a signal handler. It must not wait for itself either."""
    total.steps([[1.0]] * 2)
    found = []
    in_the_third_step(total, monkeypatch, lambda: found.append(seen(total)))
    total.steps([[1.0]] * 4)
    assert found == [(2, 2, 2, 2)] and seen(total) == (6, 6, 6, 6)


@pytest.mark.parametrize("read", ["releases", "band"])
@pytest.mark.few(2)
def test_other_threads_wait_until_it_is_kept(total, monkeypatch, read):
    total.steps([[1.0]] * 2)
    found, waited = [], []
    reader = threading.Thread(target=lambda: found.extend(getattr(total, read)()))

    def start():
        reader.start()
        reader.join(0.05)
        waited.append(reader.is_alive() and not found)

    in_the_third_step(total, monkeypatch, start)
    total.steps([[1.0]] * 4)
    reader.join()
    assert waited == [True] and [made.step for made in found] == list(range(6))


def test_an_iterator_of_releases_goes_on_beside_a_change(total):
    made = total.steps([[1.0]] * 5)
    begun = total.releases()
    first = next(begun)
    total.steps([[1.0]] * 3)
    assert [*map(bytes_of, (first, *begun))] == [*map(bytes_of, made)]


def test_an_interrupted_group_is_not_seen(total, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    total.steps([[1.0]] * 2, batch_ids=["a", "b"])
    with monkeypatch.context() as patch:
        in_the_third_step(total, patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            total.steps([[1.0]] * 4, batch_ids=list("cdef"))
    assert seen(total) == (2, 2, 2, 2)
    with pytest.raises(GuaranteeError):
        total.steps([[1.0]], batch_ids=["c"])
    assert [made.step for made in total.steps([[1.0]], batch_ids=["b"])] == [1]


def test_a_change_inside_of_a_change_is_refused(total, monkeypatch):
    inner = []

    class Batch:
        def __array__(self, *_, **__):
            try:
                total.release()
            except GuaranteeError as error:
                inner.append(str(error))
            return np.array([1.0])

    total.update(Batch())
    assert inner and all("came from inside of another one" in text for text in inner) and total.step == 0
    assert total.release().step == 0


def test_iterators_of_batches_may_use_the_stream(total):
    def batches():
        yield [1.0]
        total.release()
        yield [1.0]

    assert [made.step for made in total.steps(batches())] == [1, 2]


class Moment(enum.StrEnum):
    NOW = "2013-01-01"


BAD_TIMES = [object(), True, float("nan"), float("inf"), 10**400, Decimal(1), b"1", np.datetime64("2013")]


@pytest.mark.parametrize("time", BAD_TIMES, ids=lambda time: type(time).__name__)
@pytest.mark.few(2)
def test_times_of_other_kinds_change_nothing(total, time):
    for act in (lambda: total.release(time), lambda: total.steps([[1.0]] * 2, times=[None, time])):
        with pytest.raises(ValueError, match="must be text that sorts"):
            act()
    assert total.step == 0 and total.release().step == 0


@pytest.mark.parametrize("time", [np.int64(3), np.float32(3), 3, 3.5, Moment.NOW, np.str_("a"), None])
@pytest.mark.few(2)
def test_times_are_kept_as_plain_ones(total, time):
    kept = total.steps([[1.0]], times=[time])[0].time
    assert kept == time and type(kept) in (int, float, str, type(None))
    assert next(total.releases()).time == time and json.dumps(kept)

"""The forms of one version ago: a statistic with a promise is a stream of it, with a warning."""

import copy
import inspect

import pytest

from anechoic import streaming
from anechoic.streaming.short_forms import PROMISE, SHORT

KEY = bytes(range(32))


def test_a_statistic_with_a_promise_is_a_stream_of_it():
    with pytest.warns(DeprecationWarning, match=r"^Mean\(…\) with epsilon, horizon, key is Stream"):
        old = streaming.Mean(low=-1.0, high=1.0, epsilon=1.0, horizon=4, key=KEY)
    new = streaming.Stream(streaming.Mean(-1.0, 1.0), epsilon=1.0, horizon=4, key=KEY)
    assert isinstance(old, streaming.Stream) and old._identity() == new._identity()


def test_no_argument_of_a_statistic_is_taken_for_a_promise():
    for kind in SHORT:
        assert not PROMISE & inspect.signature(kind.__init__).parameters.keys()


def test_a_statistic_without_a_promise_is_itself():
    one = streaming.Count()
    assert isinstance(one, streaming.Count) and isinstance(copy.deepcopy(one), streaming.Count)
    with pytest.raises(ValueError, match="must be a Statistic, such as Count"):
        streaming.Stream("count", epsilon=1.0)


def test_one_statistic_goes_by_its_own_name():
    assert list(streaming.Stream(streaming.Count(), epsilon=1.0).release()) == ["count"]

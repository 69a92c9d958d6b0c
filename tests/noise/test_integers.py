"""Integers from the keystream: exact laws, addressed draws."""

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from anechoic.noise.keystream import Integers, keystream
from tests.noise.streams import KEY


def draws(*address):
    return Integers(KEY, "test", *address)


def test_raw_words_are_the_keystream_in_order():
    one, whole = draws(3), keystream(KEY, "test", 3).words(0, 20)
    np.testing.assert_array_equal(np.concatenate([one.raw(3), one.raw(0), one.raw(17)]), whole)


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1000, 2**62 + 1, 2**63])
def test_integers_are_uniform(limit):
    found = draws(limit).below(limit, 30_000)
    assert found.dtype == np.int64 and found.min() >= 0 and found.max() < limit
    if limit <= 1000:
        assert stats.chisquare(np.bincount(found, minlength=limit)).pvalue > 1e-3 or limit == 1
    else:
        assert stats.kstest(found / limit, "uniform").pvalue > 1e-3


def test_words_that_would_make_a_law_unequal_are_drawn_again(monkeypatch):
    limit = 2**63 - 1  # 2**64 holds it twice, and two words more
    given = iter(
        [np.array([2**64 - 1, 5, 2**64 - 2, 2**64 - 3], np.uint64), np.array([2**64 - 1, 7], np.uint64)]
    )
    rest = np.array([9], np.uint64)
    monkeypatch.setattr(Integers, "raw", lambda self, count: next(given, rest))
    assert draws(0).below(limit, 4).tolist() == [9, 5, 7, limit - 1]


@pytest.mark.parametrize("limit", [0, -1, 2**63 + 1, 2.0])
def test_bad_limits_are_refused(limit):
    with pytest.raises(ValueError, match="limit="):
        draws(0).below(limit, 3)


def test_permutations_are_uniform():
    orders = list(permutations(range(4)))
    counts = dict.fromkeys(orders, 0)
    source = draws(1)
    for _ in range(4800):
        counts[tuple(source.permutation(4).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    assert sorted(source.permutation(1000).tolist()) == list(range(1000))
    assert source.permutation(0).tolist() == []


def test_an_order_with_equal_words_is_drawn_again(monkeypatch):
    given = iter([np.array([4, 4, 1], np.uint64), np.array([4, 5, 1], np.uint64)])
    monkeypatch.setattr(Integers, "raw", lambda self, count: next(given))
    assert draws(0).permutation(3).tolist() == [2, 0, 1]


def test_draws_follow_from_their_address():
    assert np.array_equal(draws(9).raw(5), draws(9).raw(5))
    assert not np.array_equal(draws(9).raw(5), draws(8).raw(5))

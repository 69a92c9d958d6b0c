"""What is left of a long series: no more than asked for, with its ends and whatever sticks out."""

import numpy as np
import pytest

from anechoic.algebra.thinning import thinned
from tests.marks import in_turn


@in_turn("n", [1, 2, 3, 4, 5, 9, 10, 11, 57, 100, 101, 1000])
def test_no_more_than_asked_for_and_the_ends(n):
    values = np.random.default_rng(n).normal(size=n)
    for most in (4, 5, 10, 57):
        places = thinned(values, most)
        assert len(places) <= most and (np.diff(places) > 0).all()
        assert places[0] == 0 and places[-1] == n - 1
        assert {int(values.argmin()), int(values.argmax())} <= set(places.tolist()) or n <= 2


def test_a_short_series_is_kept_whole():
    assert thinned(np.ones(10), 10).tolist() == list(range(10))


@pytest.mark.parametrize("place", [0, 1, 497, 998, 999])
def test_a_single_value_that_sticks_out_is_kept(place):
    values = np.linspace(0.0, 1.0, 1000)
    values[place] = 5.0
    assert place in thinned(values, 20)

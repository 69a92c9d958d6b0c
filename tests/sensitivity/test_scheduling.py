"""Algorithm 3.2 against enumeration."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.sensitivity.scheduling import best_schedule
from tests.marks import in_turn


def enumerated(rewards, separation, count):
    n = len(rewards)
    return max(
        sum(rewards[t] for t in steps)
        for size in range(min(n, count) + 1)
        for steps in combinations(range(n), size)
        if all(b - a >= separation for a, b in pairwise(steps))
    )


def rewards(rng, n, kind):
    drawn = rng.exponential(size=n)
    match kind:
        case "falling":
            return np.sort(drawn)[::-1]
        case "rising":
            return np.sort(drawn)
        case "sparse":
            return drawn * (rng.random(n) < 0.3)
        case _:
            return drawn


@settings(max_examples=400)
@given(
    st.integers(0, 10**6),
    st.integers(1, 10),
    st.integers(1, 12),
    st.integers(0, 12),
    st.sampled_from(["any", "falling", "rising", "sparse"]),
)
@pytest.mark.slow
def test_equals_enumeration(seed, n, separation, count, kind):
    r = rewards(np.random.default_rng(seed), n, kind)
    assert best_schedule(r, separation, count) == pytest.approx(enumerated(r, separation, count), rel=1e-13)


@in_turn("count", [0, 1, 2, 3, 6, 20])
@in_turn("separation", [1, 2, 3, 7, 20, 30])
def test_many_rows_at_once(separation, count):
    rows = np.random.default_rng(1).random((5, 20))
    rows[0].sort()
    rows[1] = np.sort(rows[1])[::-1]
    found = best_schedule(rows, separation, count)
    assert found == pytest.approx([float(best_schedule(row, separation, count)) for row in rows])


def test_the_argument_is_left_alone():
    r = np.random.default_rng(2).random(30)
    kept = r.copy()
    for count in (1, 3, 30):
        best_schedule(r, 4, count)
    assert (r == kept).all()


def test_steps_that_are_one_separation_apart_are_both_allowed():
    r = np.array([1.0, 0.0, 0.0, 5.0, 0.0, 0.0, 7.0])
    assert best_schedule(r, 3, 3) == 13.0
    assert best_schedule(r, 4, 3) == 8.0

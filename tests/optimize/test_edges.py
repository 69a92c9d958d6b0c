"""Corners of the input space: steps left out, zeros inside the unit disc, patterns that overlap.

Everywhere: no bound above a loss, no result worse than a class that the optimised one contains, no NaN.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import optimize, workloads
from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss
from anechoic.lower_bounds.dispatch import lower_bound
from anechoic.lower_bounds.patterns import maximal_patterns
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several_participations import contained_patterns
from anechoic.optimize.result import Optimized
from anechoic.participation import Cyclic, FullBatch, MinSep, Patterns, Single
from anechoic.strategies import ColumnNormalized, Dense, Identity, Toeplitz
from tests.marks import in_turn
from tests.optimize.test_optimizer_contract import OPTIMISERS

KINDS = ("rms", "max", "last")
# a zero of the workload lies inside the unit disc: the coefficients of its root grow
INSIDE = {
    "two": [1.0, 2.0],
    "four": [0.5, 1.0, 1.0, 1.0],
    "rising": [1.0, 1.5, 2.0, 2.5],
    "alternating": [1.0, -3.0],
    "far": [1.0, 0.0, 0.0, 4.0],
}


@st.composite
def listed(draw, most=9):
    """A number of steps and patterns of which some reach beyond it; at least one step is touched."""
    n = draw(st.integers(1, most))
    steps = st.sets(st.integers(0, n + 1), min_size=1, max_size=4)
    patterns = draw(st.lists(steps, min_size=1, max_size=5))
    if not any(step < n for pattern in patterns for step in pattern):
        patterns.append({draw(st.integers(0, n - 1))})
    return n, Patterns([sorted(pattern) for pattern in patterns])


def test_steps_that_nobody_touches_cost_nothing():
    schema = Patterns([(0,)])
    without_noise_later = Dense(np.diag([1.0, 1e3, 1e3, 1e3]))
    reached = loss(workloads.prefix_sum(4), without_noise_later, schema)
    assert lower_bound(workloads.prefix_sum(4), schema, "rms").value <= reached < 1.000001
    assert lower_bound(workloads.prefix_sum(4), Single(), "rms").value > 1.3


@settings(max_examples=25, deadline=None, derandomize=True)
@given(listed(), st.sampled_from(KINDS), st.sampled_from(["sums", "momentum", "rates"]))
@pytest.mark.slow
def test_no_strategy_beats_the_bound_of_listed_patterns(case, kind, name):
    n, schema = case
    workload = workloads.prefix_sum(n)
    if name == "momentum":
        workload = workloads.momentum(n, 0.9)
    if name == "rates":
        workload = workloads.scheduled(workload, np.where(np.arange(n) % 2, 1.0, 1e-3))
    unseen = np.setdiff1d(np.arange(n), schema.touched(n))
    for other in (Identity(n), ColumnNormalized(Toeplitz.square_root(workloads.prefix_sum(n)))):
        c = other.to_dense()
        c[:, unseen] *= 1e3
        assert 0 < lower_bound(workload, schema, kind).value <= loss(workload, Dense(c), schema, kind)


def test_nobody_takes_part():
    assert lower_bound(workloads.prefix_sum(3), Patterns([(5,)]), "rms") is None


UNTIL_THREE = np.array([1.0, 1.0, 1.0, 0.0])  # the last step does not count
WINDOW = workloads.sliding_window(8, 2)


@in_turn(
    "workload, patterns, kind",
    [
        (WINDOW, [(0,)], "last"),
        (WINDOW, [(0, 1), (2,)], "last"),
        (workloads.prefix_sum(4), [(3,)], UNTIL_THREE),
        (workloads.restart_differences(workloads.prefix_sum(7), period=3), [(4,)], "last"),
    ],
)
def test_steps_on_which_no_error_that_counts_depends_have_no_bound(workload, patterns, kind):
    assert lower_bound(workload, Patterns(patterns), kind) is None


def test_only_maximal_patterns_are_kept():
    assert maximal_patterns([(0, 1), (1,), (0, 1, 3), (2,), (2, 3)]) == [(0, 1, 3), (2, 3)]


def test_a_negative_gap_raises():
    found = Optimized(Identity(4), 1.0, None, None, 1, 0.0)
    with pytest.raises(ArithmeticError, match="lies below the bound"):
        found.against(Bound(1.1, "a theorem"))
    with pytest.raises(ArithmeticError, match="gap=-0.5"):
        Optimized(Identity(4), 1.0, 2.0, -0.5, 1, 0.0)
    # rounding may push the one past the other
    assert found.against(Bound(1.0 + 1e-12, "a theorem")).gap == 0.0
    for lost in (math.nan, math.inf, 0.0):
        with pytest.raises(ArithmeticError, match="beyond float64"):
            Optimized(Identity(4), lost, None, None, 1, 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", INSIDE)
def test_toeplitz_optimum_where_the_root_is_no_start(name, kind):
    workload = workloads.from_coefficients(INSIDE[name], 64)
    found = optimize.toeplitz(workload, loss=kind)
    assert found.bound_covers == "lower-triangular Toeplitz strategies"
    assert found.gap < 1e-6
    assert found.loss <= loss(workload, Identity(64), Single(), kind)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=5),
    st.integers(6, 40),
    st.sampled_from([Single(), MinSep(4), MinSep(3, 2), Cyclic(5), FullBatch()]),
)
@pytest.mark.slow
def test_toeplitz_is_no_worse_than_what_it_contains(rest, n, schema):
    workload = workloads.from_coefficients([1.0, *rest], n)
    found = optimize.toeplitz(workload, participation=schema)
    contained = [loss(workload, Identity(n), schema)]
    contained += [optimize.banded_inverse(workload, bands=b, participation=schema).loss for b in (2, 4)]
    contained += [optimize.blt(workload, participation=schema, loss="rms").loss]
    contained += [optimize.banded_toeplitz(workload, bands=b, participation=schema).loss for b in (2, 5)]
    assert found.loss <= (1 + 1e-6) * min(contained)
    assert found.gap is None or found.gap >= 0


@in_turn("schema", [MinSep(3, 2), MinSep(2, 4), MinSep(4), MinSep(9, 2), MinSep(20)])
@in_turn("n", [9, 10, 13])
def test_contained_patterns_are_allowed_and_reach_every_step(schema, n):
    patterns = [tuple(int(t) for t in row if t >= 0) for row in contained_patterns(schema, n)]
    allowed = set(schema.patterns(n))
    assert all(pattern in allowed for pattern in patterns)
    assert {step for pattern in patterns for step in pattern} == set(range(n))


UNEVEN = workloads.scheduled(workloads.prefix_sum(18), 10.0 ** np.random.default_rng(7001).uniform(-2, 0, 18))


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("schema", [Single(), MinSep(15, 2), FullBatch()], ids=repr)
@pytest.mark.few(5)
def test_no_optimiser_is_worse_than_independent_noise(name, schema):
    """Where it is best (nothing is added up), and where learning rates mislead a search."""
    for workload in (workloads.from_coefficients([1.0], 18), UNEVEN):
        if name == "dense" and isinstance(schema, MinSep):
            continue
        for kind in ("rms", "max") if workload is not UNEVEN else ("rms",):
            plain = loss(workload, Identity(18), schema, kind)
            size = {"bands": 1} if name in ("banded", "banded_toeplitz") else {}
            found = OPTIMISERS[name](workload, participation=schema, loss=kind, **size)
            assert found.loss <= plain * (1 + 1e-11), (name, schema, kind)


@in_turn("name", OPTIMISERS)
def test_more_steps_than_memory_are_refused(name):
    if name != "blt":  # in closed form
        with pytest.raises(UnsupportedError, match=r"n=1000000000 must be at most"):
            OPTIMISERS[name](workloads.prefix_sum(10**9))
    with pytest.raises(UnsupportedError, match="must be at most 16,384"):
        optimize.dense(workloads.prefix_sum(20_000))

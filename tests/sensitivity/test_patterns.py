"""Listed patterns: the enumeration against brute force, and against the schemas it can spell out."""

import json
from itertools import product

import numpy as np
import pytest

from anechoic import _serialize
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sensitivity import patterns
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedToeplitz, Dense, Identity
from tests.sensitivity.brute import supremum
from tests.zoo import STRATEGIES, dense, every


@pytest.mark.parametrize("name", every(lambda strategy: strategy.n <= 13))
@pytest.mark.few(21)
def test_never_below_the_supremum_and_equal_where_exact(name):
    strategy = STRATEGIES[name]
    rng = np.random.default_rng(len(name))
    n = strategy.n
    patterns = [rng.choice(n, size=rng.integers(1, n + 1), replace=False).tolist() for _ in range(4)]
    schema = Patterns(patterns)
    found, least = sensitivity(strategy, schema), supremum(strategy, schema)
    assert found.value >= least * (1 - 1e-12)
    if found.exact:
        assert found.value == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("schema", [Single(), Cyclic(4), MinSep(3, 2), OncePerEpoch(3), FullBatch()])
def test_lists_of_other_schemas_agree_with_them(schema):
    for strategy in (dense(8, signs="positive"), dense(8), BandedToeplitz(8, [1.0, 0.5, 0.25])):
        exact = sensitivity(strategy, schema)
        spelled = sensitivity(strategy, Patterns(list(schema.patterns(8))))
        assert spelled.exact
        assert spelled.value <= exact.value * (1 + 1e-9)
        if exact.exact:
            assert spelled.value == pytest.approx(exact.value, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "schema"),
    [(11, MinSep(1, 4)), (14, MinSep(3, 4)), (16, MinSep(2, 4)), (30, MinSep(8, 3)), (16, OncePerEpoch(4))],
)
def test_few_patterns_of_mixed_signs_are_listed(n, schema):
    """Bounds by theorem lay up to 15 % above; the list is exact, and not below signs tried one by one."""
    rng = np.random.default_rng(n)
    matrix = np.tril(rng.normal(size=(n, n)), -1) + 2.0 * np.eye(n)
    found = sensitivity(Dense(matrix), schema)
    assert found.exact
    assert found.value == pytest.approx(sensitivity(Dense(matrix), Patterns(schema.patterns(n))).value)
    longest = [pattern for pattern in schema.patterns(n) if len(pattern) == schema.max_participations_in(n)]
    signs = np.array(list(product([1.0, -1.0], repeat=len(longest[0]))))
    tried = max(float(np.linalg.norm(matrix[:, pattern] @ signs.T, axis=0).max()) for pattern in longest)
    assert tried <= found.value * (1 + 1e-12) and found.value < 1.05 * tried


def test_bound_where_patterns_are_too_many_to_solve(monkeypatch):
    strategy = dense(9, seed=3)
    schema = Patterns([range(9), (0, 2, 4, 6), (1, 3, 5)])
    exact = sensitivity(strategy, schema)
    monkeypatch.setattr(patterns, "CUBES", 0)
    bound = sensitivity(strategy, schema)
    assert not bound.exact
    assert bound.value >= exact.value
    monkeypatch.setattr(patterns, "ENTRIES", 10)
    triangle = sensitivity(strategy, schema)
    assert not triangle.exact
    assert triangle.value >= exact.value
    assert "triangle" in triangle.method


def test_steps_beyond_a_shorter_run_are_left_out():
    schema = Patterns([(0, 5, 9), (7, 8)])
    assert list(schema.patterns(6)) == [(0, 5)]
    assert schema.max_participations_in(6) == 2
    assert float(sensitivity(Identity(6), schema)) == pytest.approx(np.sqrt(2))
    assert not sensitivity(Identity(4), Patterns([(7, 8)])).exact  # nobody: still positive
    assert schema.max_participations_in(10) == 3


def test_round_trip_and_normal_form():
    schema = Patterns([(5, 0), [1, 3], (0, 5)])
    assert schema.steps == ((0, 5), (1, 3))
    again = _serialize.decode(json.loads(json.dumps(_serialize.encode(schema))))
    assert again == schema
    assert hash(again) == hash(schema)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "no pattern"),
        ([()], "empty"),
        ([(0, 0)], "repeats"),
        ([(-1,)], "step=-1"),
        ([(0.5,)], "step=0.5"),
        ("abc", "list of patterns"),
        ([3], "list of steps"),
    ],
)
def test_refusals(steps, message):
    with pytest.raises(ValueError, match=message):
        Patterns(steps)

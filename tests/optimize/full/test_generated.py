"""Bounds from generated patterns: allowed patterns, bounds below what brute force finds, and nearly met."""

from importlib import import_module

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.losses.kinds import row_weights
from anechoic.participation import MinSep, OncePerEpoch
from anechoic.strategies import Dense
from tests.marks import each_once, in_turn

module = import_module("anechoic.optimize.full.generated")

SCHEMAS = [MinSep(2, 2), MinSep(1, 3), MinSep(3), OncePerEpoch(3), OncePerEpoch(4)]


@in_turn("schema", SCHEMAS)
@in_turn("n", [5, 8, 11])
def test_heavy_patterns_are_allowed_and_hold_every_step(n, schema):
    allowed = set(schema.patterns(n))
    gram = np.random.default_rng(0).standard_normal((n, n))
    found = module.heavy_patterns(gram @ gram.T, schema)
    assert found <= allowed
    assert {step for pattern in found for step in pattern} == set(range(n))


def test_the_heaviest_step_joins_in_turn():
    gram = np.eye(5)
    gram[0, 3] = gram[3, 0] = -5.0
    gram[3, 4] = gram[4, 3] = 9.0
    # 4 is next to 3, so that 0 takes 3, and 4 takes the first of those that are left
    found = module.heavy_patterns(gram, MinSep(2, 2))
    assert (0, 3) in found and (0, 4) in found


@pytest.mark.parametrize(("schema", "kind"), each_once(SCHEMAS, ["rms", "max"]))
@pytest.mark.slow
def test_generated_bounds_hold(schema, kind):
    n = 7
    workload = workloads.momentum(n, 0.5)
    weights = None if kind == "max" else row_weights(kind, n)
    bound, _ = module.generated_bound(workload.to_dense(), weights, schema)
    rng = np.random.default_rng(0)
    begin = optimize.dense(workload, participation=schema, loss=kind)
    assert bound.value <= begin.loss * (1 + 1e-9)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(5):
            c = begin.strategy.to_dense() + size * np.tril(rng.standard_normal((n, n)))
            c[np.diag_indices(n)] = np.abs(c.diagonal()) + 0.1 * size
            assert loss(workload, Dense(c), schema, kind) >= bound.value


def test_a_strategy_for_generated_patterns_closes_the_gap():
    # 2.0757 with columns that are orthogonal on the patterns, 2.0400 by combs
    found = optimize.dense(workloads.prefix_sum(5), participation=MinSep(2, 2))
    assert found.loss < 2.0641 and found.gap < 1e-3
    restarts = workloads.restart_differences(workloads.prefix_sum(17), period=4)
    assert optimize.dense(restarts, participation=OncePerEpoch(4)).gap < 1e-4


@pytest.mark.slow
def test_bounds_grow_by_generated_patterns(monkeypatch):
    a, schema = workloads.prefix_sum(20).to_dense(), OncePerEpoch(5)
    best = module.generated_bound(a, row_weights("rms", 20), schema)[0].value
    monkeypatch.setattr(module, "GENERATIONS", 1)
    assert best > 1.02 * module.generated_bound(a, row_weights("rms", 20), schema)[0].value

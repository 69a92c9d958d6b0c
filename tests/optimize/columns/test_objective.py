"""Squared errors of banded columns: derivatives against dense algebra, windows."""

from importlib import import_module

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import banded as algebra
from anechoic.workloads.inverses import recursion_columns
from tests.marks import in_turn
from tests.optimize.columns.banded_cases import WORKLOADS, free_columns

objectives = import_module("anechoic.optimize.columns.objective")
searches = import_module("anechoic.optimize.columns.search")


@pytest.mark.parametrize("name", WORKLOADS)
@in_turn(("n", "bands"), [(1, 1), (2, 2), (5, 5), (53, 5), (97, 1), (80, 40), (48, 24)])
def test_derivatives_are_those_of_dense_algebra(name, n, bands):
    workload, columns = WORKLOADS[name](n), free_columns(n, bands)
    weights = np.random.default_rng(0).random(n)
    a, c = workload.to_dense(), algebra.dense(columns)
    b, inverse = a @ np.linalg.inv(c), np.linalg.inv(c.T @ c)
    squares = np.square(b).sum(axis=1)
    gradient = -2 * b.T @ (weights[:, None] * b) @ np.linalg.inv(c).T
    multipliers = inverse @ a.T @ (weights[:, None] * a) @ inverse
    parts = recursion_columns(workload)
    recursion = objectives.BlockObjective if len(parts) == 1 else objectives.SumsObjective
    for objective in (objectives.DenseObjective(a), recursion(*parts, bands)):
        np.testing.assert_allclose(objective.squares(columns), squares, rtol=1e-9)
        found = objective(columns, searches.weighted(weights))
        assert found.value == pytest.approx(weights @ squares, rel=1e-9)
        expected = algebra.from_dense(gradient, bands)
        np.testing.assert_allclose(found.gradient, expected, atol=1e-9 * np.abs(gradient).max())
        expected = algebra.from_dense(multipliers, bands)
        scale = np.abs(multipliers).max()
        np.testing.assert_allclose(objective.multipliers(columns, weights), expected, atol=1e-9 * scale)


def test_what_has_a_recursion_is_not_made_dense():
    for workload in (workloads.nesterov(200, 0.9), workloads.sliding_window(200, 20)):
        assert isinstance(objectives.objective_of(workload, 4), objectives.SumsObjective)
    long = workloads.from_coefficients(np.linspace(1.0, 0.5, 200), 200)
    assert isinstance(objectives.objective_of(long, 4), objectives.DenseObjective)


@pytest.mark.parametrize("blocks", [range(3), range(1, 4), range(2, 5), range(5)])
@pytest.mark.parametrize(
    ("method", "n"), [(workloads.momentum, 113), (workloads.nesterov, 57)], ids=["momentum", "nesterov"]
)
def test_a_window_is_the_whole_with_some_columns_fixed(method, n, blocks):
    bands, workload = 6, method(n, 0.5, weight_decay=0.1)
    objective = objectives.objective_of(workload, bands)
    assert objective.count == 5
    columns, weights = free_columns(n, bands), np.random.default_rng(0).random(n)
    window = objective.window(columns, weights, objective.state(columns, weights), blocks)
    whole = objective(columns, searches.weighted(weights))
    value, gradient = window(columns[window.free])
    np.testing.assert_allclose(gradient, whole.gradient[window.free], rtol=1e-9, atol=1e-10)
    changed = columns.copy()
    changed[window.free] = free_columns(n, bands, seed=1)[window.free]
    expected = objective(changed, searches.weighted(weights)).value - whole.value
    assert window(changed[window.free])[0] - value == pytest.approx(expected, rel=1e-9)

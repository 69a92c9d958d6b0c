"""Bounds from rows, and columns whose largest errors are level."""

from importlib import import_module

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import banded as algebra
from anechoic.optimize import banded
from anechoic.participation import MinSep
from tests.optimize.columns.banded_cases import WORKLOADS, free_columns, unit

objectives = import_module("anechoic.optimize.columns.objective")
scaling = import_module("anechoic.optimize.columns.scales")
rows = import_module("anechoic.optimize.columns.rows")


@pytest.mark.slow
def test_bounds_by_rows_for_some_of_the_steps():
    n, bands, schema = 26, 5, MinSep(5)
    workload, some = workloads.prefix_sum(n), np.where(np.arange(n) % 3 == 0, 1.0, 0.0)
    scales = scaling.scales_of(schema, np.ones((n, 1)), bands)
    best = banded(workload, bands=bands, participation=schema, loss=some)
    columns, weights = np.array(best.strategy.columns), some / some.sum()
    assert 0.9 * best.loss < rows.bound_by_rows(workload, scales, columns, weights) <= best.loss


@pytest.mark.parametrize(("n", "bands"), [(1, 1), (7, 1), (13, 4), (13, 13)])
def test_rows_are_orthogonal_and_their_products_paid_for(n, bands):
    images = np.random.default_rng(0).standard_normal((n, n))
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < bands
    made = rows._orthogonal(images, bands)
    products = made @ made.T
    assert np.abs(np.where(near, products, 0.0) - np.diag(products.diagonal())).max() < 1e-13 * n
    # of any rows: the diagonal dominates what lies in the bands
    inside = np.where(near, images @ images.T, 0.0)
    assert np.linalg.eigvalsh(np.diag(rows._multipliers(images, bands)) - inside).min() > -1e-9
    np.testing.assert_allclose(rows._multipliers(made, bands), products.diagonal(), rtol=1e-11)


def test_slopes_of_single_errors():
    n, bands = 13, 4
    workload = WORKLOADS["rates"](n)
    objective, columns = objectives.DenseObjective(workload.to_dense()), free_columns(n, bands)
    found = rows._slopes(workload, columns, np.array([0, 5, 12]))
    for place, t in enumerate((0, 5, 12)):
        gradient = objective(columns, lambda squares, t=t: (squares[t], np.eye(n)[t])).gradient
        np.testing.assert_allclose(algebra.inside(found[place]), gradient, atol=1e-12)


@pytest.mark.slow
def test_level_columns_have_a_smaller_largest_error():
    n, bands = 60, 5
    workload = workloads.prefix_sum(n)
    best = banded(workload, bands=bands, loss="max")
    objective, columns = objectives.objective_of(workload, bands), np.array(best.strategy.columns)
    rng = np.random.default_rng(0)
    bent = unit(algebra.inside(columns * (1 + 3e-3 * rng.standard_normal(columns.shape))))
    squares = objective.squares(columns)
    weights = np.where(squares > (1 - 1e-3) * squares.max(), 1.0, 0.0)
    weights /= weights.sum()
    found = rows.level(workload, objective.squares, bent, np.ones((n, 1)), weights)
    before, after = objective.squares(bent).max(), objective.squares(found).max()
    assert after < squares.max() + 0.3 * (before - squares.max())
    np.testing.assert_allclose(np.square(found).sum(axis=1), 1.0)

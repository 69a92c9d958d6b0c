"""Column-normalised classes: gradients, no loss above the normalised plain optimum, brute force, refusals."""

from importlib import import_module

import numpy as np
import pytest
from scipy.optimize import minimize

from anechoic import optimize, workloads
from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss
from anechoic.losses.norms import row_weights
from anechoic.optimize import column_normalized
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.strategies import ColumnNormalized
from tests.marks import each_pair

module = import_module("anechoic.optimize.columns.normalized")
searches = import_module("anechoic.optimize.columns.search")
objectives = import_module("anechoic.optimize.columns.objective")

WORKLOADS = {
    "prefix": lambda n: workloads.prefix_sum(n),
    "momentum": lambda n: workloads.momentum(n, 0.9, weight_decay=0.1),
    "inside": lambda n: workloads.from_coefficients([1.0, 2.0][:n], n),
}


def dense_normalized(column, n):
    c = sum(np.diag(np.full(n - lag, value), -lag) for lag, value in enumerate(column))
    return c / np.linalg.norm(c, axis=0)


@pytest.mark.parametrize(
    ("n", "bands", "name", "kind"),
    each_pair([(1, 1), (7, 1), (13, 4), (13, 13)], WORKLOADS, ["rms", "max", "last"]),
)
def test_never_above_the_normalised_plain_optimum(n, bands, name, kind):
    workload = WORKLOADS[name](n)
    found = column_normalized(workload, bands=bands, loss=kind)
    plain = ColumnNormalized(optimize.banded_toeplitz(workload, bands=bands, loss=kind).strategy)
    assert found.loss <= loss(workload, plain, Single(), kind)
    assert found.loss == pytest.approx(loss(workload, found.strategy, Single(), kind), rel=1e-9)
    np.testing.assert_allclose(found.strategy.column_norms_squared(), 1.0)
    c = found.strategy.to_dense()
    squares = np.square(workload.to_dense() @ np.linalg.inv(c)).sum(axis=1)
    expected = {"rms": squares.mean(), "max": squares.max(), "last": squares[-1]}[kind]
    assert found.loss == pytest.approx(np.sqrt(expected), rel=1e-9)
    assert found.gap is None or found.gap >= 0


@pytest.mark.parametrize("kind", ["rms", "last"])
def test_optimum_by_another_solver(kind):
    n, bands = 13, 4
    a, w = workloads.prefix_sum(n).to_dense(), row_weights(kind, n)

    def value(free):
        b = a @ np.linalg.inv(dense_normalized([1.0, *free], n))
        return float(np.sqrt(w @ np.square(b).sum(axis=1)))

    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 2000}
    start = np.array([0.5, 0.4, 0.3])
    brute = minimize(value, start, method="Nelder-Mead", options=options).fun
    found = column_normalized(workloads.prefix_sum(n), bands=bands, loss=kind)
    assert found.loss == pytest.approx(brute, rel=1e-7)
    plain = optimize.banded_toeplitz(workloads.prefix_sum(n), bands=bands, loss=kind).strategy
    assert found.loss < loss(workloads.prefix_sum(n), ColumnNormalized(plain), Single(), kind) * (1 - 1e-5)


@pytest.mark.parametrize(("n", "bands"), [(1, 1), (5, 1), (13, 4), (9, 9)])
def test_gradient(n, bands):
    workload, weights = workloads.momentum(n, 0.5), np.linspace(1.0, 2.0, n)
    errors = module.NormalizedErrors(objectives.objective_of(workload, bands), n)
    column = np.r_[1.0, 0.5 * np.random.default_rng(0).random(bands - 1)]
    np.testing.assert_allclose(np.sum(np.square(module.normalized(column, n)), axis=1), 1.0, rtol=1e-12)
    mean = searches.weighted(weights / weights.sum())
    _, gradient = errors(column, mean)
    steps = 1e-6 * np.eye(bands)
    differences = [(errors(column + s, mean)[0] - errors(column - s, mean)[0]) / 2e-6 for s in steps]
    np.testing.assert_allclose(gradient, differences, atol=1e-8)
    assert gradient @ column == pytest.approx(0.0, abs=1e-12)  # the scale of c changes nothing


@pytest.mark.parametrize("schema", [Cyclic(5), MinSep(6, 2)], ids=repr)
def test_several_participations(schema):
    n, bands = 23, 5
    workload = workloads.prefix_sum(n)
    found = column_normalized(workload, bands=bands, participation=schema)
    plain = optimize.banded_toeplitz(workload, bands=bands, participation=schema).strategy
    assert found.loss <= loss(workload, ColumnNormalized(plain), schema)
    assert optimize.banded(workload, bands=bands, participation=schema).loss <= found.loss


def test_refused_workloads():
    with pytest.raises(UnsupportedError, match="not Toeplitz"):
        column_normalized(workloads.from_dense(np.tril(np.arange(1.0, 10.0).reshape(3, 3))), bands=2)
    with pytest.raises(UnsupportedError, match="few bands"):
        column_normalized(workloads.sliding_window(5000, 100), bands=2)

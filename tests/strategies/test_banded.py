"""Banded strategies and the algebra under them, against dense linear algebra."""

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import banded
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Banded, BandedToeplitz, ColumnNormalized, Dense, Restarted
from anechoic.strategies.banded import columns_of
from anechoic.workloads.inverses import inverse_columns
from tests.marks import in_turn
from tests.optimize.columns.banded_cases import free_columns

SIZES = [(1, 1), (2, 1), (2, 2), (5, 5), (7, 3), (24, 3), (25, 2), (53, 5), (97, 1), (100, 30), (131, 33)]


@pytest.mark.parametrize(("n", "bands"), SIZES)
def test_algebra(n, bands, monkeypatch):
    monkeypatch.setattr(banded, "STRETCH", 2 * 24**2)
    columns = free_columns(n, bands)
    dense = banded.dense(columns)
    assert np.array_equal(banded.from_dense(dense, bands), columns)
    rng = np.random.default_rng(1)
    for shape in ((n,), (n, 3), (n, 2, 2)):
        x = rng.standard_normal(shape)
        np.testing.assert_allclose(banded.multiply(columns, x), np.tensordot(dense, x, axes=1), atol=1e-13)
        solved = banded.solve(columns, x)
        np.testing.assert_allclose(np.tensordot(dense, solved, axes=1), x, atol=1e-11)
    rows = banded.rows(columns)
    assert all(rows[t, i] == (dense[t, t - i] if i <= t else 0.0) for t in range(n) for i in range(bands))
    squares = np.square(np.linalg.inv(dense)).sum(axis=1)
    np.testing.assert_allclose(banded.inverse_row_norms_squared(columns), squares, rtol=1e-10)
    size = banded.block_size(bands, n)
    assert np.array_equal(banded.join(banded.split(columns, size), n, bands), columns)


@pytest.mark.parametrize(("n", "bands"), [(1, 1), (7, 3), (7, 7), (30, 4)])
@pytest.mark.parametrize("others", [1, 2, 5])
def test_product_and_its_adjoint(n, bands, others):
    left, right = free_columns(n, bands), free_columns(n, min(others, n), seed=1)
    product = banded.product(left, right)
    np.testing.assert_allclose(banded.dense(product), banded.dense(left) @ banded.dense(right), atol=1e-13)
    image = np.random.default_rng(2).standard_normal(product.shape)
    change = free_columns(n, bands, seed=3)
    slope = (image * banded.product(change, right)).sum()
    assert (banded.product_adjoint(image, right, bands) * change).sum() == pytest.approx(slope)


def test_bands_of_zeros_are_not_counted():
    columns = np.array([[1.0, 0.5, 0.0], [2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    strategy = Banded(3, columns)
    assert strategy.structure.bands == 2 and strategy.structure.nonnegative
    assert not strategy.structure.toeplitz and not strategy.structure.nonincreasing
    assert len(strategy.recurrence().row(2)) == 2
    assert Banded.from_dense(np.diag([1.0, 2.0])).structure.bands == 1
    assert not Banded(3, [[1.0, 0.5], [1.0, 0.4], [1.0, 0.0]]).structure.toeplitz
    with pytest.raises(TypeError, match="not Toeplitz"):
        _ = strategy.coefficients


@pytest.mark.parametrize("coefficients", [[1.0, 0.5, 0.25], [1.0, -0.5, 0.25], [1.0, 0.2, 0.4], [2.0]])
def test_toeplitz_is_noticed(coefficients):
    plain = BandedToeplitz(9, coefficients)
    strategy = Banded.from_dense(plain.to_dense())
    assert strategy.structure == plain.structure
    assert np.array_equal(strategy.coefficients, plain.coefficients)
    for schema in (Single(), Cyclic(2), MinSep(2, 3), FullBatch()):
        assert sensitivity(strategy, schema).value == pytest.approx(
            sensitivity(plain, schema).value, rel=1e-12
        )


def test_columns_of_any_square_strategy():
    for base in (BandedToeplitz(11, [1.0, 0.5, 0.25]), Dense(banded.dense(free_columns(11, 3)))):
        for strategy in (base, ColumnNormalized(base), Restarted(base, 2, 17)):
            assert np.allclose(banded.dense(columns_of(strategy)), strategy.to_dense(), atol=1e-15)


WORKLOADS = {
    "prefix": lambda n: workloads.prefix_sum(n),
    "momentum": lambda n: workloads.momentum(n, 0.9, weight_decay=0.1),
    "rates": lambda n: workloads.momentum(n, 0.5, learning_rates=np.linspace(1.0, 0.2, n)),
    "restarts": lambda n: workloads.restart_differences(workloads.prefix_sum(n), period=7),
    "restarts-rates": lambda n: workloads.scheduled(
        workloads.restart_differences(workloads.prefix_sum(n), period=7), np.linspace(1.0, 0.2, n)
    ),
    "scaled": lambda n: workloads.from_coefficients([0.5], n),
}


@pytest.mark.parametrize("name", WORKLOADS)
@in_turn("n", [1, 2, 3, 40, 101])
def test_inverses_of_workloads_by_columns(name, n):
    workload = WORKLOADS[name](n)
    inverse = inverse_columns(workload)
    if name == "scaled" and inverse is None:
        pytest.skip("its fraction has a numerator")
    np.testing.assert_allclose(banded.dense(inverse) @ workload.to_dense(), np.eye(n), atol=1e-9)

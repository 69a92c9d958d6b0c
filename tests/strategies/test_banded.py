"""Banded strategies and the algebra under them, against dense linear algebra."""

import time

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import banded
from anechoic.losses.dispatch import error
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.sensitivity.gram import gram_of
from anechoic.strategies import Banded, BandedToeplitz, ColumnNormalized, Dense, Restarted
from anechoic.strategies.banded import columns_of
from anechoic.workloads.inverses import inverse_columns
from tests.marks import in_turn

SIZES = [(1, 1), (2, 1), (2, 2), (5, 5), (7, 3), (24, 3), (25, 2), (53, 5), (97, 1), (100, 30), (131, 33)]


def free_columns(n, bands, seed=0):
    """Random columns of mixed signs, with a diagonal that keeps C well conditioned."""
    rng = np.random.default_rng([seed, n, bands])
    columns = 0.5 * rng.standard_normal((n, bands)) / np.sqrt(bands)
    columns[:, 0] = 1.0 + rng.random(n)
    return banded.inside(columns)


@pytest.mark.parametrize(("n", "bands"), SIZES)
def test_algebra(n, bands):
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


def test_row_norms_in_stretches(monkeypatch):
    columns = free_columns(500, 7)
    whole = banded.inverse_row_norms_squared(columns)
    for blocks in (1, 2, 5):
        monkeypatch.setattr(banded, "STRETCH", blocks * 24**2)
        np.testing.assert_allclose(banded.inverse_row_norms_squared(columns), whole, rtol=1e-13)


@pytest.mark.parametrize(("n", "bands"), SIZES)
def test_banded_is_its_dense_form(n, bands):
    strategy = Banded(n, free_columns(n, bands))
    dense = strategy.to_dense()
    again = Banded.from_dense(dense)
    assert np.array_equal(again.columns, strategy.columns)
    assert strategy.structure.bands == strategy.structure.gram_bands == bands
    assert strategy.describe() == f"Banded(n={n}, bands={bands})"
    for steps in {1, max(1, bands - 1), n // 2 + 1, n}:
        assert np.array_equal(strategy.truncate(steps).to_dense(), dense[:steps, :steps])
    gram = gram_of(strategy)
    for lag in range(gram.bandwidth):
        np.testing.assert_allclose(gram.diagonal(lag), (dense.T @ dense).diagonal(lag), atol=1e-13)


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


@pytest.mark.parametrize("schema", [Single(), Cyclic(4), Cyclic(2), MinSep(4, 3), MinSep(3), FullBatch()])
@pytest.mark.parametrize("signs", ["mixed", "positive"])
def test_sensitivity_is_that_of_the_dense_form(schema, signs):
    columns = free_columns(11, 4)
    columns = np.abs(columns) if signs == "positive" else columns
    found, expected = (sensitivity(c, schema) for c in (Banded(11, columns), Dense(banded.dense(columns))))
    assert found.value == pytest.approx(expected.value, rel=1e-9) and found.exact == expected.exact


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


def test_long_inverses_are_refused():
    assert inverse_columns(workloads.nesterov(200, 0.9)) is None
    assert inverse_columns(workloads.from_dense(np.tril(np.ones((3, 3)) + np.diag([0.0, 1.0, 2.0])))) is None


@in_turn("name", WORKLOADS)
@in_turn(("n", "bands"), [(101, 5), (60, 1), (64, 12)])
def test_error(name, n, bands):
    strategy, workload = Banded(n, free_columns(n, bands)), WORKLOADS[name](n)
    b = workload.to_dense() @ np.linalg.inv(strategy.to_dense())
    expected = np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(error(workload, strategy).per_step, expected, rtol=1e-9)
    scaled = ColumnNormalized(strategy)
    b = workload.to_dense() @ np.linalg.inv(scaled.to_dense())
    np.testing.assert_allclose(error(workload, scaled).per_step, np.linalg.norm(b, axis=1), rtol=1e-9)


def test_many_steps_are_fast():
    n, bands = 30_000, 16
    t = np.arange(n)[:, None]
    columns = banded.inside((1.0 + 0.1 * np.cos(t)) / (1.0 + np.arange(bands)))
    strategy, started = Banded(n, columns), time.process_time()
    assert error(workloads.prefix_sum(n), strategy).rms > 0
    assert sensitivity(strategy, Cyclic(10)).exact and sensitivity(strategy, MinSep(100)).exact
    assert np.allclose(strategy.multiply(strategy.solve(np.ones(n))), 1.0)
    assert time.process_time() - started < 20  # a quadratic path takes minutes


@pytest.mark.parametrize(
    ("n", "columns", "message"),
    [
        (0, [[1.0]], "n=0 must be at least 1"),
        (2, [[1.0]], "axis 0 must have n=2"),
        (1, [[1.0, 0.0]], "bands=2 must be at most n=1"),
        (2, [[1.0, 0.5], [0.0, 0.0]], r"columns\[1, 0\]=0.0 must be > 0"),
        (2, [[1.0, 0.5], [1.0, 0.5]], r"columns\[1, 1\]=0.5 must be 0: row 2 lies under"),
        (2, [1.0, 0.5], "a non-empty 2-dimensional array"),
        (2, [[1.0, np.nan], [1.0, 0.0]], "not finite"),
    ],
)
def test_refusals(n, columns, message):
    with pytest.raises(ValueError, match=message):
        Banded(n, columns)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 0.0]], "must be square"),
        ([[1.0, 1.0], [0.0, 1.0]], "above its diagonal"),
        ([[1.0, 0.0], [1.0, 0.0]], "must be > 0"),
    ],
)
def test_from_dense_refuses(matrix, message):
    with pytest.raises(ValueError, match=message):
        Banded.from_dense(matrix)

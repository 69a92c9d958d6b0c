"""Banded optimiser: optima by other means, valid bounds, schemas, refusals."""

import math
from importlib import import_module

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import banded as algebra
from anechoic.losses.dispatch import loss
from anechoic.losses.norms import row_weights
from anechoic.optimize import banded, banded_toeplitz
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import ColumnNormalized
from tests.marks import each_once, every_other
from tests.optimize.columns.banded_cases import SCHEMAS, free_columns, unit

objectives = import_module("anechoic.optimize.columns.objective")
searches = import_module("anechoic.optimize.columns.search")
scaling = import_module("anechoic.optimize.columns.scales")
rows = import_module("anechoic.optimize.columns.rows")


# ---- optima


# GOLDEN, section 1 (monograph, Table 2.3, dense column)
@pytest.mark.parametrize(("n", "best", "digits"), [(8, 1.494, 6e-4), (64, 2.1, 6e-4), (128, 2.311, 6e-4)])
def test_all_bands_give_the_dense_optimum(n, best, digits):
    found = banded(workloads.prefix_sum(n), bands=n)
    assert found.loss == pytest.approx(best, abs=digits)
    assert 0 <= found.gap < 3e-5 and found.gradient < 1e-5


# GOLDEN, section 1: dense max n = 8 and n = 64, dual-certified there
@pytest.mark.parametrize(("n", "best"), [(8, 1.510484), (64, 2.111367)])
def test_all_bands_give_the_dense_max_optimum(n, best):
    found = banded(workloads.prefix_sum(n), bands=n, loss="max")
    assert found.loss == pytest.approx(best, rel=2e-5)
    assert 0 <= found.gap < 3e-5 and found.gradient is None


def test_bands_below_the_dense_size_use_either_objective(monkeypatch):
    workload = workloads.momentum(61, 0.5)
    blocks = banded(workload, bands=5)
    monkeypatch.setattr(searches, "END", (0, 0))
    monkeypatch.setattr(objectives, "recursion_columns", lambda workload: None)
    dense = banded(workload, bands=5)
    assert dense.loss == pytest.approx(blocks.loss, rel=1e-9)


def test_one_band_by_hand():
    # M diagonal of ones: the identity, loss sqrt((n + 1) / 2)
    found = banded(workloads.prefix_sum(9), bands=1)
    assert found.loss == pytest.approx(math.sqrt(5.0), rel=1e-9)
    # full batch: M[t, t] in proportion to sqrt(n - t) (monograph, Proposition 4.9; GOLDEN, section 2)
    found = banded(workloads.prefix_sum(64), bands=1, participation=FullBatch())
    assert found.loss == pytest.approx(43.14, abs=6e-3)
    norms = found.strategy.column_norms_squared()
    np.testing.assert_allclose(norms, np.sqrt(1.0 - np.arange(64) / 64), rtol=1e-4)


@pytest.mark.parametrize(("schema", "kind"), each_once(SCHEMAS, ["rms", "max"]))
@pytest.mark.few(1)
def test_schemas(kind, schema):
    n, bands = 23, 5  # neither 5 nor 6 divides 23
    workload = workloads.prefix_sum(n)
    found = banded(workload, bands=bands, participation=schema, loss=kind)
    assert {type(found.loss), type(found.lower_bound), type(found.gap)} == {float}
    exact = sensitivity(found.strategy, schema)
    assert exact.exact
    norms = found.strategy.column_norms_squared()
    brute = max(norms[list(p)].sum() for p in schema.patterns(n))
    assert exact.value**2 == pytest.approx(brute, rel=1e-12)
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema, kind), rel=1e-9)
    assert found.lower_bound <= found.loss
    toeplitz = ColumnNormalized(
        banded_toeplitz(workload, bands=bands, participation=schema, loss=kind).strategy
    )
    assert found.loss <= loss(workload, toeplitz, schema, kind)
    assert found.gap < 2e-4


def test_free_norms_gain_for_min_sep():
    workload, schema = workloads.prefix_sum(32), MinSep(8)
    found = banded(workload, bands=8, participation=schema)
    equal = banded(workload, bands=8).strategy  # for one participation: all norms 1
    assert found.loss < 0.99 * loss(workload, equal, schema)
    # norms that are constant on blocks of 8 steps reached 4.084251
    assert found.loss < 4.0829 and found.gap < 1e-4
    # every cycle is a pattern, so that no better than for cycles
    assert found.loss >= banded(workload, bands=8, participation=Cyclic(8)).loss


def test_one_band_under_min_sep():
    """The diagonal optimum over the polytope of patterns: 12.894 where norms are constant on blocks."""
    n, schema = 50, MinSep(7)
    found = banded(workloads.prefix_sum(n), bands=1, participation=schema)
    assert 0 <= found.gap < 1e-4
    # by linear duality every diagonal d has the loss sqrt(max over patterns) of these weights of the steps
    weights = np.arange(n, 0, -1) / n
    d = found.strategy.column_norms_squared()
    assert found.loss == pytest.approx(
        math.sqrt((weights / d).sum()) * float(sensitivity(found.strategy, schema)), rel=1e-12
    )
    assert found.loss == pytest.approx(12.797, abs=1e-3)


# ---- bounds


@pytest.mark.parametrize("schema", SCHEMAS[:3])
def test_bound_by_its_definition(schema):
    n, bands = 26, 5
    workload = workloads.momentum(n, 0.5)
    columns, weights = unit(free_columns(n, bands)), row_weights(np.linspace(1.0, 2.0, n), n)
    scales = scaling.scales_of(schema, np.ones((n, 1)), bands)
    bound = searches.Search(objectives.objective_of(workload, bands), scales, None).bound(columns, weights)
    a, c = workload.to_dense(), algebra.dense(columns)
    inverse = np.linalg.inv(c.T @ c)
    z = inverse @ a.T @ (weights[:, None] * a) @ inverse
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < bands
    r = np.where(near, z, 0.0) - np.diag(z.diagonal())
    majorant = z - r + np.diag(np.abs(r).sum(axis=1))
    assert np.linalg.eigvalsh(majorant - z).min() > -1e-9 * np.abs(z).max()
    value = weights @ np.square(a @ np.linalg.inv(c)).sum(axis=1)
    expected = value / np.sqrt(scales.price(majorant.diagonal()))
    assert expected * (1 - 1e-8) <= bound.value <= expected


# ---- other losses


@pytest.mark.slow
def test_largest_error_is_certified_where_one_step_has_nearly_all_the_weight():
    """Rounds that begin anew after a fixed number of iterations end with a gap of 1.5e-3 here."""
    workload = workloads.momentum(256, 0.9)
    assert 0.0 <= banded(workload, bands=8, participation=Cyclic(64), loss="max").gap < 1.5e-4


# ---- other workloads, awkward sizes


@pytest.mark.parametrize(
    "workload",
    every_other(
        [
            workloads.nesterov(40, 0.9),
            workloads.sliding_window(40, 7),
            workloads.restart_differences(workloads.momentum(40, 0.5), period=9),
            workloads.from_dense(np.tril(np.random.default_rng(0).random((40, 40))) + np.eye(40)),
            workloads.exponential_decay(200, 0.9),
            workloads.scheduled(workloads.prefix_sum(200), np.linspace(1.0, 0.01, 200)),
        ]
    ),
    ids=lambda workload: type(workload).__name__,
)
def test_any_workload(workload):
    found = banded(workload, bands=6)
    assert found.gap < 5e-5 and found.gradient < 1e-5
    assert found.loss == pytest.approx(loss(workload, found.strategy, Single()), rel=1e-9)


def test_presented_with_a_positive_diagonal():
    module = import_module("anechoic.optimize.columns.banded")
    columns = free_columns(13, 4)
    columns[[0, 3, 12], 0] *= -1
    shown = module.presentable(columns)
    assert (shown[:, 0] > 0).all() and np.linalg.norm(shown, axis=1).max() == pytest.approx(1.0)
    c, d = algebra.dense(columns), algebra.dense(shown)
    largest = np.square(columns).sum(axis=1).max()
    np.testing.assert_allclose(d.T @ d, c.T @ c / largest, atol=1e-14)


def test_a_step_out_of_range_is_sent_back():
    n = 400
    objective = objectives.objective_of(workloads.prefix_sum(n), 2)
    scales = scaling.scales_of(Single(), np.ones((n, 1)), 2)
    search = searches.Search(objective, scales, None)
    exploding = algebra.inside(np.tile([1.0, 1e3], (n, 1)))
    found = search._whole(exploding, searches.weighted(row_weights("rms", n)), 5, 1e-6)
    np.testing.assert_allclose(found, unit(exploding))


@pytest.mark.slow
def test_a_line_search_that_makes_a_column_vanish_is_taken_back():
    # rates that end at a thousandth, with a weight on the last iterate: it ended in "Singular matrix"
    n = 512
    rates = np.maximum((1 + np.cos(np.pi * np.arange(n) / n)) / 2, 1e-3)
    weights = np.r_[np.full(n - 1, 0.8 / n), 0.8 / n + 0.2]
    found = banded(workloads.momentum(n, 0.0, learning_rates=rates), bands=4, loss=weights)
    assert found.gap < 1e-4

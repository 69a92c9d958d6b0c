"""The optimal Toeplitz strategy and the dual bound of its class; objectives shared with the banded one."""

import math
from importlib import import_module

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.algebra import toeplitz
from anechoic.losses.dispatch import loss
from anechoic.losses.norms import tail_weights
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Toeplitz
from tests.marks import each_once, every_other, in_turn

bounds = import_module("anechoic.optimize.series.toeplitz_bound")
objectives = import_module("anechoic.optimize.series.toeplitz_objective")

WORKLOADS = {
    "prefix": workloads.prefix_sum,
    "momentum": lambda n: workloads.momentum(n, 0.9, weight_decay=0.02),
    "nesterov": lambda n: workloads.nesterov(n, 0.8),
    "decay": lambda n: workloads.exponential_decay(n, 0.8),
    "window": lambda n: workloads.sliding_window(n, max(1, n // 3)),
}
CLASS = "lower-triangular Toeplitz strategies"


# Monograph, Table 2.3 (RMS) and Table 2.2 (max): the Toeplitz columns
@pytest.mark.parametrize(
    ("n", "rms", "largest"),
    [
        (8, 1.544, 1.718),
        (16, 1.75, 1.944),
        (32, 1.963, 2.167),
        (64, 2.179, 2.389),
        (128, 2.397, 2.61),
        (256, 2.616, 2.831),
        (512, 2.836, 3.052),
        (1024, 3.057, 3.273),
        (2048, 3.277, 3.493),
        (4096, 3.498, 3.714),
        (8192, 3.718, 3.935),
    ],
)
def test_tables(n, rms, largest):
    found = optimize.toeplitz(workloads.prefix_sum(n))
    assert found.loss == pytest.approx(rms, abs=6e-4)
    assert isinstance(found.strategy, Toeplitz) and found.bound_covers == CLASS and 0 < found.gap < 1e-6
    found = optimize.toeplitz(workloads.prefix_sum(n), loss="max")
    assert found.loss == pytest.approx(largest, abs=6e-4)
    assert found.bound_covers == CLASS and 0 < found.gap < 1e-9


def test_the_square_root_is_optimal_for_max_loss():
    """Theorem 2.5, proven for this n by the dual bound."""
    workload = workloads.prefix_sum(300)
    root = Toeplitz.square_root(workload).coefficients
    for kind in ("max", "last"):
        found = optimize.toeplitz(workload, loss=kind)
        assert found.evaluations == 1 and found.loss == pytest.approx(root @ root, rel=1e-12)
        assert found.lower_bound == pytest.approx(root @ root, rel=1e-9)


@pytest.mark.parametrize("name", WORKLOADS)
@in_turn("n", [1, 2, 3, 10, 47])
@in_turn("kind", ["rms", "max", "weights"])
def test_certified_for_every_workload(name, n, kind):
    workload = WORKLOADS[name](n)
    weights = np.random.default_rng(n).random(n) if kind == "weights" else kind
    found = optimize.toeplitz(workload, loss=weights)
    assert -1e-12 < found.gap < 1e-8
    assert found.loss == pytest.approx(loss(workload, found.strategy, Single(), weights), rel=1e-9)
    assert np.linalg.norm(found.strategy.band) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "schema"), each_once(["rms", "max"], [MinSep(7, 3), Cyclic(10), FullBatch(), MinSep(30)])
)
def test_several_participations(schema, kind):
    workload = workloads.prefix_sum(41)
    found = optimize.toeplitz(workload, participation=schema, loss=kind)
    assert sensitivity(found.strategy, schema).exact and found.strategy.n == 41
    root = Toeplitz.square_root(workload)
    assert found.lower_bound < found.loss <= loss(workload, root, schema, kind) * (1 + 1e-9)
    assert found.bound_covers != CLASS
    banded = optimize.banded_toeplitz(workload, bands=41, participation=schema, loss=kind)
    assert found.loss == pytest.approx(banded.loss, rel=1e-12)


class TestBound:
    """It is a lower bound whatever c it is computed at, and whatever way its norm is found."""

    @pytest.mark.parametrize("way", ["gram", "powers"])
    @pytest.mark.parametrize("seed", every_other(range(6)))
    @pytest.mark.few(4)
    def test_no_strategy_beats_it(self, way, seed, monkeypatch):
        if way == "powers":
            monkeypatch.setattr(bounds, "WORK", 0)
        rng = np.random.default_rng(seed)
        n, bands = 12, [1, 3, 12][seed % 3]
        a = WORKLOADS[list(WORKLOADS)[seed % 5]](n).coefficients
        columns, v = 1.0 + rng.integers(0, 3, bands), np.sort(rng.random(n))[::-1]
        best, tried = 0.0, []
        for trial in range(60):
            c = np.r_[1.0, rng.standard_normal(bands - 1) / (1 + np.arange(1, bands))]
            if trial % 2:  # near a good one
                c = np.sqrt(np.maximum(a[:bands], 0.01)) / (1 + np.arange(bands)) ** 0.5 * rng.random(bands)
            b = toeplitz.solve(c, a)
            tried.append(math.sqrt((columns @ c**2) * (v @ b**2)))
            found = bounds.toeplitz_bound(a, c, columns, v)
            best = max(best, 0.0 if found is None else found.value)
        assert 0.1 * min(tried) < best <= min(tried)

    @pytest.mark.parametrize("n", [2, 9, 64, 300])
    @pytest.mark.parametrize("kind", ["rms", "max"])
    def test_both_ways_meet_at_the_optimum(self, n, kind, monkeypatch):
        found = optimize.toeplitz(workloads.prefix_sum(n), loss=kind)
        monkeypatch.setattr(bounds, "WORK", 0)
        arguments = np.ones(n), found.strategy.coefficients, np.ones(n), tail_weights(kind, n)
        by_powers = bounds.toeplitz_bound(*arguments).value
        assert by_powers <= found.loss * (1 + 1e-12)
        assert by_powers == pytest.approx(found.loss, rel=1e-7)

    def test_the_norm_is_that_of_the_hankel_matrix(self, monkeypatch):
        rng = np.random.default_rng(1)
        phi, columns, v = rng.random(9), 1 + rng.random(4), 0.1 + rng.random(9)
        hankel = np.array([[phi[s + t] if s + t < 9 else 0.0 for t in range(9)] for s in range(4)])
        norm = np.linalg.norm(hankel / np.sqrt(columns)[:, None] / np.sqrt(v), 2)
        assert bounds._norm_by_gram(phi, columns, v) == pytest.approx(norm, rel=1e-13)
        monkeypatch.setattr(bounds, "CHUNK", 8)
        assert bounds._norm_by_gram(phi, columns, v) == pytest.approx(norm, rel=1e-13)
        above = bounds._norm_by_powers(phi, columns, v, np.ones(9))
        assert norm <= above < 1.001 * norm


class TestRestartObjective:
    """DP-MF+ (paper 004): the error of Toeplitz C for Lambda_tau A as a quadratic form in b = a/c."""

    @pytest.mark.parametrize(("n", "period"), [(1, 1), (5, 1), (5, 2), (5, 5), (5, 7), (12, 4), (13, 4)])
    @pytest.mark.parametrize("name", ["prefix", "momentum"])
    def test_against_dense(self, n, period, name):
        base = WORKLOADS[name](n)
        workload = workloads.restart_differences(base, period=period)
        _, form = objectives.quadratic_form(workload, "rms")
        c = np.r_[1.0, np.random.default_rng(n).uniform(-0.4, 0.4, n - 1)]
        b = toeplitz.solve(c, base.coefficients)
        decoder = workload.to_dense() @ np.linalg.inv(toeplitz.dense(c, n))
        assert b @ form(b) == pytest.approx(np.square(decoder).sum() / n, rel=1e-12)
        columns = np.array([form(e) for e in np.eye(n)])
        assert np.allclose(columns, columns.T, atol=1e-14)
        assert np.linalg.eigvalsh(columns).min() > 0

    @pytest.mark.slow
    def test_its_bound_holds_for_every_strategy(self):
        base = workloads.momentum(14, 0.5)
        workload, rng = workloads.restart_differences(base, period=4), np.random.default_rng(0)
        _, form = objectives.quadratic_form(workload, "rms")
        best, tried, columns = 0.0, [], np.array([3.0, 2.0, 2.0, 1.0])
        for _ in range(100):
            c = np.r_[1.0, rng.uniform(-0.3, 0.8, 3)]
            b = toeplitz.solve(c, base.coefficients)
            tried.append(math.sqrt((columns @ c**2) * (b @ form(b))))
            best = max(best, bounds.form_bound(base.coefficients, c, columns, form).value)
        assert 0.9 * min(tried) < best <= min(tried)
        assert bounds.form_bound(np.ones(1025), np.ones(1), np.ones(1), form) is None

"""Lower bounds against optima: dual values that have converged, searches over small C, published numbers."""

import math
import tracemalloc
from itertools import product

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra.nuclear import circulant_value, dual_value, toeplitz_nuclear_norm
from anechoic.losses.dispatch import loss
from anechoic.lower_bounds import dispatch, one_participation
from anechoic.lower_bounds.dispatch import lower_bound
from anechoic.lower_bounds.prefix_sums import prefix_sum_lower_bound
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Dense, Identity, Restarted, Toeplitz
from anechoic.strategies.column_scaled import ColumnScaled
from studies.published.monograph import (
    logarithmic_lower_bound,
    logarithmic_upper_bound,
    mathias_lower_bound,
    mathias_upper_bound,
)
from tests.marks import each_once, in_turn, slow
from tests.zoo import STRATEGIES, every

KINDS = ["rms", "max", "last", "weights", "first-half"]


def kind_of(name, n):
    if name == "weights":
        return np.linspace(0.1, 2.0, n)
    if name == "first-half":
        return np.where(np.arange(n) <= n // 2, 1.0, 0.0)
    return name


def workloads_of(n):
    rates = np.random.default_rng(n).uniform(0.3, 2.0, n)
    prefix = workloads.prefix_sum(n)
    return {
        "prefix": prefix,
        "momentum": workloads.momentum(n, 0.9),
        "decay": workloads.momentum(n, 0.5, weight_decay=0.3),
        "nesterov": workloads.nesterov(n, 0.9),
        "fading": workloads.exponential_decay(n, 0.8),
        "window": workloads.sliding_window(n, 4),
        "signs": workloads.from_coefficients(np.cos(np.arange(n)) / (1 + np.arange(n))),
        "rates": workloads.scheduled(prefix, rates),
        "cosine": workloads.momentum(n, 0.9, learning_rates=1.01 + np.cos(np.pi * np.arange(n) / n)),
        "general": workloads.from_dense(np.tril(np.random.default_rng(n).uniform(0.1, 1.0, (n, n)))),
        "restarts": workloads.restart_differences(prefix, period=7),
        "restarts-once": workloads.restart_differences(prefix, period=n),
        "restarts-never": workloads.restart_differences(prefix, period=2 * n),
        "restarts-momentum": workloads.restart_differences(workloads.momentum(n, 0.5), period=3),
        "restarts-rates": workloads.restart_differences(workloads.scheduled(prefix, rates), period=5),
    }


# Closed forms for prefix sums


def test_prefix_sums():
    assert prefix_sum_lower_bound(1024) == pytest.approx(2.9096, abs=5e-5)  # GOLDEN, section 1
    for n in (1, 2, 5, 40):
        values = np.linalg.svd(workloads.prefix_sum(n).to_dense(), compute_uv=False)
        assert prefix_sum_lower_bound(n) == pytest.approx(values.sum() / n, rel=1e-11)
        assert prefix_sum_lower_bound(n) < values.sum() / n


@pytest.mark.parametrize("n", [10**6, 2_345_678])
def test_prefix_sums_of_many_steps(n):
    angles = (np.arange(n) + 0.5) * np.pi / (2 * n + 1)
    exact = (0.5 / np.sin(angles)).sum() / n
    assert exact * (1 - 1e-11) < prefix_sum_lower_bound(n) < exact
    assert prefix_sum_lower_bound(10**12) == pytest.approx(math.log(1e12) / math.pi, rel=0.1)


# Optimal max loss: recomputed, certified from both sides (GOLDEN, section 1); n = 1024, 2048 from below only.
OPTIMAL_MAX = [(8, 1.510484), (64, 2.111367), (256, 2.532716), (1024, 2.961464), (2048, 3.177476)]


@pytest.mark.parametrize(("n", "optimum"), OPTIMAL_MAX)
def test_closed_forms_enclose_the_optimal_max_loss(n, optimum):
    for lower in (prefix_sum_lower_bound, mathias_lower_bound, logarithmic_lower_bound):
        assert lower(n) < optimum
    for upper in (mathias_upper_bound, logarithmic_upper_bound):
        assert upper(n) > optimum
    assert lower_bound(workloads.prefix_sum(n), Single(), "max").value < optimum + 1e-6


@pytest.mark.parametrize("n", [1, 2, 7, 8, 1001, 2 * 10**6, 2_000_001])
def test_the_sum_of_mathias(n):
    angles = (2 * np.arange(1, n // 2 + 1) - 1) * np.pi / (2 * n)  # sin near pi would lose digits
    exact = (2 * (1 / np.sin(angles)).sum() + n % 2) / (2 * n)
    assert mathias_upper_bound(n) == pytest.approx(0.5 + exact, rel=1e-11)
    assert mathias_lower_bound(n) == pytest.approx(0.5 / n + exact, rel=1e-11)
    assert mathias_lower_bound(n) < 0.5 / n + exact < mathias_upper_bound(n)


# Nuclear norms


def rows_and_columns(n, seed):
    rng = np.random.default_rng(seed)
    w, v = rng.uniform(0, 1, (2, n)) ** 3
    return w / w.sum(), v / v.sum()


@in_turn("n", [1, 2, 9, 64, 101])
@in_turn("signs", [False, True])
@in_turn("scaled", [False, True])
def test_circulants_stay_below_the_nuclear_norm(n, signs, scaled):
    rng = np.random.default_rng(n)
    a = rng.standard_normal(n) if signs else 1.0 / (1 + np.arange(n)) ** 0.3
    rates = rng.uniform(0.2, 3.0, n) if scaled else None
    dense = workloads.from_coefficients(np.r_[1.0, a[1:]]).to_dense()
    dense += (a[0] - 1.0) * np.eye(n)
    if scaled:
        dense = dense * rates
    for w, v in [rows_and_columns(n, seed) for seed in range(5)] + [(np.full(n, 1 / n), np.full(n, 1 / n))]:
        exact = np.linalg.svd(np.sqrt(w)[:, None] * dense * np.sqrt(v), compute_uv=False).sum()
        found = circulant_value(a, rates, w, v)
        assert 0.5 * exact < found < exact


@pytest.mark.parametrize("name", ["prefix", "momentum", "decay", "window", "signs"])
def test_nuclear_norm_of_toeplitz(name):
    a = workloads_of(33)[name]
    exact = np.linalg.svd(a.to_dense(), compute_uv=False).sum()
    assert toeplitz_nuclear_norm(a.coefficients) == pytest.approx(exact, rel=1e-10)


@pytest.mark.slow
def test_dual_values_rise_and_meet_the_optimum():
    a = np.tril(np.ones((256, 256)))
    even = np.full(256, 1 / 256)
    values = [dual_value(a, even, steps=steps) for steps in (1, 2, 5, 20)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(2.524414, abs=2e-5)  # GOLDEN, section 1: dense RMS
    a = np.tril(np.ones((64, 64)))
    assert dual_value(a, None, steps=60) == pytest.approx(2.111367, abs=2e-5)  # dense max


# lower_bound, one participation


def optimum_of(workload, kind):
    """The dual optimum, which is the optimal loss: after many iterations, hence from below."""
    a, n = workload.to_dense(), workload.n
    if isinstance(kind, str) and kind == "last":
        return np.abs(a[-1]).max()
    if isinstance(kind, str):
        weights = None if kind == "max" else np.full(n, 1 / n)
    else:
        weights = kind / kind.sum()
    found = dual_value(a, weights, steps=200)
    return (
        max(found, np.abs(a).max()) if weights is None else found
    )  # slow where single entries are the optimum


LIMITS = [(128, 512, 1024, 2**20), (4, 512, 1024, 2**20), (4, 8, 8, 2**20), (4, 8, 8, 16)]


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        *product(LIMITS[::3], ("rms", "max", "weights")),
        *slow(*product(LIMITS[::3], ("last", "first-half"))),
        *product(LIMITS[1:3], ("rms", "max")),
        *slow(*product(LIMITS[1:3], ("last", "weights", "first-half"))),
    ],
)
@pytest.mark.slow
def test_no_bound_exceeds_the_optimum(limits, kind, monkeypatch):
    for name, limit in zip(("REFINED", "EXACT_TOEPLITZ", "EXACT", "FFT_UP_TO"), limits, strict=True):
        for module in (one_participation, dispatch):
            monkeypatch.setattr(module, name, limit, raising=module is one_participation)
    n = 37
    for name, workload in workloads_of(n).items():
        weighting = kind_of(kind, n)
        found = lower_bound(workload, Single(), weighting)
        optimum = OPTIMA.setdefault((name, kind), optimum_of(workload, weighting))
        assert found.value <= optimum * (1 + 1e-4), name
        assert found.covers == "every factorisation" and found.theorem
        if limits == LIMITS[0]:
            assert found.value >= 0.89 * optimum, name
        elif limits == LIMITS[1] and kind in ("rms", "max"):
            assert found.value >= (0.68 if kind == "max" else 0.88) * optimum, name


OPTIMA = {}


def test_the_last_step_comes_as_close_as_one_likes():
    workload = workloads.momentum(6, 0.9, learning_rates=np.linspace(2.0, 0.5, 6))
    row = workload.to_dense()[-1]
    c = 1e-6 * np.eye(6)
    c[-1] = row / np.abs(row).max()
    bound = lower_bound(workload, Single(), "last").value
    assert bound == pytest.approx(np.abs(row).max(), rel=1e-10)
    assert bound < loss(workload, Dense(c), Single(), "last") < bound * (1 + 1e-6)


@pytest.mark.parametrize("name", every(lambda strategy: 4 < strategy.n < 100))
@pytest.mark.few(15)
def test_no_strategy_beats_the_lower_bound(name):
    strategy = STRATEGIES[name]
    chosen = workloads_of(strategy.n)
    for workload in (chosen[name] for name in ("prefix", "rates", "general", "restarts")):
        for kind in ("rms", "max", "first-half"):
            kind = kind_of(kind, strategy.n)
            bound = lower_bound(workload, Single(), kind).value
            assert bound <= loss(workload, strategy, Single(), kind) * (1 + 1e-12)


# lower_bound, several participations

SCHEMAS = [Cyclic(5), MinSep(5), MinSep(4, 2), OncePerEpoch(6), FullBatch()]


@pytest.mark.parametrize(("few", "schema"), each_once([True, False], SCHEMAS))
@pytest.mark.slow
def test_no_strategy_beats_the_bound_of_several_participations(schema, few, monkeypatch):
    if not few:
        monkeypatch.setattr("anechoic.lower_bounds.several_participations.SMALL", 1)
    n = 17
    root = Toeplitz.square_root(workloads.prefix_sum(n))
    decreasing = ColumnScaled(Identity(n), np.sqrt(n - np.arange(n)))
    banded = BandedToeplitz(n, root.coefficients[:5])
    last_row = 1e-3 * np.eye(n)
    last_row[-1] = 1.0
    strategies = [
        Identity(n),
        root,
        banded,
        ColumnNormalized(banded),
        decreasing,
        Restarted(Identity(5), 4, n),
    ]
    strategies.append(Dense(last_row))
    for name, workload in workloads_of(n).items():
        for kind in KINDS:
            kind = kind_of(kind, n)
            bound = lower_bound(workload, schema, kind)
            for strategy in strategies:
                assert 0 < bound.value <= loss(workload, strategy, schema, kind) * (1 + 1e-12), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prefix_sum_lower_bound(0), "n=0 must be at least 1"),
        (lambda: mathias_lower_bound(0), "n=0 must be at least 1"),
        (lambda: mathias_upper_bound(1.5), "n=1.5 must be an integer"),
        (lambda: logarithmic_lower_bound(0), "n=0 must be at least 1"),
        (lambda: logarithmic_upper_bound(-1), "n=-1 must be at least 1"),
        (lambda: lower_bound(workloads.prefix_sum(3), Single(), "mean"), "'mean' is unknown"),
        (lambda: lower_bound(workloads.prefix_sum(3), Cyclic(1), "mean"), "'mean' is unknown"),
        (
            lambda: lower_bound(workloads.prefix_sum(3), Single(), [1.0]),
            "weights of the steps have 1 entries; 3 are needed",
        ),
        (
            lambda: lower_bound(workloads.prefix_sum(200), Single(), [1.0]),
            "weights of the steps have 1 entries; 200 are needed",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        *(("max", Single()), ("rms", MinSep(10**8, 10))),
        *slow(("rms", Single()), ("last", Single()), ("max", MinSep(10**8, 10)), ("last", MinSep(10**8, 10))),
    ],
)
@pytest.mark.slow
def test_a_billion_steps_cost_no_array_of_a_billion(kind, schema):
    for workload in (workloads.prefix_sum(10**9), workloads.momentum(10**9, 0.9)):
        tracemalloc.start()
        lower_bound(workload, schema, kind)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 500 * 2**20

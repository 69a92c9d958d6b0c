"""Dense optima under several participations: published optima, brute force, certificates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.optimize.full.cheap_candidates import cheap_candidates
from anechoic.participation import Cyclic, FullBatch, OncePerEpoch
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Dense
from tests.marks import slow
from tests.optimize.full.test_dense import random_workload


def checked(workload, participation, kind="rms", *, gap=1e-4):
    """The optimum, after the checks that hold of every one."""
    best = optimize.dense(workload, participation=participation, loss=kind, gap=gap)
    assert best.loss == pytest.approx(loss(workload, best.strategy, participation, kind), rel=1e-12)
    assert best.lower_bound <= best.loss * (1 + 1e-12)
    assert best.gap == pytest.approx(best.loss / best.lower_bound - 1, abs=1e-12)
    assert best.bound_covers == "every factorisation"
    return best


# Cyclic: the optimum of every factorisation.


def test_published_optimum():
    # recomputed before the project began: (n, b, k) = (32, 8, 4) has the optimum 4.0273
    best = checked(workloads.prefix_sum(32), Cyclic(8), gap=1e-6)
    assert best.loss == pytest.approx(4.0273, abs=5e-5)
    assert best.gap <= 1e-6
    assert best.evaluations < 30


def test_entries_between_participations_vanish():
    c = checked(workloads.prefix_sum(35), Cyclic(8), gap=1e-6).strategy.to_dense()
    gram = c.T @ c
    sums = []
    for first in range(8):
        block = gram[first::8, first::8]
        assert np.abs(block - np.diag(block.diagonal())).max() < 1e-14
        sums.append(block.trace())
    assert np.allclose(sums, 1.0, atol=1e-12)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 10), period=st.integers(1, 6))
@pytest.mark.slow
def test_the_max_loss_of_any_workload_is_certified(seed, n, period):
    best = checked(random_workload(n, seed), Cyclic(period), "max", gap=1e-2)
    assert best.gap <= 1e-2


@pytest.mark.parametrize(
    ("n", "period", "kind", "value"),
    [
        (60, 4, "max", 15.2900),  # nearly singular multipliers: the central path
        *slow((200, 2, "rms", 67.864), (256, 64, "max", 5.49255)),
        (100, 7, "rms", 11.3848),
    ],
)
@pytest.mark.slow
def test_certified_where_multipliers_are_nearly_singular(n, period, kind, value):
    best = checked(workloads.prefix_sum(n), Cyclic(period), kind)
    assert best.gap <= 1.5e-4
    assert best.loss == pytest.approx(value, rel=2e-4)


@pytest.mark.slow
def test_weights_may_vanish():
    n, period = 64, 16
    last = checked(workloads.prefix_sum(n), Cyclic(period), "last", gap=1e-3)
    # output perturbation restarted in each of the 4 cycles: every step counts once in each
    assert last.loss == pytest.approx(4.0, rel=1e-3)
    early = np.r_[np.ones(32), np.zeros(32)]
    half = checked(workloads.prefix_sum(n), Cyclic(period), early)
    shorter = checked(workloads.prefix_sum(32), Cyclic(period))
    assert half.loss == pytest.approx(shorter.loss, rel=3e-4)
    late = checked(workloads.prefix_sum(35), Cyclic(8), np.arange(35.0))
    assert late.gap <= 1e-4


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 12), period=st.integers(1, 12))
@pytest.mark.slow
def test_any_weights_are_certified(seed, n, period):
    rng = np.random.default_rng(seed)
    weights = rng.random(n) * (rng.random(n) < 0.5)
    weights[rng.integers(n)] = 1.0
    weights = np.where(weights == 0, rng.choice([0.0, 1e-9, 1e-200], n), weights)
    assert checked(random_workload(n, seed), Cyclic(period), weights).gap <= 1e-4


# Full batch: diagonal, in closed form.


def test_full_batch():
    n = 64
    best = checked(workloads.prefix_sum(n), FullBatch())
    assert best.loss == pytest.approx(43.14, abs=5e-3)  # recomputed before the project began
    assert best.gap < 1e-12
    squares = best.strategy.column_norms_squared()
    expected = np.sqrt(n - np.arange(n))
    assert np.allclose(squares, expected / expected.sum())
    # monograph, Proposition 3.11: the identity, loss n
    largest = checked(workloads.prefix_sum(n), FullBatch(), "max")
    assert largest.loss == pytest.approx(n)
    assert np.allclose(largest.strategy.to_dense(), np.eye(n) / np.sqrt(n))


@pytest.mark.parametrize("n", [1, 2, 4, 6, 8])
def test_full_batch_where_even_weights_are_optimal(n):
    # the gradient by the weights vanishes where the search begins; the identity has the loss sqrt(n)
    best = checked(workloads.sliding_window(n, 1), FullBatch(), "max")
    assert best.loss == pytest.approx(np.sqrt(n), rel=1e-12)
    assert best.gap < 1e-12


# One step an epoch: the best of each epoch.


@pytest.mark.parametrize(
    ("n", "period", "kind", "value"),
    [(20, 5, "rms", 4.0794), (60, 20, "rms", 3.9638), (20, 5, "max", 4.72), (20, 5, "last", 4.0)],
)
def test_the_best_of_each_epoch(n, period, kind, value):
    """The values of a search over all C without correlations between epochs; of "max", to half a per cent."""
    schema, workload = OncePerEpoch(period), workloads.prefix_sum(n)
    best = optimize.dense(workload, participation=schema, loss=kind)
    assert best.loss == pytest.approx(value, rel=2e-3)
    assert float(sensitivity(best.strategy, schema)) == pytest.approx(1.0, abs=1e-6)
    assert (
        best.lower_bound
        < best.loss
        <= min(loss(workload, c, schema, kind) for c in cheap_candidates(workload))
    )


def test_epochs_by_a_search_over_their_blocks():
    rng = np.random.default_rng(0)
    workload, schema = random_workload(4), OncePerEpoch(2)
    inside = np.array([(0, 0), (1, 0), (1, 1), (2, 2), (3, 2), (3, 3)]).T

    def value(x):
        c = np.zeros((4, 4))
        c[tuple(inside)] = x
        return np.log(loss(workload, Dense(np.where(np.eye(4) > 0, np.abs(c) + 1e-9, c)), schema))

    found = [minimize(value, rng.standard_normal(6), method="Nelder-Mead", options={"maxiter": 5000}).fun]
    found += [minimize(value, rng.standard_normal(6), method="Powell").fun for _ in range(3)]
    best = optimize.dense(workload, participation=schema)
    assert best.loss <= np.exp(min(found)) * (1 + 1e-5)
    assert best.loss == pytest.approx(np.exp(min(found)), rel=1e-2)


@pytest.mark.slow
def test_published_table_of_six_epochs():
    # arXiv 2408.08868, n = 2052, k = 6, b = 342, RMS: dense is about 8.15
    best = checked(workloads.prefix_sum(2052), Cyclic(342))
    assert best.loss == pytest.approx(8.15, abs=5e-3)
    assert best.gap <= 1e-4

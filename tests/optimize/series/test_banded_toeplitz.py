"""Banded Toeplitz optimiser: exact gradients, published optima, schemas, refusals."""

import math
from importlib import import_module

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss
from anechoic.optimize import banded_toeplitz
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity
from tests.marks import each_pair, every_other, in_turn

module = import_module("anechoic.optimize.series.toeplitz_objective")

# shared/GOLDEN.md, section 1 (recomputed there), and jax-privacy 2.0.0 for (10^5, 64) (ECOSYSTEM, section 6)
RMS = [
    (1024, 32, 4.955631),
    (2048, 64, 5.170044),
    (10**4, 100, 8.267045),
    (10**5, 64, 28.73595),
    (10**5, 100, 23.319599),
]


@pytest.mark.parametrize(("n", "bands", "best"), every_other(RMS))
@pytest.mark.few(2)
def test_published_optima(n, bands, best):
    found = banded_toeplitz(workloads.prefix_sum(n), bands=bands)
    assert found.loss == pytest.approx(best, rel=2e-7)
    assert np.linalg.norm(found.strategy.band) == pytest.approx(1.0)
    assert 0 < found.gap < 1e-9 and found.evaluations < 40  # the optimum of the class, certified
    assert found.bound_covers == f"lower-triangular Toeplitz strategies with at most {bands} bands"


COMBS = [
    (40, 7, 40, 1),
    (40, 7, 10, 4),
    (43, 7, 10, 5),
    (43, 15, 10, 5),
    (43, 15, 10, 3),
    (43, 43, 1, 43),
    (7, 7, 3, 2),
]


@in_turn("kind", ["rms", "max"])
@pytest.mark.parametrize(("n", "bands", "separation", "count"), COMBS)
@in_turn("fft_from", [1, 10**9])
def test_gradient(n, bands, separation, count, kind, fft_from, monkeypatch):
    monkeypatch.setattr(module, "FFT_FROM", fft_from)
    workload = workloads.momentum(n, 0.5, weight_decay=0.1)
    objective = module.ToeplitzObjective(workload, (separation, count), kind)
    c = np.sort(np.random.default_rng(0).uniform(0.1, 0.5, bands))[::-1].copy()
    c[0] = 1.0
    value, gradient = objective(c)
    steps = 1e-6 * np.eye(bands)
    differences = [(objective(c + step)[0] - objective(c - step)[0]) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, differences, atol=2e-9)
    # c does not increase: the comb is the sensitivity
    schema = MinSep(separation, count)
    assert math.exp(value) == pytest.approx(loss(workload, BandedToeplitz(n, c), schema, kind), rel=1e-10)


@pytest.mark.parametrize(
    ("beta", "bands", "schema", "kind"),
    each_pair(
        [0.0, 0.8],
        [
            (6, Single()),
            (6, Cyclic(10)),
            (10, MinSep(10)),
            (10, MinSep(10, 2)),
            (6, MinSep(10, 1)),
            (17, MinSep(10)),
            (17, Cyclic(10)),
            (47, MinSep(10, 3)),
            (3, FullBatch()),
        ],
        ["rms", "max"],
    ),
)
@pytest.mark.few(12)
def test_loss_is_exact_and_a_local_minimum(bands, schema, kind, beta):
    workload = workloads.momentum(47, beta)  # 10 does not divide 47
    found = banded_toeplitz(workload, bands=bands, participation=schema, loss=kind)
    assert sensitivity(found.strategy, schema).exact
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema, kind), rel=1e-9)
    assert len(found.strategy.band) <= bands
    rng = np.random.default_rng(0)
    c = np.asarray(found.strategy.band)
    for _ in range(20):
        near = c * (1 + 1e-3 * rng.standard_normal(len(c)))
        if bands > 10 or schema == FullBatch():  # the class is that of falling coefficients
            near = np.minimum.accumulate(near)
        assert loss(workload, BandedToeplitz(47, near), schema, kind) >= found.loss * (1 - 1e-8)


@pytest.mark.slow
def test_more_bands_than_the_separation():
    # both do better than the best BLT (GOLDEN, section 2: 9.43056), which has all its bands
    workload, schema = workloads.prefix_sum(2000), MinSep(400, 5)
    found = banded_toeplitz(workload, bands=800, participation=schema, loss="max")
    fewer = banded_toeplitz(workload, bands=400, participation=schema, loss="max")
    assert found.loss <= fewer.loss < 9.43056
    # few participations leave something to gain
    workload, schema = workloads.prefix_sum(2000), MinSep(100, 3)
    found = banded_toeplitz(workload, bands=2000, participation=schema)
    fewer = banded_toeplitz(workload, bands=100, participation=schema)
    assert found.strategy.structure.nonincreasing and sensitivity(found.strategy, schema).exact
    assert found.loss < 0.9 * fewer.loss


def test_a_step_out_of_the_stable_region_is_sent_back():
    objective = module.ToeplitzObjective(workloads.prefix_sum(5000), (5000, 1), "rms")
    value, gradient = objective(np.array([1.0, 3.0]))  # 1/c = 1 - 3x + 9x^2 …
    assert value == 1e10 and not gradient.any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("last", [0.0, 0.2, 0.9])
@pytest.mark.few(2)
def test_learning_rates_are_designed_for(momentum, last):
    # normalised, it is within some per cent of the best of free columns, and better than without the rates
    n, bands = 96, 6
    rates = 0.01 + np.linspace(1.0, 0.0, n)
    weights = np.r_[np.full(n - 1, (1 - last) / n), (1 - last) / n + last]
    workload = workloads.momentum(n, momentum, learning_rates=rates)
    best = optimize.banded(workload, bands=bands, loss=weights)
    constant = banded_toeplitz(workloads.momentum(n, momentum), bands=bands, loss=weights).strategy
    aware = banded_toeplitz(workload, bands=bands, loss=weights).strategy
    losses = [loss(workload, ColumnNormalized(c), kind=weights) for c in (aware, constant)]
    assert best.lower_bound <= losses[0] < min(1.02 * best.loss, 1.0001 * losses[1])


def test_rates_that_jump_make_nothing_worse_than_independent_noise():
    """The search takes them to be constant: it was 97 times worse."""
    jumping = workloads.scheduled(workloads.momentum(64, 0.9), np.where(np.arange(64) % 4 == 0, 1.0, 0.05))
    plain = loss(jumping, Identity(64), kind="last")
    for found in (banded_toeplitz(jumping, bands=2, loss="last"), optimize.toeplitz(jumping, loss="last")):
        assert found.loss <= plain * (1 + 1e-12)


def test_what_has_no_toeplitz_factor_is_refused():
    with pytest.raises(UnsupportedError, match="nor one with learning rates"):
        banded_toeplitz(workloads.from_dense(np.tril(np.arange(1.0, 10.0).reshape(3, 3))), bands=2)
    with pytest.raises(UnsupportedError, match="loss=.max. of a workload with learning rates"):
        banded_toeplitz(workloads.momentum(3, 0.5, learning_rates=[1.0, 0.5, 0.2]), bands=2, loss="max")
    with pytest.raises(ValueError, match="must be a Workload"):
        banded_toeplitz(np.ones(3), bands=2)

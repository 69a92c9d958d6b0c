"""Banded Toeplitz optimiser: exact gradients, published optima, schemas, refusals."""

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.optimize import banded_toeplitz
from anechoic.participation import MinSep
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import ColumnNormalized, Identity
from tests.marks import every_other

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

"""The best damping, and the best number of restarts, against exhaustive search."""

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.strategies import Identity, Restarted, Toeplitz
from tests.marks import each_once

CASES = [
    (1, Single()),
    (2, Single()),
    (63, Single()),
    (47, MinSep(10)),
    (47, MinSep(10, 2)),
    (40, Cyclic(8)),
    (20, FullBatch()),
]


def damping_of(strategy):
    c = strategy.coefficients
    return 1 - c[1] / c[0] / 0.5


@pytest.mark.parametrize(
    ("beta", "n", "schema", "kind"), each_once([0.0, 0.9], CASES, ["rms", "max", "last", "weights"])
)
@pytest.mark.few(3)
def test_no_damping_does_better(n, schema, kind, beta):
    workload = workloads.momentum(n, beta)
    weights = np.arange(1.0, n + 1) if kind == "weights" else kind
    found = optimize.damped(workload, participation=schema, loss=weights)
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema, weights), rel=1e-9)
    assert isinstance(found.strategy, Toeplitz)
    for damping in [0.0, *np.geomspace(1e-5, 0.99999, 200)]:
        assert loss(workload, Toeplitz.damped(n, damping), schema, weights) >= found.loss * (1 - 1e-6)


def test_max_loss_needs_no_damping():  # Theorem 2.5
    found = optimize.damped(workloads.prefix_sum(200), loss="max")
    assert damping_of(found.strategy) == 0.0


@pytest.mark.parametrize(
    ("kind", "schema"), each_once(["rms", "max"], [Single(), MinSep(5), MinSep(5, 2), Cyclic(6), FullBatch()])
)
@pytest.mark.slow
def test_restarts(schema, kind):
    n = 24
    workload = workloads.prefix_sum(n)
    found = optimize.damped(workload, participation=schema, loss=kind, restarts="choose")
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema, kind), rel=1e-9)
    step = {Cyclic(6): 6}.get(schema, 5)
    blocks = {24, 12, 6, 3, 2, 1} if schema in (Single(), FullBatch()) else set(range(step, n, step)) | {n}
    for block in blocks:
        for damping in [0.0, *np.geomspace(1e-4, 0.9999, 60)]:
            times = -(-n // block)
            strategy = Toeplitz.damped(block, damping)
            strategy = strategy if times == 1 else Restarted(strategy, times, n)
            assert loss(workload, strategy, schema, kind) >= found.loss * (1 - 1e-5)


def test_a_search_led_astray_is_put_right():
    # blocks of 21 steps look best for the pattern 0, 3, 6, …, but another pattern is worse for them
    found = optimize.damped(workloads.prefix_sum(28), participation=MinSep(3, 8), restarts="choose")
    assert found.strategy.structure.toeplitz and found.loss == pytest.approx(7.828838, abs=1e-6)


class TestRestarted:
    def test_the_best_count_is_found(self):
        workload, schema = workloads.prefix_sum(48), MinSep(6)

        def build(steps):
            return Toeplitz.square_root(workloads.prefix_sum(steps))

        found = optimize.restarted(workload, build, participation=schema, loss="rms")
        losses = {}
        for block in range(6, 49, 6):
            strategy = build(48) if block == 48 else Restarted(build(block), -(-48 // block), 48)
            losses[block] = loss(workload, strategy, schema)
        assert found.loss == pytest.approx(min(losses.values()), rel=1e-12)
        assert found.strategy.base.n == min(losses, key=losses.get) < 48
        assert found.evaluations == 8

    def test_any_strategy_and_workload(self):
        workload = workloads.momentum(20, 0.7)
        found = optimize.restarted(workload, Identity, participation=Cyclic(5), loss="max")
        assert found.loss == pytest.approx(loss(workload, Identity(20), Cyclic(5), "max"), rel=1e-12)
        given = optimize.restarted(workload, Identity, participation=Cyclic(5), restarts=4)
        assert isinstance(given.strategy, Restarted) and given.strategy.times == 4

    def test_a_wrong_block_is_refused(self):
        with pytest.raises(ValueError, match="a strategy with 8 steps is needed"):
            optimize.restarted(workloads.prefix_sum(16), lambda steps: Identity(16))
        with pytest.raises(ValueError, match="must be a Workload"):
            optimize.restarted(np.eye(3), Identity)

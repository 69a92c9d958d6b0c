"""The best damping, and the best number of restarts, against exhaustive search."""

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.strategies import Dense, Identity, Restarted, Toeplitz
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


@pytest.mark.parametrize("eta", [0.05, 0.3])
def test_decaying_sums_are_best_damped_alike(eta):  # paper 000, Theorem 2.1
    found = optimize.damped(workloads.exponential_decay(800, 1 - eta), loss="last")
    assert damping_of(found.strategy) == pytest.approx(eta, rel=1e-3)


@pytest.mark.slow
def test_it_beats_the_square_root_where_units_come_back():
    # 9.50151 is the best BLT with two buffers (GOLDEN, section 2); one number does nearly as well
    workload, schema = workloads.prefix_sum(2000), MinSep(400, 5)
    found = optimize.damped(workload, participation=schema, loss="max")
    root = loss(workload, Toeplitz.square_root(workload), schema, "max")
    assert found.loss < 9.54 < 0.97 * root
    assert found.gap > 0


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
    # blocks of 12 steps look best for the pattern 0, 3, 6, …, but another pattern is worse for them
    found = optimize.damped(workloads.prefix_sum(17), participation=MinSep(3, 5), restarts="choose")
    assert found.strategy.structure.toeplitz and found.loss == pytest.approx(5.089063, abs=1e-6)


def test_a_given_number_of_restarts():
    workload = workloads.prefix_sum(25)
    for restarts, block in [(1, 25), (2, 13), (3, 9), (25, 1)]:
        found = optimize.damped(workload, participation=MinSep(5), restarts=restarts)
        strategy = found.strategy
        assert strategy.n == 25
        assert (strategy.base.n if isinstance(strategy, Restarted) else strategy.n) == block


@pytest.mark.slow
def test_full_batch_ends_at_the_identity():
    found = optimize.damped(workloads.prefix_sum(64), participation=FullBatch(), restarts="choose")
    assert np.allclose(found.strategy.to_dense(), np.eye(64), atol=1e-6)
    assert found.loss == pytest.approx(45.61, abs=6e-3)  # GOLDEN, section 2


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

    def test_progress(self):
        seen = []
        optimize.restarted(workloads.prefix_sum(16), Identity, progress=lambda *report: seen.append(report))
        assert [count for count, _ in seen] == [1, 2, 3, 4, 5]
        seen.clear()
        found = optimize.damped(workloads.prefix_sum(16), progress=lambda *report: seen.append(report))
        assert len(seen) == found.evaluations
        assert min(value for _, value in seen) == pytest.approx(found.loss)

    def test_a_wrong_block_is_refused(self):
        with pytest.raises(ValueError, match="a strategy with 8 steps is needed"):
            optimize.restarted(workloads.prefix_sum(16), lambda steps: Identity(16))
        with pytest.raises(ValueError, match="must be a Workload"):
            optimize.restarted(np.eye(3), Identity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"restarts": 0}, "restarts=0 must be at least 1"),
        ({"restarts": 31}, "restarts=31 exceeds n=30"),
        ({"restarts": "some"}, "restarts='some' is unknown"),
        ({"loss": "mean"}, "loss='mean' is unknown"),
        ({"participation": OncePerEpoch(10)}, "optimisers know"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimize.damped(workloads.prefix_sum(30), **arguments)


def test_workloads_that_are_not_toeplitz_are_refused():
    with pytest.raises(UnsupportedError, match="not Toeplitz"):
        optimize.damped(workloads.from_dense(np.tril(np.arange(1.0, 10.0).reshape(3, 3))))


@pytest.mark.slow
def test_deterministic():
    runs = [optimize.damped(workloads.prefix_sum(77), participation=MinSep(9)) for _ in range(2)]
    assert np.array_equal(runs[0].strategy.band, runs[1].strategy.band)


def test_dense_blocks_can_be_restarted():
    found = optimize.restarted(workloads.prefix_sum(6), lambda steps: Dense(np.eye(steps)), restarts=2)
    assert found.strategy.base.n == 3

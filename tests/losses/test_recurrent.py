"""Errors from finite memory: every base, workload and gain against B = T diag(gains) C^-1 written out."""

import time
import tracemalloc

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses import recurrent as losses_recurrent
from anechoic.losses.dispatch import error
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Identity, Toeplitz
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from tests.marks import in_turn, slow
from tests.zoo import turning

N = 23
BASES = {
    "blt-1": BLT(N, [0.4], [0.9]),
    "blt-3": BLT(N, [0.3, 0.2, 0.1], [0.99, 0.7, 0.0]),
    "blt-zero-scale": BLT(N, [0.3, 0.0, 0.1], [0.99, 0.7, 0.2]),
    "blt-negative-inverse-decay": BLT(N, [0.9], [0.5]),
    "blt-growing-inverse": BLT(N, [0.9, 0.8], [0.9, 0.5]),
    "blt-mixed": BLT(N, [0.9, -0.8], [0.9, 0.85]),
    "turning": turning(N),
    "turning-inverse": turning(N).inverse(),
    "defective": ConstantRecurrent(N, [0.2, 0.1], [[0.8, 1.0], [0.0, 0.8]], [0.3, 0.4], 2.0),
    "nilpotent": ConstantRecurrent.from_rational(N, [1.0, 0.5, 0.25, 0.1], [1.0]),
    "one-step": BLT(1, [0.4], [0.9]),
    "two-steps": turning(2),
}


def workloads_of(n):
    rates = np.random.default_rng(n).uniform(0.5, 2.0, n)
    return {
        "prefix": workloads.prefix_sum(n),
        "momentum": workloads.momentum(n, 0.9, weight_decay=0.01),
        "double-pole": workloads.momentum(n, 0.9, weight_decay=0.1),
        "no-momentum": workloads.momentum(n, 0.0, learning_rates=rates),
        "nesterov": workloads.nesterov(n, 0.8, weight_decay=0.1, learning_rates=rates),
        "decay": workloads.exponential_decay(n, 0.6),
        "window": workloads.sliding_window(n, min(n, 5)),
        "scheduled-decay": workloads.scheduled(workloads.exponential_decay(n, 0.6), rates),
    }


def written_out(workload, strategy):
    return np.square(workload.to_dense() @ np.linalg.inv(strategy.to_dense())).sum(axis=1)


@in_turn("kind", workloads_of(3))
@pytest.mark.parametrize("name", BASES)
@pytest.mark.few(2)
def test_with_scaled_columns(name, kind):
    base = BASES[name]
    workload = workloads_of(base.n)[kind]
    rng = np.random.default_rng(0)
    scales = {
        "normalised": 1.0 / np.sqrt(base.column_norms_squared()),
        "falling": np.linspace(2.0, 0.3, base.n),
        "any": rng.uniform(0.2, 3.0, base.n),
        "constant": np.full(base.n, 0.7),
    }
    for scale in scales.values():
        strategy = ColumnScaled(base, scale)
        found = losses_recurrent.squares_with_gains(workload, strategy)
        np.testing.assert_allclose(found, written_out(workload, strategy), rtol=1e-11)
        np.testing.assert_allclose(np.square(error(workload, strategy).per_step), found, rtol=1e-14)
    twice = ColumnScaled(ColumnScaled(base, scales["any"]), scales["falling"])
    found = losses_recurrent.squares_with_gains(workload, twice)
    np.testing.assert_allclose(found, written_out(workload, twice), rtol=1e-11)


@in_turn("kind", workloads_of(3))
@pytest.mark.parametrize("name", BASES)
@pytest.mark.few(8)
def test_without_scales(name, kind):
    base = BASES[name]
    workload = workloads_of(base.n)[kind]
    expected = written_out(workload, base)
    if workload.rates is not None:
        found = losses_recurrent.squares_with_gains(workload, base)
        np.testing.assert_allclose(found, expected, rtol=1e-11)
        assert losses_recurrent.toeplitz_error(workload, base) is None
        return
    last, mean, every = losses_recurrent.toeplitz_error(workload, base)
    assert (last, mean) == pytest.approx((expected[-1], expected.mean()), rel=1e-12)
    np.testing.assert_allclose(every(), expected, rtol=1e-12)
    assert losses_recurrent.squares_with_gains(workload, base) is None
    assert error(workload, base).last == pytest.approx(np.sqrt(expected[-1]), rel=1e-12)


def test_other_strategies_and_workloads_are_left_alone():
    n = 12
    for base in (Identity(n), Toeplitz.square_root(workloads.prefix_sum(n)), BandedToeplitz(n, [1.0, 0.5])):
        strategy = ColumnScaled(base, np.ones(n))
        assert losses_recurrent.squares_with_gains(workloads.prefix_sum(n), strategy) is None
        assert losses_recurrent.toeplitz_error(workloads.prefix_sum(n), base) is None
    general = workloads.from_dense(np.tril(1.0 + np.random.default_rng(0).random((n, n))))
    blt = BLT(n, [0.4], [0.9])
    assert losses_recurrent.squares_with_gains(general, ColumnNormalized(blt)) is None
    assert losses_recurrent.toeplitz_error(general, blt) is None
    long = workloads.sliding_window(200, 100)
    assert losses_recurrent.toeplitz_error(long, BLT(200, [0.4], [0.9])) is None
    many = ConstantRecurrent(n, np.zeros(65), np.zeros((65, 65)), np.zeros(65))
    assert losses_recurrent.inverse_system(many) is None


def last_row(workload, base, gains):
    """Last row of T diag(gains) base^-1 for Toeplitz base: base^-T applied to the row of T, by the flip."""
    return base.solve((workload.coefficients[::-1] * gains)[::-1])


@pytest.mark.parametrize("d", [2, *slow(5)])
@pytest.mark.slow
def test_many_steps(d):
    n = 200_000
    base = optimize.blt(workloads.prefix_sum(n), buffers=d).strategy
    gains = np.sqrt(base.column_norms_squared())
    strategy = ColumnNormalized(base)
    tracemalloc.start()
    found = error(workloads.prefix_sum(n), strategy)
    assert tracemalloc.get_traced_memory()[1] < 8 * n * 10 * (d + 3)
    tracemalloc.stop()
    exact = np.linalg.norm(last_row(workloads.prefix_sum(n), base, gains))
    assert found.last == pytest.approx(exact, rel=1e-11)
    general = error(workloads.prefix_sum(n), ColumnScaled(ConstantRecurrent.from_blt(base), 1.0 / gains))
    np.testing.assert_allclose(general.per_step, found.per_step, rtol=1e-9)
    # with equal gains the errors are those in closed form, at every step
    plain = losses_recurrent.squares_with_gains(
        workloads.prefix_sum(n), ColumnScaled(base, np.full(n, 1.0 / base.largest_column_norm()))
    )
    expected = base.largest_column_norm() * error(workloads.prefix_sum(n), base).per_step
    np.testing.assert_allclose(np.sqrt(plain), expected, rtol=1e-11)
    for workload in (workloads.momentum(n, 0.9, weight_decay=1e-4), workloads.nesterov(n, 0.9)):
        found = error(workload, strategy)
        assert found.last == pytest.approx(np.linalg.norm(last_row(workload, base, gains)), rel=1e-10)


def test_closed_forms_do_not_depend_on_the_number_of_steps():
    n = 10**9
    blt = BLT(n, [1e-4, 0.1, 0.3], [1 - 1e-9, 0.999, 0.7])
    started = time.perf_counter()
    tracemalloc.start()
    for workload in (workloads.momentum(n, 0.9, weight_decay=1e-9), workloads.exponential_decay(n, 0.99)):
        found = error(workload, blt)
        assert 0 < found.rms <= found.max
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    assert time.perf_counter() - started < 2.0

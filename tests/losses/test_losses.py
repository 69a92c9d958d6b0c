"""Errors and losses against B = A C^-1 written out, and against published values."""

import math
import tracemalloc

import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import toeplitz
from anechoic.errors import PerformanceWarning
from anechoic.losses import dispatch, rows
from anechoic.losses.dispatch import error, loss
from anechoic.losses.norms import row_weights, tail_weights
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Dense, Identity, Output, Toeplitz
from tests.marks import in_turn
from tests.zoo import STRATEGIES, every


def decoder(workload, strategy):
    """B written out; a rectangular C has many left inverses, and its own is taken."""
    c = strategy.to_dense()
    inverse = np.linalg.inv(c) if strategy.rows == strategy.n else strategy.correlate(np.eye(strategy.rows))
    np.testing.assert_allclose(inverse @ c, np.eye(strategy.n), atol=1e-9)
    return workload.to_dense() @ inverse


def written_out(workload, strategy):
    return np.linalg.norm(decoder(workload, strategy), axis=1)


def workloads_of(n):
    rates = np.random.default_rng(n).uniform(0.5, 2.0, n)
    late = np.where(np.arange(n) < n // 2, 1.0, rates)
    return {
        "prefix": workloads.prefix_sum(n),
        "momentum": workloads.momentum(n, 0.9, weight_decay=0.01),
        "rates": workloads.momentum(n, 0.8, weight_decay=0.1, learning_rates=rates),
        "late-rates": workloads.momentum(n, 0.0, learning_rates=late),
        "even-rates": workloads.momentum(n, 0.5, learning_rates=np.full(n, 0.3)),
        "nesterov": workloads.nesterov(n, 0.9, weight_decay=0.05, learning_rates=late),
        "window": workloads.scheduled(workloads.sliding_window(n, 3), rates),
        "fading": workloads.exponential_decay(n, 0.6),
        "coefficients": workloads.from_coefficients(1 / (1 + np.arange(n))),
        "general": workloads.from_dense(np.tril(np.random.default_rng(n).uniform(0.5, 1.0, (n, n)))),
        "restarts": workloads.restart_differences(workloads.prefix_sum(n), period=3),
        "restarts-rates": workloads.restart_differences(
            workloads.nesterov(n, 0.9, learning_rates=late), period=4
        ),
        "restarts-never": workloads.restart_differences(workloads.momentum(n, 0.5), period=n + 1),
    }


@pytest.mark.parametrize("name", every())
@pytest.mark.few(10)
def test_error_is_that_of_the_matrix_written_out(name):
    strategy = STRATEGIES[name]
    weights = np.random.default_rng(1).uniform(0, 3, strategy.n)
    for kind, workload in workloads_of(strategy.n).items():
        found, expected = error(workload, strategy), written_out(workload, strategy)
        assert found.n == strategy.n
        np.testing.assert_allclose(found.per_step, expected, rtol=1e-10, err_msg=kind)
        assert found.max == pytest.approx(expected.max(), rel=1e-10), kind
        assert found.rms == pytest.approx(np.sqrt(np.square(expected).mean()), rel=1e-10), kind
        assert found.per_step is found.per_step  # kept once it is there
        assert found.last == pytest.approx(expected[-1], rel=1e-10), kind
        mean = np.sqrt((weights * np.square(expected)).sum() / weights.sum())
        for named, value in (("rms", found.rms), ("max", found.max), ("last", found.last), (weights, mean)):
            assert found.of(named) == pytest.approx(value, rel=1e-10), kind


@pytest.mark.parametrize(
    "name", ["scaled(dense)", "normalised(toeplitz-root)", "restarted-cut(banded-2)", "dense"]
)
def test_blocks_of_columns_add_up(name, monkeypatch):
    strategy = STRATEGIES[name]
    monkeypatch.setattr(dispatch, "CHUNK", 2 * strategy.n)  # two columns at a time
    workload = workloads_of(strategy.n)["rates"]
    squares = dispatch._by_columns(workload, strategy)
    np.testing.assert_allclose(np.sqrt(squares), written_out(workload, strategy), rtol=1e-10)


# Monograph, Tables 2.2 (max) and 2.3 (RMS): n; max of Identity and Output; RMS of Identity; max of the root.
TABLE = [
    (8, 2.828, 2.121, 1.718),
    (64, 8.0, 5.701, 2.389),
    (512, 22.627, 16.016, 3.052),
    (8192, 90.51, 64.004, 3.935),
]


@pytest.mark.parametrize(("n", "largest", "rms", "root"), TABLE)
def test_tables_of_the_monograph(n, largest, rms, root):
    workload = workloads.prefix_sum(n)
    assert loss(workload, Identity(n), Single(), "max") == pytest.approx(largest, abs=6e-4)
    assert loss(workload, Output(workload), Single(), "max") == pytest.approx(largest, abs=6e-4)
    assert loss(workload, Output(workload), Single(), "rms") == pytest.approx(largest, abs=6e-4)
    assert loss(workload, Identity(n), Single(), "rms") == pytest.approx(rms, abs=6e-4)
    assert loss(workload, Toeplitz.square_root(workload), Single(), "max") == pytest.approx(root, abs=6e-4)


# Recomputed in shared/GOLDEN.md, section 1: the column-normalised square root, max and RMS.
@pytest.mark.parametrize(("n", "largest", "rms"), [(1024, 3.0807, 2.9914), (2048, 3.2992, 3.2093)])
def test_normalised_square_root(n, largest, rms):
    found = error(workloads.prefix_sum(n), ColumnNormalized(Toeplitz.square_root(workloads.prefix_sum(n))))
    assert (found.max, found.rms) == (pytest.approx(largest, abs=6e-5), pytest.approx(rms, abs=6e-5))


def test_several_participations():
    # Identity: sqrt(k n) (GOLDEN, section 2); DP-SGD at n = 2052, k = 6 in arXiv 2408.08868: 78.48 RMS
    workload = workloads.prefix_sum(2052)
    schema = MinSep(separation=342, max_participations=6)
    assert loss(workload, Identity(2052), schema, "max") == pytest.approx(math.sqrt(6 * 2052))
    assert loss(workload, Identity(2052), schema) == pytest.approx(78.48, abs=5e-3)
    # BSR(342) of the same setting: 8.98 RMS, 11.05 max
    bsr = BandedToeplitz(2052, Toeplitz.square_root(workload).coefficients[:342])
    assert loss(workload, bsr, Cyclic(342)) == pytest.approx(8.98, abs=6e-3)
    assert loss(workload, bsr, schema, "max") == pytest.approx(11.05, abs=6e-3)


def test_blt_of_a_billion_steps():
    n = 10**9
    strategy = BLT(n, [1e-4, 0.1, 0.3], [1 - 1e-9, 0.999, 0.7])
    tracemalloc.start()
    found = error(workloads.prefix_sum(n), strategy)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    assert found.rms < found.max < math.sqrt(n)


@pytest.mark.parametrize("bands", [1, 64])
def test_normalised_bands_make_no_square_array(bands):
    n = 50_000
    base = BandedToeplitz(n, 0.8 ** np.arange(bands))
    strategy = ColumnNormalized(base)
    workload = workloads.prefix_sum(n)
    tracemalloc.start()
    found = error(workload, strategy)
    assert tracemalloc.get_traced_memory()[1] < 40 * 8 * n
    tracemalloc.stop()
    # the rows before the last bands - 1 are those of the base, scaled
    scale = base.largest_column_norm()
    plain = scale * error(workload, base).per_step[: n - bands + 1]
    np.testing.assert_allclose(found.per_step[: n - bands + 1], plain, rtol=1e-12)
    assert found.per_step[-1] == pytest.approx(np.linalg.norm(last_row(workload, strategy)), rel=1e-9)


def last_row(workload, strategy):
    """Last row of B for prefix sums: C^-T 1, by the flipped recursion."""
    ones = np.ones(strategy.n) / np.asarray(strategy.scales)
    return strategy.base.solve(ones[::-1])[::-1]


def test_what_takes_long_is_announced(monkeypatch):
    monkeypatch.setattr(dispatch, "SLOW_FROM", 1e4)
    with pytest.warns(PerformanceWarning, match="operations"):
        error(workloads.prefix_sum(100), Dense(np.tril(np.ones((100, 100)))))
    with pytest.warns(PerformanceWarning, match="operations"):
        error(workloads.prefix_sum(200), ColumnNormalized(Toeplitz.square_root(workloads.prefix_sum(200))))


@in_turn(
    ("call", "message"),
    [
        (lambda: error(workloads.prefix_sum(4), Identity(5)), "n=4 steps but strategy has n=5"),
        (lambda: error(4, Identity(4)), "must be a Workload"),
        (lambda: error(workloads.prefix_sum(4), np.eye(4)), "must be a Strategy"),
        (lambda: loss(workloads.prefix_sum(4), Identity(4), Single(), "mean"), "'mean' is unknown"),
        (
            lambda: loss(workloads.prefix_sum(2), Identity(2), Single(), [1.0]),
            "weights of the steps have 1 entries; 2 are needed",
        ),
        (lambda: row_weights("max", 2), "no weighted mean"),
        (lambda: row_weights(None, 2), '"rms", "max", "last" or weights'),
        (lambda: row_weights([1.0, np.nan], 2), "is not finite"),
        (lambda: row_weights([0.0, 0.0], 2), "with one above 0"),
        (lambda: row_weights([1.0, -1.0], 2), "the smallest is -1.0"),
        (lambda: row_weights("mean", 2), "'mean' is unknown"),
        (lambda: tail_weights("mean", 2), "'mean' is unknown"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("scale", [1e308, 1.0, 5e-324])
def test_only_the_proportions_of_weights_count(scale):
    weights = row_weights([scale] * 4, 4)
    np.testing.assert_array_equal(weights, np.full(4, 0.25))
    workload = workloads.prefix_sum(4)
    assert loss(workload, Identity(4), Single(), [scale] * 4) == pytest.approx(math.sqrt(2.5))


@pytest.mark.parametrize("kind", ["rms", "max", "last", "weights"])
def test_tail_weights_are_those_of_toeplitz_decoders(kind):
    n = 9
    b = np.random.default_rng(2).standard_normal(n)
    kind = np.random.default_rng(3).uniform(0, 1, n) if kind == "weights" else kind
    squares = np.cumsum(np.square(b))
    expected = squares.max() if isinstance(kind, str) and kind == "max" else row_weights(kind, n) @ squares
    assert tail_weights(kind, n) @ np.square(b) == pytest.approx(expected, rel=1e-12)


RESTART_STRATEGIES = {
    "root": lambda n: Toeplitz.square_root(workloads.prefix_sum(n)),
    "identity": Identity,
    "banded": lambda n: BandedToeplitz(n, [1.0, 0.5, -0.3]),
    "blt": lambda n: BLT(n, [0.3, 0.2], [0.99, 0.5]),
    "normalized": lambda n: ColumnNormalized(BandedToeplitz(n, [1.0, 0.5, 0.3])),
}


@in_turn("period", [1, 2, 7, 40, 41, 60, 80, 81, 200])
@pytest.mark.parametrize("name", RESTART_STRATEGIES)
def test_restart_differences(name, period):
    n = 81
    strategy = RESTART_STRATEGIES[name](n)
    for base in (workloads.prefix_sum(n), workloads.momentum(n, 0.9)):
        workload = workloads.restart_differences(base, period=period)
        expected = written_out(workload, strategy)
        np.testing.assert_allclose(error(workload, strategy).per_step, expected, rtol=1e-10)


@pytest.mark.parametrize("period", [3, 1000, 60_000])
def test_restart_differences_of_many_steps(period):
    # identity: row s of a period is s ones over sqrt(period), or period ones
    n = 60_000
    s = np.arange(n) % period + 1
    expected = np.where(s == period, s, s / period)
    workload = workloads.restart_differences(workloads.prefix_sum(n), period=period)
    np.testing.assert_allclose(np.square(error(workload, Identity(n)).per_step), expected, rtol=1e-13)
    # a root, whose rows become alike: against two of the rows written out
    root = Toeplitz.square_root(workloads.prefix_sum(n))
    found = error(workload, root).per_step
    for t in (n - 2, n // period * period - 1):
        unit = np.zeros(n)
        unit[t] = 1.0
        row = toeplitz.solve(root.coefficients, workload.adjoint_multiply(unit)[::-1])[::-1]
        assert found[t] == pytest.approx(np.linalg.norm(row), rel=1e-9)


def test_restart_differences_by_pieces(monkeypatch):
    n, period = 500, 7
    workload = workloads.restart_differences(workloads.prefix_sum(n), period=period)
    strategy = Toeplitz.square_root(workloads.prefix_sum(n))
    whole = error(workload, strategy).per_step
    monkeypatch.setattr(rows, "CHUNK", 3 * 14)  # three periods at a time
    np.testing.assert_allclose(error(workload, strategy).per_step, whole, rtol=1e-12)

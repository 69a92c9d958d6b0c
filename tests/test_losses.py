"""Errors and losses against B = A C^-1 written out, and against published values."""

import math
import tracemalloc

import numpy as np
import pytest

from anechoic import losses, workloads
from anechoic.errors import PerformanceWarning
from anechoic.losses import error, loss
from anechoic.lower_bounds import prefix_sum_lower_bound
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.strategies import (
    BLT,
    BandedToeplitz,
    ColumnNormalized,
    ColumnScaled,
    Dense,
    Identity,
    Output,
    Restarted,
    Toeplitz,
)
from tests.zoo import zoo

ZOO = zoo()


def written_out(workload, strategy):
    return np.linalg.norm(workload.to_dense() @ np.linalg.inv(strategy.to_dense()), axis=1)


def workloads_of(n):
    rates = np.random.default_rng(n).uniform(0.5, 2.0, n)
    late = np.where(np.arange(n) < n // 2, 1.0, rates)
    return {
        "prefix": workloads.prefix_sum(n),
        "momentum": workloads.momentum(n, 0.9, weight_decay=0.01),
        "rates": workloads.momentum(n, 0.8, weight_decay=0.1, learning_rates=rates),
        "late-rates": workloads.momentum(n, 0.0, learning_rates=late),
        "even-rates": workloads.momentum(n, 0.5, learning_rates=np.full(n, 0.3)),
    }


@pytest.mark.parametrize("kind", workloads_of(1))
@pytest.mark.parametrize("name", ZOO)
def test_error_is_that_of_the_matrix_written_out(name, kind):
    strategy = ZOO[name]
    workload = workloads_of(strategy.n)[kind]
    found, expected = error(workload, strategy), written_out(workload, strategy)
    assert found.n == strategy.n
    np.testing.assert_allclose(found.per_step, expected, rtol=1e-10)
    assert found.max == pytest.approx(expected.max(), rel=1e-10)
    assert found.rms == pytest.approx(np.sqrt(np.square(expected).mean()), rel=1e-10)
    assert found.per_step is found.per_step  # kept once it is there


@pytest.mark.parametrize("name", ["scaled-dense", "normalized-root", "restarted-cut", "dense-9"])
def test_blocks_of_columns_add_up(name, monkeypatch):
    strategy = ZOO[name]
    monkeypatch.setattr(losses, "CHUNK", 2 * strategy.n)  # two columns at a time
    workload = workloads_of(strategy.n)["rates"]
    squares = losses._by_columns(workload, strategy)
    np.testing.assert_allclose(np.sqrt(squares), written_out(workload, strategy), rtol=1e-10)


class Doubled(workloads.Workload):
    """Twice the prefix sums, with rates: a workload whose diagonal is not 1."""

    coefficients = property(lambda self: np.full(self.n, 2.0))
    rates = property(lambda self: np.linspace(1.0, 2.0, self.n))


def test_any_diagonal_of_the_workload():
    strategy = ColumnNormalized(BandedToeplitz(12, [1.0, 0.5]))
    workload = Doubled(12)
    np.testing.assert_allclose(
        error(workload, strategy).per_step, written_out(workload, strategy), rtol=1e-10
    )


def test_long_inverses_of_the_workload_go_by_columns(monkeypatch):
    n = 20
    strategy = ColumnNormalized(BandedToeplitz(n, [1.0, 0.5, 0.25]))
    workload = workloads.momentum(n, 0.5)
    expected = written_out(workload, strategy)
    long = np.zeros(n)
    long[:3] = workload.inverse_coefficients
    monkeypatch.setattr(type(workload), "inverse_coefficients", long)
    np.testing.assert_allclose(error(workload, strategy).per_step, expected, rtol=1e-10)


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


def test_identity_of_a_billion_steps():
    found = error(workloads.prefix_sum(10**9), Identity(10**9))
    assert (found.max, found.rms) == (pytest.approx(math.sqrt(1e9)), pytest.approx(math.sqrt(5e8), rel=1e-8))


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


def test_restarts_are_independent():
    n, times = 60, 4
    base = Toeplitz.square_root(workloads.prefix_sum(n))
    block = np.square(error(workloads.prefix_sum(n), base).per_step)
    found = np.square(error(workloads.prefix_sum(n * times), Restarted(base, times)).per_step)
    np.testing.assert_allclose(found[2 * n : 3 * n], 2 * block[-1] + block, rtol=1e-12)


def test_lower_bound():
    assert prefix_sum_lower_bound(1024) == pytest.approx(2.9096, abs=5e-5)  # GOLDEN, section 1
    for n in (1, 2, 5, 40):
        values = np.linalg.svd(workloads.prefix_sum(n).to_dense(), compute_uv=False)
        assert prefix_sum_lower_bound(n) == pytest.approx(values.sum() / n, rel=1e-11)
        assert prefix_sum_lower_bound(n) < values.sum() / n


@pytest.mark.parametrize("n", [10**6, 2_345_678])
def test_lower_bound_of_many_steps(n):
    angles = (np.arange(n) + 0.5) * np.pi / (2 * n + 1)
    exact = (0.5 / np.sin(angles)).sum() / n
    assert exact * (1 - 1e-11) < prefix_sum_lower_bound(n) < exact
    assert prefix_sum_lower_bound(10**12) == pytest.approx(math.log(1e12) / math.pi, rel=0.1)


@pytest.mark.parametrize("name", [name for name, strategy in ZOO.items() if strategy.n > 4])
def test_no_strategy_beats_the_lower_bound(name):
    strategy = ZOO[name]
    workload = workloads.prefix_sum(strategy.n)
    bound = prefix_sum_lower_bound(strategy.n)
    assert bound <= loss(workload, strategy, Single(), "rms") <= loss(workload, strategy, Single(), "max")


def test_what_takes_long_is_announced(monkeypatch):
    monkeypatch.setattr(losses, "SLOW_FROM", 1e4)
    with pytest.warns(PerformanceWarning, match="operations"):
        error(workloads.prefix_sum(100), Dense(np.eye(100)))
    with pytest.warns(PerformanceWarning, match="operations"):
        error(workloads.prefix_sum(200), ColumnNormalized(Toeplitz.square_root(workloads.prefix_sum(200))))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: error(workloads.prefix_sum(4), Identity(5)), "n=4 steps but strategy has n=5"),
        (lambda: error(4, Identity(4)), "must be a Workload"),
        (lambda: error(workloads.prefix_sum(4), np.eye(4)), "must be a Strategy"),
        (lambda: loss(workloads.prefix_sum(4), Identity(4), Single(), "mean"), "'mean' is unknown"),
        (lambda: prefix_sum_lower_bound(0), "n=0 must be at least 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_scaled_by_a_constant_is_toeplitz_again():
    base = BandedToeplitz(30, [1.0, 0.5])
    found = error(workloads.prefix_sum(30), ColumnScaled(base, np.full(30, 2.0)))
    np.testing.assert_allclose(found.per_step, error(workloads.prefix_sum(30), base).per_step / 2)

"""Fresh rows: what they depend on, and that they are i.i.d. standard normal."""

import numpy as np
import pytest
from scipy import stats

from anechoic.noise import gaussian
from anechoic.noise.gaussian import CIPHERS, LARGEST, FreshRow, in_blocks
from anechoic.strategies import BandedToeplitz, Identity
from tests.marks import each_once
from tests.noise.streams import BACKENDS, KEY, fresh_rows, make_stream
from tests.zoo import STRATEGIES

PRECISIONS = ("float32", "float64")


def fresh(backend, *, key=KEY, step=0, m=64, precision="float32", n=2**40):
    stream = make_stream(Identity(n), m, backend, precision=precision, key=key)
    return np.asarray(stream.fresh(step))


# Addresses


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fresh_row_depends_on_key_step_and_coordinate_only(backend):
    row = fresh(backend, step=5)
    stream = make_stream(BandedToeplitz(9, [2.0, 1.0]), 70, backend, precision="float32", key=KEY, std=7.0)
    state = stream.init()
    for _ in range(7):  # drawing rows, in whatever order, leaves no trace
        _, state = stream.next(state)
    np.testing.assert_array_equal(np.asarray(stream.fresh(5))[:64], row)
    np.testing.assert_array_equal(fresh(backend, step=5), row)


def test_other_addresses_give_other_rows():
    rows = [fresh("numpy", step=step, precision="float64") for step in (0, 1, 2, 255, 256, 2**32, 2**39)]
    for byte in range(32):
        for bit in (0, 7):
            key = bytearray(KEY)
            key[byte] ^= 1 << bit
            rows.append(fresh("numpy", key=bytes(key), precision="float64"))
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 0.6  # 71 rows of 64 entries; equal or shifted parts would give more
    assert len({value for row in rows for value in row.tolist()}) == 64 * len(rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_single_precision_is_double_precision_rounded_once(backend):
    pair = [fresh(backend, m=4096, precision=precision) for precision in PRECISIONS]
    assert pair[0].dtype == np.float32
    np.testing.assert_array_equal(pair[0], pair[1].astype(np.float32))


def test_the_scale_is_applied_before_rounding():
    row, scaled, plain = FreshRow(KEY, 3), np.empty(999, np.float32), np.empty(999)
    row.fill(plain, 7)
    row.fill(scaled, 7, 1 / 3)
    np.testing.assert_array_equal(scaled, (plain * (1 / 3)).astype(np.float32))


def test_blocks_cover_a_row_once_and_errors_come_through(monkeypatch):
    monkeypatch.setattr(gaussian, "BLOCK", 10)
    for threads in (1, 4):
        seen = np.zeros(47, int)

        def visit(part, seen=seen):
            assert part.start % 10 == 0
            seen[part] += 1

        in_blocks(visit, 47, threads)
        assert (seen == 1).all()

        def fail(part):
            raise MemoryError

        with pytest.raises(MemoryError):
            in_blocks(fail, 47, threads)


# Distribution. Keys are fixed, so each test passes or fails for good; its level is that of the random key.


@pytest.mark.parametrize(("precision", "backend"), each_once(PRECISIONS, BACKENDS))
@pytest.mark.slow
def test_fresh_rows_are_standard_normal(backend, precision):
    m = 4_000_000
    row = fresh(backend, m=m, precision=precision)
    assert row.dtype == np.dtype(precision)
    assert np.isfinite(row).all()
    row = row.astype(np.float64)
    assert stats.kstest(row, "norm").pvalue > 1e-3
    # moments: mean, variance, skewness and kurtosis within 4 of their standard errors
    for moment, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(row**moment) - expected) < 4 * np.sqrt(variance / m)
    for level in (2.0, 3.0, 4.0):
        outside = stats.binom(m, 2 * stats.norm.sf(level))
        assert 1e-4 < outside.cdf((np.abs(row) > level).sum()) < 1 - 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_fresh_rows_of_different_steps_are_uncorrelated(backend):
    n, m = 40, 20_000
    rows = fresh_rows(make_stream(Identity(n), m, backend, precision="float32"))
    pairs = np.corrcoef(rows)[np.triu_indices(n, 1)] * np.sqrt(m)
    assert np.abs(pairs).max() < 4.8
    assert stats.kstest(pairs, "norm").pvalue > 1e-3
    for lag in (1, 2, 7, 8, 16):  # within a row
        lagged = (rows[:, lag:] * rows[:, :-lag]).mean() * np.sqrt(rows[:, lag:].size)
        assert abs(lagged) < 4.5
        squares = ((rows[:, lag:] ** 2 - 1) * (rows[:, :-lag] ** 2 - 1)).mean() / 2
        assert abs(squares) * np.sqrt(rows[:, lag:].size) < 4.5


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.slow
def test_the_tail_is_that_of_a_billion_draws(cipher):
    # beyond the widest rectangle all numbers come from the rest: 1.5 million of them stand for as many draws
    # as have so many in the rest, 1.02 billion
    found = FreshRow(KEY, 0, cipher).rest(np.arange(1_500_000))
    draws = len(found) * 2048 / 3
    for level in (4.25, 4.5, 5.0, 5.5, 5.75):
        expected = stats.poisson(2 * draws * stats.norm.sf(level))
        assert 1e-4 < expected.cdf((np.abs(found) > level).sum()) < 1 - 1e-4
        assert abs((found > level).sum() - (found < -level).sum()) < 4.5 * np.sqrt(expected.mean())
    assert 5.8 < np.abs(found).max() < LARGEST  # where a float32 generator of 24 random bits would have ended
    assert np.abs(found.astype(np.float32)).max() > 5.8


@pytest.mark.gpu
@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_rows_on_a_gpu_are_those_of_the_cpu(name, cipher):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for strategy in ("identity", "output", "banded-mixed", "blt-4", "normalised(restarted(blt-4))"):
        pair = []
        for device in ("cpu", "cuda"):
            options = {"precision": name, "device": device, "cipher": cipher}
            stream = make_stream(STRATEGIES[strategy], 1000, "torch", **options)
            state, rows = stream.init(), []
            for t in range(stream.n):
                row, state = stream.next(state)
                assert row.device.type == device
                rows.append(row.cpu().numpy())
                if t == 5:
                    state = stream.restore(state.state_dict())
            pair.append(np.array(rows))
        np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize(("start", "length"), [(0, 1), (5, 3), (4, 2)])
def test_rows_made_together_are_those_made_alone(start, length, monkeypatch):
    monkeypatch.setattr(gaussian, "_CHUNK", 64)
    found = gaussian.fresh_rows(KEY, range(7, 700), start, length)  # some of the rest of the curve among them
    expected = np.empty_like(found)
    for row, t in zip(expected, range(7, 700), strict=True):
        FreshRow(KEY, t).fill(row, start)
    assert np.array_equal(found, expected)
    assert gaussian.fresh_rows(KEY, range(3, 3), start, length).shape == (0, length)

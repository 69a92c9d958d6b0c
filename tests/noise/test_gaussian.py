"""Fresh rows: what they depend on, and that they are i.i.d. standard normal."""

import numpy as np
import pytest
from scipy import stats

from anechoic.noise import gaussian
from anechoic.noise.gaussian import available_threads, in_blocks
from anechoic.strategies import BandedToeplitz, Identity
from tests.noise.catalogue import BACKENDS, KEY, STRATEGIES, fresh_rows, make_stream

PRECISIONS = ("float32", "float64")


def fresh(backend, *, key=KEY, shard=0, step=0, m=64, precision="float32", n=2**40):
    stream = make_stream(Identity(n), m, backend, precision=precision, key=key, shard=shard)
    return np.asarray(stream.fresh(step))


# Addresses


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fresh_row_depends_on_key_step_and_shard_only(backend):
    address = {"key": KEY, "step": 5, "shard": 3}
    row = fresh(backend, **address)
    stream = make_stream(
        BandedToeplitz(9, [2.0, 1.0]), 64, backend, precision="float32", key=KEY, shard=3, std=7.0
    )
    state = stream.init()
    for _ in range(7):  # drawing rows, in whatever order, leaves no trace
        _, state = stream.next(state)
    np.testing.assert_array_equal(np.asarray(stream.fresh(5)), row)
    np.testing.assert_array_equal(fresh(backend, **address), row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_neither_global_generators_nor_modes_matter(backend):
    import torch

    row = fresh(backend, precision="float64")
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator is the point
    torch.randn(3)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        np.testing.assert_array_equal(fresh(backend, precision="float64"), row)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_addresses_give_other_rows(backend, precision):
    rows = [fresh(backend, step=step, precision=precision) for step in (0, 1, 2, 255, 256, 2**32, 2**39)]
    rows += [fresh(backend, shard=shard, precision=precision) for shard in (1, 2, 2**32)]
    for byte in range(32):
        for bit in (0, 7):
            key = bytearray(KEY)
            key[byte] ^= 1 << bit
            rows.append(fresh(backend, key=bytes(key), precision=precision))
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 0.6  # 74 rows of 64 entries; equal or shifted parts would give more
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert len({value for row in rows for value in row.tolist()}) > 0.99 * 64 * len(rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_share_64_or_128_bits_are_far_apart(backend):
    rows = [fresh(backend, key=bytes(16) + bytes([value]) + bytes(15), m=4096) for value in range(16)]
    rows += [fresh(backend, key=bytes([value]) + bytes(31), m=4096) for value in range(1, 16)]
    assert np.abs(np.corrcoef(rows) - np.eye(31)).max() < 5 / 64


@pytest.mark.parametrize("backend", BACKENDS)
def test_precisions_do_not_share_their_randomness(backend):
    pair = [fresh(backend, m=4096, precision=precision).astype(np.float64) for precision in PRECISIONS]
    assert abs(np.corrcoef(pair)[0, 1]) < 5 / 64
    seeds = [gaussian.seed_of(KEY, 0, 0, 0, bits=bits, size=32) for bits in (32, 64)]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("module", ["arrays", "torch_arrays"])
def test_every_byte_of_the_seed_reaches_the_generator(module, monkeypatch):
    backend = "numpy" if module == "arrays" else "torch"
    seen = []
    for byte in [None, *range(32), -1]:

        def seed(*_, size, byte=byte, **__):
            changed = bytearray(range(1, 201)) * (size // 200 + 1)
            del changed[size:]
            if byte is not None:
                changed[byte] ^= 0x80
            return bytes(changed)

        monkeypatch.setattr(f"anechoic.noise.{module}.seed_of", seed)
        # mt19937 has no use for the lower 31 bits of its first word, and brings in the last words late
        seen.append(fresh(backend, m=2000).tobytes())
    unused = 3 if backend == "torch" else 0
    repeated = 1 if backend == "numpy" else 0  # byte -1 of 32 is byte 31
    assert len(set(seen)) == len(seen) - unused - repeated


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_blocks_are_independent_and_threads_leave_no_trace(backend, precision, monkeypatch):
    import torch

    monkeypatch.setattr(gaussian, "BLOCK", 1024)
    m = 8 * 1024 + 5
    before = torch.get_num_threads()
    rows = []
    try:
        for threads in (1, 3):
            monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
            torch.set_num_threads(threads)
            rows.append(fresh(backend, m=m, precision=precision))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(rows[0], rows[1])
    blocks = rows[0][: 8 * 1024].reshape(8, 1024)
    assert np.abs(np.corrcoef(blocks) - np.eye(8)).max() < 5 / 32


def test_blocks_cover_a_row_once_and_errors_come_through(monkeypatch):
    monkeypatch.setattr(gaussian, "BLOCK", 10)
    for threads in (1, 4):
        seen = np.zeros(47, int)

        def visit(k, part, seen=seen):
            assert part.start == 10 * k
            seen[part] += 1

        in_blocks(visit, 47, threads)
        assert (seen == 1).all()

        def fail(k, part):
            raise MemoryError

        with pytest.raises(MemoryError):
            in_blocks(fail, 47, threads)


def test_threads_are_those_the_process_may_use(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads() == 3
    for unusable in ("", "0", "four"):
        monkeypatch.setenv("OMP_NUM_THREADS", unusable)
        assert available_threads() >= 1
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 5}, raising=False)
    assert available_threads() == 2
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert available_threads() == 1


# Distribution. Keys are fixed, so each test passes or fails for good; its level is that of the random key.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fresh_rows_are_standard_normal(backend, precision):
    m = 600_000  # three blocks
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
@pytest.mark.parametrize("m", [1, 3, 15, 16, 17, 23])
def test_short_rows_are_standard_normal_and_independent(backend, m):
    # torch draws rows of fewer than 16 entries by other code, which may keep a number for the next call
    rows = fresh_rows(make_stream(Identity(6000 // m + 50), m, backend, precision="float32"))
    assert stats.kstest(rows.reshape(-1), "norm").pvalue > 1e-3
    z = np.sqrt(rows.size)
    assert abs((rows[1:] * rows[:-1]).mean()) < 4.5 / z  # the same entry of the next row
    if m > 1:
        assert abs((rows[1:, 0] * rows[:-1, -1]).mean()) < 4.5 / np.sqrt(len(rows))  # last, then first
        assert abs((rows[:, 1:] * rows[:, :-1]).mean()) < 4.5 / z  # neighbours
    assert len(np.unique(rows)) > 0.99 * rows.size


@pytest.mark.parametrize("backend", BACKENDS)
def test_fresh_rows_of_different_steps_are_uncorrelated(backend):
    n, m = 40, 20_000
    rows = fresh_rows(make_stream(Identity(n), m, backend, precision="float32"))
    pairs = np.corrcoef(rows)[np.triu_indices(n, 1)] * np.sqrt(m)
    assert np.abs(pairs).max() < 4.8
    assert stats.kstest(pairs, "norm").pvalue > 1e-3
    for lag in (1, 2, 7, 8, 16):  # within a row; 8 is the distance of a Box-Muller pair in torch
        lagged = (rows[:, lag:] * rows[:, :-lag]).mean() * np.sqrt(rows[:, lag:].size)
        assert abs(lagged) < 4.5
        squares = ((rows[:, lag:] ** 2 - 1) * (rows[:, :-lag] ** 2 - 1)).mean() / 2
        assert abs(squares) * np.sqrt(rows[:, lag:].size) < 4.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_these_tests_see_a_generator_that_is_two_percent_off(backend):
    row = fresh(backend, m=600_000, precision="float64") * 1.02
    assert stats.kstest(row, "norm").pvalue < 1e-6
    assert abs(np.mean(row**2) - 1) > 4 * np.sqrt(2 / row.size)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_rows_on_a_gpu_are_those_of_the_cpu(name):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for strategy in ("identity", "output", "banded-4-signed", "blt-4", "normalised(restarted(blt-4))"):
        pair = []
        for device in ("cpu", "cuda"):
            stream = make_stream(STRATEGIES[strategy], 1000, "torch", precision=name, device=device)
            state, rows = stream.init(), []
            for t in range(stream.n):
                row, state = stream.next(state)
                assert row.device.type == device
                rows.append(row.cpu().numpy())
                if t == 5:
                    state = stream.restore(state.state_dict())
            pair.append(np.array(rows))
        np.testing.assert_allclose(*pair, atol=1e-4 if name == "float32" else 1e-12)

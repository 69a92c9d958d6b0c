"""Any slice of any row is that of the whole row, on any number of threads and processes, on both backends."""

import hashlib

import numpy as np
import pytest
import torch

from anechoic import strategies as s
from anechoic.noise import gaussian, numpy_arrays
from anechoic.noise.gaussian import AES, CHACHA, FreshRow
from anechoic.noise.numpy_arrays import einsum_is_plain
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.workloads import prefix_sum
from tests.marks import each_once
from tests.noise.streams import BACKENDS, KEY, emit, make_stream
from tests.zoo import STRATEGIES

KINDS = [
    "identity",
    "output",
    "banded-mixed",
    "dense",
    "inverse-mixed",
    "blt-4",
    "recurrent",
    "tree",
    "full-tree-cut-wide",
    "normalised(restarted(blt-4))",
    "restarted(normalised(banded-2))",
]
SLICES = [(0, 1), (0, 63), (1, 64), (7, 65), (63, 2), (100, 200), (255, 45), (299, 1)]


@pytest.fixture
def threads_of_torch():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "precision"), each_once(KINDS, ["float32", "float64"]))
@pytest.mark.few(8)
def test_nothing_but_addresses_decides_about_bits(name, precision, threads_of_torch, monkeypatch):
    """Slices, blocks and chunks, backends, threads, and sums by single operations leave no trace."""

    def rows(backend="numpy", **part):
        return emit(make_stream(STRATEGIES[name], 300, backend, precision=precision, std=0.7, **part))

    whole = rows()[0].tobytes()
    with monkeypatch.context() as patched:
        patched.setattr(gaussian, "_CHUNK", 50)
        assert rows()[0].tobytes() == whole
        patched.setattr(numpy_arrays, "einsum_is_plain", lambda _: False)
        assert rows()[0].tobytes() == whole
    monkeypatch.setattr(gaussian, "BLOCK", 96)
    monkeypatch.setattr(numpy_arrays, "_CHUNK", 80)
    monkeypatch.setattr(numpy_arrays, "_TILE", 70)
    for threads in (1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        torch.set_num_threads(threads)
        for backend in BACKENDS:
            assert rows(backend)[0].tobytes() == whole, (threads, backend)
    expected = rows()[0]
    for offset, length in SLICES:
        found, state = rows(offset=offset, length=length)
        assert found.tobytes() == expected[:, offset : offset + length].tobytes()
        assert state.state_dict()["rows"].shape[1:] == (length,)


def test_fresh_slices_are_those_of_the_row():
    row, whole = FreshRow(KEY, 2), np.empty(140_000, np.float32)
    row.fill(whole, 0)
    for start, count in [(0, 1), (1, 2), (32767, 3), (32768, 70000), (65535, 1), (99999, 40001)]:
        part = np.empty(count, np.float32)
        row.fill(part, start)
        assert part.tobytes() == whole[start : start + count].tobytes()


# The arithmetic


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_einsum_that_fuses_is_noticed(precision, monkeypatch):
    einsum = np.einsum

    def fused(subscripts, factors, rows, out):  # more digits in between, as with fused operations
        out[...] = einsum(subscripts, factors.astype(np.longdouble), rows.astype(np.longdouble))

    einsum_is_plain.cache_clear()
    try:
        monkeypatch.setattr(np, "einsum", fused)
        assert not einsum_is_plain(precision)
    finally:
        einsum_is_plain.cache_clear()


# The format: another value is another stream, and needs another number


@pytest.mark.parametrize("cipher", [AES, CHACHA])
def test_the_bits_of_a_fresh_row(cipher):
    row = np.empty(200_000)
    FreshRow(KEY, 5, cipher).fill(row, 1)
    numbers, digest = GOLDEN_ROWS[cipher]
    assert row[:4].tolist() == numbers
    assert hashlib.sha256(row.astype("<f8").tobytes()).hexdigest() == digest


def test_the_bits_of_streams():
    found = hashlib.sha256()
    for strategy in formatted():
        for precision in ("float32", "float64"):
            rows, _ = emit(make_stream(strategy, 1000, "numpy", precision=precision, std=1.7))
            found.update(rows.astype("<f8").tobytes())
    assert found.hexdigest() == GOLDEN_STREAMS


def formatted():
    """The strategies of the number below, which are what they are for ever."""
    rng = np.random.default_rng(0)
    lower = np.tril(0.3 * rng.standard_normal((11, 11)), -1)
    diagonal = np.diag(rng.uniform(0.5, 2.0, 11))
    blt = s.BLT(11, [0.2, 0.15, 0.1, -0.05], [0.99, 0.7, 0.3, 0.0])
    return [
        s.Identity(11),
        s.Output(prefix_sum(11)),
        s.BandedToeplitz(11, [1.0, -0.6, 0.3, 0.2]),
        s.Dense(lower + diagonal),
        s.BandedInverse(11, [1.3, -0.6, 0.2, -0.1]),
        blt,
        ConstantRecurrent(11, [0.5, 0.1], [[0.24, -0.87], [0.87, 0.24]], [1.0, 0.3], 1.4),
        s.Tree(11),
        s.FullTree(11, 3, 27),
        s.ColumnNormalized(s.Restarted(blt, 2, 15)),
        s.Restarted(s.ColumnNormalized(s.BandedToeplitz(11, [0.8, 0.3])), 2, 17),
    ]


GOLDEN_ROWS = {
    AES: (
        [0.3058037933807749, 0.3204896470969109, 2.1625106032017207, 0.05961904459200419],
        "84a61bd59bad6efb5e6d75b59865a55d1c349e9a2c06da96733376714e351a60",
    ),
    CHACHA: (
        [1.0728331005950895, -1.3400738990330003, 0.13806867460563102, -1.580264421877837],
        "fa5dc0e968e9c5928b9711054348a4e71183e91d0393983a179a8c8033a06fc9",
    ),
}
GOLDEN_STREAMS = "9e20402b86d927d7068a9ecfa30eff1518101ddcd1b8fc1c84ae33ffcb8ecd71"

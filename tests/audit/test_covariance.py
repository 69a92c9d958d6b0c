"""The covariance test: p-values that are exact, and noise that is not what it should be."""

import numpy as np
import pytest

from anechoic.audit.covariance import covariance_test
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Identity, Toeplitz
from anechoic.workloads import prefix_sum
from tests.marks import slow

STRATEGIES = {
    "identity": Identity(20),
    "banded": BandedToeplitz(20, [1.0, 0.5, 0.25]),
    "normalised": ColumnNormalized(BandedToeplitz(20, [1.0, 0.5, 0.25])),
    "root": Toeplitz.square_root(prefix_sum(20)),
    "blt": BLT(20, [0.3, 0.2], [0.9, 0.5]),
}


def emitted(strategy, m, *, std=0.7, seed=0, dtype=np.float32):
    stream = strategy.stream(m, std=std, key=bytes([seed]) * 32, dtype=dtype)
    state, rows = stream.init(), []
    for _ in range(strategy.n):
        row, state = stream.next(state)
        rows.append(row)
    return np.array(rows, dtype=np.float64)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_streams_emit_passes(name):
    found = covariance_test(STRATEGIES[name], emitted(STRATEGIES[name], 300), 0.7)
    assert found.p_value > 0.01, found
    assert found.std_ratio == pytest.approx(1.0, abs=0.04)
    assert found.entries == 6000


@pytest.mark.parametrize("shape", [(6, 12), *slow(((12, 6),), ((9, 1),)), (1, 9)])
@pytest.mark.slow
def test_p_values_are_uniform_under_the_claim(shape):
    """Also in very small samples, where approximations would not be."""
    rng, found = np.random.default_rng(7), {}
    for _ in range(500):
        test = covariance_test(Identity(shape[0]), rng.standard_normal(shape), 1.0)
        for name, p in test.p_values.items():
            found.setdefault(name, []).append(p)
    for name, p in found.items():
        share = (np.array(p) < 0.1).mean()
        assert share < 0.1 + 4 * np.sqrt(0.09 / 500), (name, share)
        if name in ("scale", "mean", "shape", "portmanteau"):
            assert share > 0.1 - 4 * np.sqrt(0.09 / 500), (name, share)


def _faults():
    rng = np.random.default_rng(1)
    z = rng.standard_normal((20, 300))
    yield "scale", 0.95 * z, "scale"
    yield "one quiet step", np.where(np.arange(20)[:, None] == 7, 0.6, 1.0) * z, "row scale"
    yield "row used again", np.where(np.arange(20)[:, None] == 11, z[4], z), "row pair"
    yield "coordinates repeat", np.tile(z[:, :150], 2), "coordinate lag"
    yield "moving average", (z + 0.3 * np.roll(z, 1, axis=0)) / np.sqrt(1.09), "row lag"
    yield "offset", z + 0.1, "mean"
    yield "uniform", rng.uniform(-np.sqrt(3), np.sqrt(3), z.shape), "shape"
    basis = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    mix = basis @ np.diag(np.linspace(0.5, 1.4, 20)) @ basis.T
    yield "any covariance", mix @ z, "portmanteau"


@pytest.mark.parametrize(
    ("name", "white", "seen_by"), list(_faults()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_each_test_sees_its_fault(name, white, seen_by):
    strategy = STRATEGIES["root"]
    found = covariance_test(strategy, 0.7 * strategy.solve(white), 0.7)
    assert found.p_value < 1e-3
    assert found.p_values[seen_by] < 1e-3


@pytest.mark.parametrize(
    ("noise", "std", "message"),
    [
        (np.ones(3), 1.0, "steps, coordinates"),
        (np.ones((3, 2)), 0.0, "noise_std"),
        (np.ones((4, 2)), 1.0, "n=3"),
    ],
)
def test_what_is_refused(noise, std, message):
    with pytest.raises(ValueError, match=message):
        covariance_test(Identity(3), noise, std)

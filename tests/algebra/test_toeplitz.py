"""Power-series algebra: the FFT against recursions, both against dense matrices."""

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.algebra import toeplitz
from tests.marks import in_turn

SIZES = [1, 2, 3, 7, 64, 65, 255, 256, 257, 600]  # around the switches to the FFT


def series(seed, count, *, decay=0.97):
    """A random series whose inverse stays bounded."""
    rng = np.random.default_rng([seed, count])
    c = 0.3 * rng.standard_normal(count) * decay ** np.arange(count) / np.sqrt(1.0 + np.arange(count))
    c[0] = 1.0 + rng.random()
    return c


def padded(c, n):
    return np.pad(c[:n], (0, max(0, n - len(c))))


class TestAgainstDense:
    @in_turn("n", SIZES)
    @in_turn("shorter", [1, 5, 100, 1000])
    def test_multiply(self, n, shorter):
        c = series(0, min(n, shorter))
        x = np.random.default_rng(n).standard_normal((n, 2, 3))
        expected = np.tensordot(toeplitz.dense(c, n), x, axes=1)
        assert np.allclose(toeplitz.multiply(c, x), expected, rtol=0, atol=1e-12)
        assert np.allclose(toeplitz.multiply(c, x[:, 0, 0]), expected[:, 0, 0], rtol=0, atol=1e-12)

    @in_turn("n", SIZES)
    @in_turn("shorter", [1, 5, 100, 1000])
    def test_solve(self, n, shorter):
        c = series(1, min(n, shorter))
        x = np.random.default_rng(n).standard_normal((n, 3))
        solved = toeplitz.solve(c, x)
        assert solved.shape == x.shape
        assert np.allclose(toeplitz.dense(c, n) @ solved, x, rtol=0, atol=1e-10)

    @in_turn("n", SIZES)
    @in_turn("shorter", [1, 5, 100, 1000])
    def test_inverse(self, n, shorter):
        c = series(2, min(n, shorter))
        product = np.convolve(padded(c, n), toeplitz.inverse(c, n))[:n]
        assert np.allclose(product, np.eye(1, n)[0], rtol=0, atol=1e-12)

    @in_turn("n", SIZES)
    @in_turn("shorter", [1, 5, 100, 1000])
    def test_product(self, n, shorter):
        a, b = series(3, n), series(4, min(n, shorter))
        expected = padded(np.convolve(a, b), n)
        assert np.allclose(toeplitz.product(a, b, n), expected, rtol=0, atol=1e-12)
        assert np.allclose(toeplitz.product(b, a, n), expected, rtol=0, atol=1e-12)

    @in_turn("n", SIZES)
    @in_turn("shorter", [1, 5, 100, 1000])
    def test_sqrt(self, n, shorter):
        a = series(5, min(n, shorter), decay=0.9)
        root = toeplitz.sqrt(a, n)
        assert len(root) == n
        assert root[0] > 0
        assert np.allclose(np.convolve(root, root)[:n], padded(a, n), rtol=0, atol=1e-12)


@in_turn("exponent", [0.5, -0.5, 1 / 3, 1.0, -1.0, 2.0, 0.0])
@in_turn("n", [1, 2, 3, 17, 256, 600])
@pytest.mark.slow
def test_powers(n, exponent):
    t = np.arange(n)
    for count in (1, 2, 3, 16, 17, 1000):  # around the switch from the recursion
        a = series(8, min(n, count), decay=0.7)
        found = toeplitz.power(a, exponent, n)
        assert found.shape == (n,) and found[0] == pytest.approx(a[0] ** exponent), count
        # y = a^p solves a y' = p a' y
        slopes = toeplitz.product(padded(a, n), found * t, n), toeplitz.product(padded(a, n) * t, found, n)
        assert np.allclose(slopes[0], exponent * slopes[1], rtol=0, atol=1e-11), count
        if exponent in (0.5, -1.0):
            other = toeplitz.sqrt(a, n) if exponent == 0.5 else toeplitz.inverse(a, n)
            assert np.allclose(found, other, rtol=0, atol=1e-12), count


def test_powers_by_both_ways(monkeypatch):
    a = series(9, 12, decay=0.8)
    recursion = toeplitz.power(a, 0.3, 3000)
    monkeypatch.setattr(toeplitz, "MILLER", 3)
    assert np.allclose(toeplitz.power(a, 0.3, 3000), recursion, rtol=0, atol=1e-13)
    # trailing zeros do not count, and a geometric series is a power of two terms
    assert np.allclose(toeplitz.power(padded(a[:2], 500), -1.0, 700), toeplitz.power(a[:2], -1.0, 700))
    two = np.array([1.0, -1.0])
    assert np.allclose(toeplitz.power(np.ones(5000), 0.5, 5000), toeplitz.power(two, -0.5, 5000))


def test_the_fft_is_used_and_agrees(monkeypatch):
    n = 700
    c, x = series(7, n), np.random.default_rng(7).standard_normal((n, 2))
    by_fft = toeplitz.multiply(c, x), toeplitz.solve(c, x), toeplitz.inverse(c, n), toeplitz.product(c, c, n)
    monkeypatch.setattr(toeplitz, "FFT_FROM", 10**6)
    monkeypatch.setattr(scipy.fft, "rfft", None)  # an FFT now would fail
    direct = toeplitz.multiply(c, x), toeplitz.solve(c, x), toeplitz.inverse(c, n), toeplitz.product(c, c, n)
    for a, b in zip(by_fft, direct, strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-11)


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 100))
def test_the_dense_matrix_is_what_is_meant(count, n, seed):
    c = series(seed, count)
    dense = toeplitz.dense(c, n)
    for i in range(n):
        for j in range(n):
            expected = c[i - j] if 0 <= i - j < count else 0.0
            assert dense[i, j] == expected


@pytest.mark.parametrize("n", [0, 1, 5, 300, toeplitz.DIVIDED // 2])
@pytest.mark.parametrize("factor", [1.0, 1.0 + 2.0j])
def test_short_and_long_division_are_one_recursion(n, factor):
    """Either side of the size up to which LAPACK divides; the product gives back what was divided."""
    c, z = factor * series(1, 3), np.random.default_rng(n).standard_normal((n, 2))
    found = toeplitz.divided(z, c)
    back = c[0] * found
    for lag in range(1, min(n, 3)):
        back[lag:] += c[lag] * found[:-lag]
    np.testing.assert_allclose(back, z, atol=1e-12)

"""Lemmas of paper 000, Appendix F, that its proofs rest on and no function of ours needs: by quadrature."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ellipk, elliprf, elliprj


def first(k):
    """The complete elliptic integral K(k)."""
    return ellipk(k**2)


def third(square, k):
    """The complete elliptic integral Pi(alpha^2, k)."""
    return elliprf(0, 1 - k**2, 1) + square / 3 * elliprj(0, 1 - k**2, 1, 1 - square)


def around(f):
    return quad(f, -math.pi, math.pi, points=[0.0], limit=200)[0]


@pytest.mark.parametrize("m", [0.1, 0.5, 0.9])
def test_properties_f8_and_f9(m):
    k = math.sqrt(m / (1 + m))
    found = quad(lambda w: 1 / math.sqrt(1 + m * math.sin(w) ** 2), 0, math.pi / 2)[0]
    assert found == pytest.approx(first(k) / math.sqrt(1 + m))
    for a in (-3.0, 0.4):  # alpha^2
        found = quad(
            lambda w, a=a: 1 / ((1 - a * math.sin(w) ** 2) * math.sqrt(1 + m * math.sin(w) ** 2)),
            *(0, math.pi / 2),
        )[0]
        right = (m * first(k) + a * third((m + a) / (1 + m), k)) / ((m + a) * math.sqrt(1 + m))
        assert found == pytest.approx(right)


def test_properties_f10_and_f11():
    for k in np.linspace(0.01, 0.9999, 40):
        log = math.log(4 / math.sqrt(1 - k**2))
        assert log <= first(k) <= (1 + (1 - k**2) / 4) * log <= 1.25 * log
        for square in (0.01, 0.5, 0.9, 0.999):
            most = log / (1 - square) * (1 + 2 * math.sqrt(1 - k**2))  # O() with the constant 2
            assert third(square, k) <= most


@pytest.mark.parametrize(("a", "b", "lag"), [(1.0, 0.5, 3), (2.0, -1.5, -2), (0.3, 0.1, 0)])
def test_lemma_f12(a, b, lag):
    found = around(lambda w: math.cos(lag * w) / (a**2 + b**2 - 2 * a * b * math.cos(w)))
    assert found == pytest.approx(2 * math.pi / (a**2 - b**2) * (b / a) ** abs(lag))


def test_lemmas_f13_and_f14_diverge():
    """F.13 at |a| = 1, and F.14: what is left beyond a distance h of the pole grows without end."""
    for f, growth in (
        (lambda w: 1 / (1 - math.cos(w)), 4 / 1e-4),
        (lambda w: 1 / math.sqrt(1 - math.cos(w)), 2 * math.sqrt(2) * math.log(10)),
    ):
        near, far = (2 * quad(f, h, math.pi, limit=500)[0] for h in (1e-4, 1e-3))
        assert near - far == pytest.approx(growth, rel=0.11)


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.3), (0.3, 0.1), (0.5, 0.5), (0.05, 0.6)])
def test_lemmas_f15_and_f16(a, b):
    k = math.sqrt(1 - a) / (1 - a / 2)
    assert around(lambda w: 1 / abs(1 - a - np.exp(1j * w))) == pytest.approx(4 / (2 - a) * first(k))
    square = (b**2 * (1 - a) - a**2 * (1 - b)) / (b**2 * (1 - a / 2) ** 2)
    found = around(lambda w: abs(1 - a - np.exp(1j * w)) / abs(1 - b - np.exp(1j * w)) ** 2)
    assert found == pytest.approx(2 * a**2 / (b**2 * (1 - a / 2)) * third(square, k))


@pytest.mark.parametrize("c", [0.0, 0.3, 0.9])
def test_lemma_f17(c):
    kernel = c ** np.abs(np.subtract.outer(np.arange(300), np.arange(300)))
    assert np.linalg.eigvalsh(kernel).max() <= (1 + c) / (1 - c)  # for every beta of 300 entries
    ones = np.ones(300)
    assert ones @ kernel @ ones > (0.9 if c else 1.0 - 1e-9) * (1 + c) / (1 - c) * 300  # and it is tight


def test_lemma_f19():
    rng = np.random.default_rng(0)
    for d in (1, 2, 5):
        product = np.eye(d)
        for _ in range(4):
            basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
            product = product @ (basis * rng.uniform(0, 1, d)) @ basis.T
            assert abs(np.trace(product)) <= d
    assert np.trace(np.eye(5)) == 5  # which is reached


def f20(tau, t, a, rho):
    return tau + (math.exp(-a * tau) / (rho * a) if tau < t - 1 else 0.0)


@pytest.mark.parametrize("a", [0.1, 2.0])
@pytest.mark.parametrize("rho", [0.01, 0.9])
def test_lemma_f20(a, rho):
    most = (1 + math.log(1 / rho)) / a
    for t in range(1, 80):
        found = f20(min(t - 1, math.log(1 / rho) / a), t, a, rho)
        assert found <= most * (1 + 1e-12)
        if t - 1 > most:
            assert found == pytest.approx(most)


def test_lemma_f21():
    """Some eta has phi(eta) at most the right side: sought on a grid, for random constants."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        scale_a, scale_b, scale_c, mu, largest = 10.0 ** rng.uniform(-3, 3, 5)
        steps = 10.0 ** rng.uniform(0.5, 4) / (mu * largest)
        if steps < 2:  # log^2(T) would be next to nothing
            continue
        eta = largest * np.geomspace(1e-9, 1, 4000)
        phi = (
            scale_a * np.exp(-mu * eta * steps)
            + scale_b * eta
            + scale_c * eta**2 * np.log(1 / (eta * mu)) ** 2
        )
        right = (
            scale_a * math.exp(-mu * largest * steps)
            + 3 * scale_b / (mu * steps) * max(1, math.log(scale_a * mu * steps / scale_b))
            + 3
            * scale_c
            / (mu * steps) ** 2
            * max(1, math.log(scale_a * (mu * steps) ** 2 / scale_c)) ** 2
            * math.log(steps) ** 2
        )
        assert phi.min() <= right, (scale_a, scale_b, scale_c, mu, largest, steps)


def test_lemma_f22():
    for c in np.geomspace(1e-6, 0.2499, 60):
        largest = c / (9 * math.log(9 / c) ** 2)
        x = largest * np.geomspace(1e-9, 1, 200)
        assert (x * np.log(1 / x) ** 2).max() <= c

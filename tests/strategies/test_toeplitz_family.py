"""Toeplitz strategies from powers, damping and generating functions, and the explicit rational BLT."""

import math

import mpmath
import numpy as np
import pytest

from anechoic import workloads
from anechoic.algebra import generating, toeplitz
from anechoic.losses.dispatch import error
from anechoic.strategies import Toeplitz
from anechoic.strategies.blt_rational import rational_blt
from tests.marks import in_turn

WORKLOADS = {
    "prefix": workloads.prefix_sum(37),
    "momentum": workloads.momentum(37, 0.9, weight_decay=0.01),
    "nesterov": workloads.nesterov(37, 0.8),
    "decay": workloads.exponential_decay(37, 0.7),
    "window": workloads.sliding_window(37, 9),
    "window-2": workloads.sliding_window(37, 2),
    "coefficients": workloads.from_coefficients(1.0 / np.arange(1, 31), 37),
    "one": workloads.prefix_sum(1),
}


@pytest.mark.parametrize("name", WORKLOADS)
class TestPowers:
    @in_turn("exponent", [0.0, 0.25, 1 / 3, 1.0, -0.4, 1.5])
    def test_powers_multiply(self, name, exponent):
        workload = WORKLOADS[name]
        c = Toeplitz.power(workload, exponent).to_dense()
        rest = Toeplitz.power(workload, 1 - exponent).to_dense()
        assert np.allclose(c @ rest, workload.to_dense(), rtol=0, atol=1e-11)


class TestDamped:
    def test_eq_3_27(self):
        nu, t = 0.1, np.arange(50)
        binomials = [math.comb(2 * k, k) / 4**k for k in range(50)]
        strategy = Toeplitz.damped(50, nu)
        assert np.allclose(strategy.coefficients, binomials * (1 - nu) ** t, rtol=1e-13)
        # paper 000, Eq. (7): C^-1 has the coefficients (-1)^t C(1/2, t) (1 - nu)^t
        inverse = [float((-1) ** int(k) * mpmath.binomial(mpmath.mpf("0.5"), int(k))) for k in t]
        assert np.allclose(strategy.solve(np.eye(1, 50)[0]), inverse * (1 - nu) ** t, atol=1e-14)


class TestGeneratingFunctions:
    def test_entire_and_rational_functions(self):
        r = generating.series(np.exp, 20)
        assert np.allclose(r, [1 / math.factorial(k) for k in range(20)], atol=1e-14)
        r = generating.series(lambda x: (1 - 0.5 * x) / (1 - 0.9 * x + 0.5 * x**2), 40)
        expected = toeplitz.product([1, -0.5], toeplitz.inverse(np.array([1, -0.9, 0.5]), 40), 40)
        assert np.allclose(r, expected, atol=1e-13)
        # a pole on the unit circle is allowed: output perturbation's inverse
        assert np.allclose(generating.series(lambda x: 1 / (1 - x), 30), 1.0, atol=1e-12)

    def test_given_coefficients(self):
        strategy = Toeplitz.from_generating_function([1.0, -0.5, 0.2], 6)
        inverse = np.linalg.inv(strategy.to_dense())[:, 0]
        assert np.allclose(inverse, [1.0, -0.5, 0.2, 0.0, 0.0, 0.0], atol=1e-14)
        assert Toeplitz.from_generating_function([2.0, -0.5, 0.2], 1).coefficients.tolist() == [0.5]


class TestRationalBLT:
    # measured when it was written, with a margin of 10 %
    @in_turn(
        ("n", "buffers", "excess"),
        [(100, 4, 2e-4), (1000, 4, 3.2e-3), (10**4, 4, 0.021), (10**4, 8, 2.6e-5), (10**6, 12, 1.4e-5)],
    )
    def test_max_loss_is_near_the_optimum(self, n, buffers, excess):
        strategy = rational_blt(n, buffers)
        t = np.arange(1, n)
        best = 1 + np.square(np.cumprod((2 * t - 1) / (2 * t))).sum()
        reached = error(workloads.prefix_sum(n), strategy).max * strategy.largest_column_norm()
        assert best * (1 - 1e-12) <= reached <= best + excess

    @pytest.mark.parametrize("n", [10, 1000, 10**5])
    def test_theorem_2_18(self, n):
        """As many buffers as log(n) log(n / delta) / 6, rounded up, leave less than delta."""
        t = np.arange(1, n)
        best = 1 + np.square(np.cumprod((2 * t - 1) / (2 * t))).sum()
        for delta in (0.1, 1e-2, 1e-4, 1e-6):
            buffers = math.ceil(math.log(n) * math.log(n / delta) / 6)
            strategy = rational_blt(n, buffers)
            reached = error(workloads.prefix_sum(n), strategy).max * strategy.largest_column_norm()
            assert reached - best < delta

"""Workloads against the updates of the optimisers they stand for."""

import json

import numpy as np
import pytest

from anechoic import _serialize, workloads
from anechoic.workloads import Momentum, PrefixSum, Workload

RATES = np.linspace(1.0, 0.1, 9)

ALL = {
    "prefix": workloads.prefix_sum(9),
    "prefix-1": workloads.prefix_sum(1),
    "plain": workloads.momentum(9, 0.0),
    "momentum": workloads.momentum(9, 0.9),
    "decay": workloads.momentum(9, 0.0, weight_decay=0.1),
    "both": workloads.momentum(9, 0.8, weight_decay=0.05),
    "equal": workloads.momentum(9, 0.8, weight_decay=0.2),  # a double root
    "rates": workloads.momentum(9, 0.8, weight_decay=0.05, learning_rates=RATES),
    "one": workloads.momentum(1, 0.8, weight_decay=0.05, learning_rates=[0.3]),
    "two": workloads.momentum(2, 0.8, weight_decay=0.05),
    "long": workloads.momentum(700, 0.95, weight_decay=0.001),
}


@pytest.mark.parametrize("name", ALL)
class TestEveryWorkload:
    def test_dense(self, name):
        a = ALL[name]
        dense = a.to_dense()
        column, rates = a.coefficients, np.ones(a.n) if a.rates is None else a.rates
        i, j = np.indices((a.n, a.n))
        assert np.allclose(dense, np.where(i >= j, column[np.maximum(i - j, 0)], 0.0) * rates, rtol=1e-14)
        assert (dense >= 0).all()

    def test_multiply_and_solve(self, name):
        a = ALL[name]
        for shape in ((a.n,), (a.n, 2), (a.n, 2, 2)):
            x = np.random.default_rng(1).standard_normal(shape)
            y = a.multiply(x)
            assert np.allclose(y, np.tensordot(a.to_dense(), x, axes=1), rtol=0, atol=1e-10)
            assert np.allclose(a.solve(y), x, rtol=0, atol=1e-9)

    def test_inverse_coefficients(self, name):
        a = ALL[name]
        inverse = a.inverse_coefficients
        assert 1 <= len(inverse) <= a.n
        assert np.allclose(np.convolve(inverse, a.coefficients)[: a.n], np.eye(1, a.n)[0], atol=1e-10)

    def test_truncate(self, name):
        a = ALL[name]
        for steps in {1, max(1, a.n // 2), a.n}:
            block = a.truncate(steps)
            assert block.n == steps
            assert np.allclose(block.to_dense(), a.to_dense()[:steps, :steps], rtol=1e-14)
        for steps in (0, a.n + 1):
            with pytest.raises(ValueError, match=f"steps={steps} must lie between 1 and n={a.n}"):
                a.truncate(steps)

    def test_flags(self, name):
        a = ALL[name]
        dense = a.to_dense()
        constant = all(np.ptp(dense.diagonal(-lag)) <= 1e-15 for lag in range(a.n))
        assert a.is_toeplitz == (a.rates is None)
        assert constant or not a.is_toeplitz
        assert a.is_prefix_sum == bool((dense == np.tril(np.ones((a.n, a.n)))).all()) or a.n == 1

    def test_json(self, name):
        a = ALL[name]
        again = _serialize.decode(json.loads(json.dumps(_serialize.encode(a))))
        assert type(again) is type(a)
        assert (again.to_dense() == a.to_dense()).all()

    def test_wrong_length(self, name):
        a = ALL[name]
        for call in (a.multiply, a.solve):
            with pytest.raises(ValueError, match=f"axis 0 must have n={a.n} steps"):
                call(np.zeros((a.n + 1, 2)))
            with pytest.raises(ValueError, match="axis 0"):
                call(1.0)


def test_momentum_is_what_the_optimiser_does():
    """v <- beta v + eta_t g_t; theta <- (1 - lambda) theta - v, from theta = v = 0."""
    a = workloads.momentum(9, 0.8, weight_decay=0.05, learning_rates=RATES)
    gradients = np.random.default_rng(2).standard_normal((9, 3))
    theta, velocity, path = np.zeros(3), np.zeros(3), []
    for rate, gradient in zip(RATES, gradients, strict=True):
        velocity = 0.8 * velocity + rate * gradient
        theta = (1 - 0.05) * theta - velocity
        path.append(theta)
    assert np.allclose(-a.multiply(gradients), path, rtol=0, atol=1e-13)


def test_momentum_without_anything_is_the_prefix_sum():
    plain = workloads.momentum(6, 0.0)
    assert plain.is_prefix_sum
    assert (plain.to_dense() == workloads.prefix_sum(6).to_dense()).all()


def test_a_long_prefix_sum_costs_nothing():
    assert workloads.prefix_sum(10**9).n == 10**9
    assert workloads.prefix_sum(10**9).truncate(10**8).n == 10**8


def test_what_is_handed_out_cannot_change_the_workload():
    a = workloads.momentum(9, 0.9, learning_rates=RATES)
    for array in (a.coefficients, a.rates):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2.0
    own = np.array(RATES)
    b = Momentum(9, learning_rates=own)
    own[0] = 7.0
    assert b.rates[0] == 1.0


def test_third_parties_can_add_a_workload():
    class Window(Workload):
        """Sums of the last two gradients; gives only its first column."""

        @property
        def coefficients(self):
            return np.r_[1.0, 1.0, np.zeros(self.n - 2)]

    a = Window(5)
    assert a.is_toeplitz
    assert not a.is_prefix_sum
    assert np.allclose(a.solve(a.multiply(np.arange(5.0))), np.arange(5.0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrefixSum(0), "n=0 must be at least 1. n counts the steps."),
        (lambda: PrefixSum(-3), "n=-3 must be at least 1"),
        (lambda: PrefixSum(2.0), "n=2.0 must be an integer"),
        (lambda: PrefixSum(True), "n=True must be an integer"),
        (lambda: workloads.prefix_sum("9"), "n='9' must be an integer"),
        (lambda: Momentum(0), "n=0 must be at least 1"),
        (lambda: Momentum(3, 1.0), r"momentum=1.0 must lie in \[0, 1\)"),
        (lambda: Momentum(3, -0.1), r"momentum=-0.1 must lie in \[0, 1\)"),
        (lambda: Momentum(3, float("nan")), r"momentum=nan must lie in \[0, 1\)"),
        (lambda: Momentum(3, "0.5"), "momentum='0.5' must be a real number"),
        (lambda: Momentum(3, 0.5, 1.0), r"weight_decay=1.0 must lie in \[0, 1\)"),
        (lambda: Momentum(3, learning_rates=[1.0, 2.0]), "learning_rates has 2 entries; 3 are needed"),
        (
            lambda: Momentum(2, learning_rates=[1.0, 0.0]),
            r"learning_rates\[1\]=0.0 must be > 0: drop the steps",
        ),
        (lambda: Momentum(2, learning_rates=[1.0, np.nan]), r"learning_rates\[1\]=nan is not finite"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()

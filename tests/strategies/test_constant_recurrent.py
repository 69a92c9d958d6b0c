"""Constant-recurrent strategies: Theorem 2.28, Lemmas 2.16, 4.13 and 4.14, and sums by doubling."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import workloads
from anechoic.algebra import toeplitz
from anechoic.algebra.systems import power_sums
from anechoic.losses.dispatch import error
from anechoic.participation import MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BLT
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from tests.contracts import check_strategy
from tests.zoo import turning


def random_system(seed, order, radius=0.9):
    rng = np.random.default_rng([seed, order])
    transition = rng.standard_normal((order, order))
    transition *= radius / np.abs(np.linalg.eigvals(transition)).max()
    return rng.standard_normal(order), transition, rng.standard_normal(order)


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [([1.0], [1.0]), ([2.0, 1.0, 0.5], [1.0]), ([1.0, -0.5], [2.0, -1.8]), ([3.0], [1.0, 0.2, 0.3, -0.4])],
)
def test_rational_generating_functions(numerator, denominator):
    n = 12
    p, q = np.array(numerator), np.array(denominator)
    expected = toeplitz.product(p, toeplitz.inverse(q, n), n)
    found = ConstantRecurrent.from_rational(n, numerator, denominator)
    np.testing.assert_allclose(found.coefficients, expected, atol=1e-14)
    check_strategy(found)


@pytest.mark.parametrize("strategy", [turning(20), replace(turning(20), first=2.5), turning(1)])
def test_lemma_2_16_without_diagonalising(strategy):
    inverse = strategy.inverse()
    product = strategy.to_dense() @ inverse.to_dense()
    np.testing.assert_allclose(product, np.eye(strategy.n), atol=1e-13)
    np.testing.assert_allclose(inverse.inverse().coefficients, strategy.coefficients, atol=1e-13)


INVERTIBLE = [
    ([0.3, 0.2], [0.9, 0.5]),
    ([0.4], [0.5]),
    ([0.2, 0.0, 0.3], [0.9, 0.7, 0.5]),
    ([0.1, 0.2, 0.1, 0.05], [1 - 1e-3, 1 - 1e-6, 0.3, 0.2]),
    ([0.1, -0.02], [0.9, 0.5]),  # a negative scale whose inverse still has real decays
]


@pytest.mark.parametrize(("scale", "decay"), INVERTIBLE)
def test_lemma_2_16_of_a_blt(scale, decay):
    strategy = BLT(40, scale, decay)
    inverse = strategy.inverse()
    np.testing.assert_allclose(
        toeplitz.product(strategy.coefficients, inverse.coefficients, 40), np.eye(40)[0], atol=1e-14
    )
    if min(scale) >= 0:  # elementwise negative scales, and interlacing decays (Lemma 4.14)
        assert (inverse.scale <= 0).all()
        kept = np.array(scale) > 0
        both = np.empty(2 * kept.sum())
        both[0::2], both[1::2] = np.sort(np.array(decay)[kept])[::-1], inverse.decay
        assert (np.diff(both) < 0).all()
    general = ConstantRecurrent.from_blt(strategy).inverse()
    np.testing.assert_allclose(general.coefficients, inverse.coefficients, atol=1e-14)


@pytest.mark.parametrize(("scale", "decay"), INVERTIBLE)
def test_both_parametrisations_are_the_same(scale, decay):
    kept = np.array(scale) != 0
    strategy = BLT(40, np.array(scale)[kept], np.array(decay)[kept])
    again = BLT.from_poles(40, strategy.decay, strategy.inverse_decay)
    np.testing.assert_allclose(again.scale, strategy.scale, rtol=1e-8)
    np.testing.assert_array_equal(again.decay, strategy.decay)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    st.lists(st.floats(0.002, 0.998), min_size=2, max_size=10, unique=True).filter(lambda x: len(x) % 2 == 0)
)
@pytest.mark.slow
def test_interlacing_decays_give_positive_scales(points):
    points = np.sort(points)[::-1]
    if np.diff(-points).min() < 1e-6:
        return
    strategy = BLT.from_poles(30, points[0::2], points[1::2])
    assert (strategy.scale > 0).all() and (strategy.scale / strategy.decay).sum() < 1  # Lemma 4.14 (a)
    np.testing.assert_allclose(strategy.inverse_decay, points[1::2], atol=1e-9)
    inverse = toeplitz.inverse(strategy.coefficients, 30)
    np.testing.assert_allclose(strategy.inverse().coefficients, inverse, atol=1e-9)


def test_flags_are_derived_from_the_numbers():
    def flags(strategy):
        return strategy.structure.nonnegative, strategy.structure.nonincreasing

    assert flags(turning(11)) == (False, False)
    # a turning pair under a slow positive decay: no positive system, but positive and falling all the same
    block = np.zeros((3, 3))
    block[0, 0], block[1:, 1:] = 0.95, 0.5 * np.array([[0.0, -1.0], [1.0, 0.0]])
    damped = ConstantRecurrent(200, [0.4, 0.02, 0.0], block, np.ones(3))
    assert flags(damped) == (True, True)
    assert flags(ConstantRecurrent(200, [0.4, 0.35, 0.0], block, np.ones(3))) == (True, False)
    assert flags(ConstantRecurrent(9, [0.4], [[0.5]], [1.0], 0.3)) == (True, False)
    assert flags(ConstantRecurrent(9, [-0.4], [[-0.5]], [-1.0])) == (False, False)
    # beyond what is read off the coefficients only positive systems count
    many = 10**7
    assert flags(ConstantRecurrent(many, [0.4, 0.02, 0.0], block, np.ones(3))) == (False, False)
    assert flags(ConstantRecurrent(many, [0.4, 0.1], np.diag([0.999, 0.5]), np.ones(2))) == (True, True)
    assert flags(ConstantRecurrent(many, [0.4, 0.1], np.diag([0.999, 0.5]), [1.0, -1.0])) == (False, False)
    assert flags(ConstantRecurrent(many, [0.4, -0.1], np.diag([0.999, 0.5]), np.ones(2))) == (False, False)
    assert flags(ConstantRecurrent(many, [0.4, 0.1], [[0.9, 0.5], [0.0, 0.9]], np.ones(2))) == (True, False)


def test_a_billion_steps():
    n = 10**9
    blt = BLT(n, [1e-4, 0.1, 0.3], [1 - 1e-9, 0.999, 0.7])
    general = ConstantRecurrent.from_blt(blt)
    schema = MinSep(n // 10, 10)
    for participation in (Single(), schema):
        one, other = sensitivity(general, participation), sensitivity(blt, participation)
        assert one.exact and one.value == pytest.approx(other.value, rel=1e-7)
    found, expected = (error(workloads.prefix_sum(n), strategy) for strategy in (general, blt))
    assert (found.max, found.rms) == pytest.approx((expected.max, expected.rms), rel=1e-6)


# Sums by doubling.


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize("order", [1, 3])
def test_power_sums(n, order):
    _, a, v = random_system(3, order, 1.05)
    found = power_sums(a - np.eye(order), v, n)
    terms = [np.outer(x, x) for x in (np.linalg.matrix_power(a, t) @ v for t in range(n))]
    np.testing.assert_allclose(found.once, sum(terms, np.zeros((order, order))), atol=1e-11)
    twice = sum(((n - t) * x for t, x in enumerate(terms)), np.zeros((order, order)))
    np.testing.assert_allclose(found.twice, twice, atol=1e-10)
    np.testing.assert_allclose(found.power, np.linalg.matrix_power(a, n) - np.eye(order), atol=1e-11)

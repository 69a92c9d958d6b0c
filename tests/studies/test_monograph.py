"""Bounds of named mechanisms against their measured losses; errors of order p by definition."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from anechoic import error, loss, workloads
from anechoic.algebra import toeplitz
from anechoic.participation import Single
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Identity, Toeplitz, Tree
from anechoic.strategies.tree_aggregation import TreeAggregation
from studies.published import monograph
from studies.published.monograph import (
    approximation_error,
    excess_bound,
    expected_lp_norm,
    logarithmic_lower_bound,
    logarithmic_upper_bound,
    lp_error,
)
from tests.marks import in_turn

SIZES = [*range(1, 34), 63, 64, 65, 127, 500, 1024]


def measured(strategy):
    return loss(workloads.prefix_sum(strategy.n), strategy, Single(), "max")


@in_turn("n", SIZES)
def test_no_loss_is_above_its_bound(n):
    root = Toeplitz.square_root(workloads.prefix_sum(n))
    assert measured(root) <= monograph.toeplitz(n)
    assert measured(ColumnNormalized(root)) <= logarithmic_upper_bound(n)
    assert measured(TreeAggregation(n)) <= monograph.tree_aggregation(n)
    assert n < 2 or monograph.banded_toeplitz(n, 1) >= measured(Identity(n))
    for bands in {1, 2, 3, 5, 8, max(1, n // 3), n} & set(range(1, n + 1)):
        strategy = BandedToeplitz.square_root(workloads.prefix_sum(n), bands)
        assert measured(strategy) <= monograph.banded_toeplitz(n, bands)


def test_how_far_they_are():
    """The bounds are those of the theorems, and not far above."""
    n = 1024
    assert monograph.toeplitz(n) == pytest.approx(1 + (math.log(n) + np.euler_gamma) / math.pi, rel=1e-12)
    root = Toeplitz.square_root(workloads.prefix_sum(n))
    assert monograph.toeplitz(n) - measured(root) < 0.12
    assert logarithmic_upper_bound(n) - measured(ColumnNormalized(root)) < 0.13
    for bands in (16, 64, 256):
        strategy = BandedToeplitz.square_root(workloads.prefix_sum(n), bands)
        assert monograph.banded_toeplitz(n, bands) < 1.35 * measured(strategy)
    for power in range(1, 12):
        tree = TreeAggregation(2**power)
        assert monograph.tree_aggregation(2**power) == pytest.approx(measured(tree), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 10**3, 10**9])
def test_the_toeplitz_bound_is_within_one_of_every_mechanism(n):
    """Theorem 2.7: Opt_Toep - Opt <= 1; (gamma - ln 2) / pi < 0."""
    assert monograph.toeplitz(n) - logarithmic_lower_bound(n) <= 1
    assert logarithmic_upper_bound(n) < monograph.toeplitz(n)


@pytest.mark.parametrize("bands", [1, 2, 3, 7, 16, 50])
def test_the_proof_for_bands(bands):
    """u_t = c_t, then 2 c_t, then at most 2 c_b; and c_t^2 <= 1 / (pi t)."""
    n = 12 * bands + 5
    c = Toeplitz.square_root(workloads.prefix_sum(n)).coefficients
    assert (np.square(c[1:]) <= 1 / (np.pi * np.arange(1, n))).all()
    u = np.cumsum(toeplitz.inverse(np.where(np.arange(n) < bands, c, 0.0), n))
    np.testing.assert_allclose(u[:bands], c[:bands], rtol=1e-12)
    np.testing.assert_allclose(u[bands : 2 * bands], 2 * c[bands : 2 * bands], rtol=1e-12)
    assert (u >= 0).all() and u[bands:].max() <= 2 * c[bands] * (1 + 1e-12)


@pytest.mark.parametrize("bands", [0, 9])
def test_bands_that_are_none(bands):
    with pytest.raises(ValueError, match="bands="):
        monograph.banded_toeplitz(8, bands)


STRATEGIES = [Identity(1), Identity(7), BLT(9, [0.3], [0.8]), Tree(13), BandedToeplitz(11, [1.0, -0.5])]
ORDERS = [0.25, 0.5, 1, 1.5, 2, 3, 4, 17.5, 600.0]


@in_turn("strategy", STRATEGIES)
@in_turn("p", ORDERS)
def test_by_definition(strategy, p):
    found = error(workloads.prefix_sum(strategy.n), strategy)
    logs = np.log(found.per_step)
    expected = math.exp((np.logaddexp.reduce(p * logs) - math.log(strategy.n)) / p)
    assert lp_error(found, p) == pytest.approx(expected, rel=1e-10)


@in_turn("strategy", STRATEGIES)
def test_both_ends_and_between(strategy):
    found = error(workloads.momentum(strategy.n, 0.5), strategy)
    errors = [lp_error(found, p) for p in [*ORDERS, math.inf]]
    assert errors[ORDERS.index(2)] == pytest.approx(found.rms, rel=1e-9) and errors[-1] == found.max
    assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(errors))


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.5])
@pytest.mark.few(2)
def test_the_expected_norm_is_an_expectation(p):
    found = error(workloads.prefix_sum(6), Tree(6))
    moments = [
        2 * integrate.quad(lambda x, s=s: x**p * stats.norm.pdf(x, scale=s), 0, 40)[0] for s in found.per_step
    ]
    assert expected_lp_norm(found, p) == pytest.approx(sum(moments) ** (1 / p), rel=1e-7)


@in_turn(("call", "p"), [(lp_error, 0), (lp_error, "2"), (lp_error, math.nan), (expected_lp_norm, math.inf)])
def test_orders_that_are_none(call, p):
    with pytest.raises(ValueError, match=r"p=.* must be a"):
        call(error(workloads.prefix_sum(3), Identity(3)), p)


@pytest.mark.parametrize("n", [2, 10, 1000])
def test_approximation_errors_of_baselines(n):
    # |1 - sqrt(1 - x)| and |(1 - x) - sqrt(1 - x)| are largest on the real line, at either end
    rho = 1 - 1 / n
    ends = [abs(1 - math.sqrt(1 - x)) for x in (rho, -rho)]
    assert approximation_error(np.ones_like, n) == pytest.approx(max(ends), rel=1e-6)
    assert approximation_error([1.0], n) == pytest.approx(max(ends), rel=1e-6)
    ends = [abs(1 - x - math.sqrt(1 - x)) for x in (rho, -rho)]
    assert approximation_error([1.0, -1.0], n) == pytest.approx(max(ends), rel=1e-6)


@pytest.mark.parametrize("n", [10, 100, 2000])
@pytest.mark.parametrize("size", [1e-8, 1e-5, 1e-3, 1e-2])
@pytest.mark.few(8)
def test_theorem_2_26(n, size):
    """Theorem 2.26, with the constant that is proven in the docstring."""
    workload = workloads.prefix_sum(n)
    best = loss(workload, Toeplitz.square_root(workload), Single(), "max")
    for sign in (1, -1):
        for shape in (lambda x: 1 + 0 * x, lambda x: x**3, lambda x: 1 / (2 - x), lambda x: np.exp(-3 * x)):
            r = lambda x, s=sign, f=shape: np.sqrt(1 - x) + s * size * f(x)  # noqa: E731
            bound = excess_bound(approximation_error(r, n), n)
            if math.isfinite(bound):
                found = loss(workload, Toeplitz.from_generating_function(r, n), Single(), "max")
                assert best - 1e-12 <= found <= best + bound

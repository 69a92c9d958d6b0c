"""Bounds of named mechanisms against the measured losses of those mechanisms."""

import math

import numpy as np
import pytest

from anechoic import loss, upper_bounds, workloads
from anechoic.algebra import toeplitz
from anechoic.lower_bounds.prefix_sums import logarithmic_lower_bound
from anechoic.participation import Single
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity, Toeplitz
from anechoic.strategies.tree_aggregation import TreeAggregation
from tests.marks import in_turn

SIZES = [*range(1, 34), 63, 64, 65, 127, 500, 1024]


def measured(strategy):
    return loss(workloads.prefix_sum(strategy.n), strategy, Single(), "max")


@in_turn("n", SIZES)
def test_no_loss_is_above_its_bound(n):
    root = Toeplitz.square_root(workloads.prefix_sum(n))
    assert measured(root) <= upper_bounds.toeplitz(n)
    assert measured(ColumnNormalized(root)) <= upper_bounds.column_normalized_toeplitz(n)
    assert measured(TreeAggregation(n)) <= upper_bounds.tree_aggregation(n)
    for bands in {1, 2, 3, 5, 8, max(1, n // 3), n} & set(range(1, n + 1)):
        strategy = BandedToeplitz.square_root(workloads.prefix_sum(n), bands)
        assert measured(strategy) <= upper_bounds.banded_toeplitz(n, bands)


def test_how_far_they_are():
    """The bounds are those of the theorems, and not far above."""
    n = 1024
    assert upper_bounds.toeplitz(n) == pytest.approx(1 + (math.log(n) + np.euler_gamma) / math.pi, rel=1e-12)
    root = Toeplitz.square_root(workloads.prefix_sum(n))
    assert upper_bounds.toeplitz(n) - measured(root) < 0.12
    assert upper_bounds.column_normalized_toeplitz(n) - measured(ColumnNormalized(root)) < 0.13
    for bands in (16, 64, 256):
        strategy = BandedToeplitz.square_root(workloads.prefix_sum(n), bands)
        assert upper_bounds.banded_toeplitz(n, bands) < 1.35 * measured(strategy)
    for power in range(1, 12):
        tree = TreeAggregation(2**power)
        assert upper_bounds.tree_aggregation(2**power) == pytest.approx(measured(tree), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 10**3, 10**9])
def test_the_toeplitz_bound_is_within_one_of_every_mechanism(n):
    """Theorem 2.7: Opt_Toep - Opt <= 1; (gamma - ln 2) / pi < 0."""
    assert upper_bounds.toeplitz(n) - logarithmic_lower_bound(n) <= 1
    assert upper_bounds.column_normalized_toeplitz(n) < upper_bounds.toeplitz(n)


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


def test_one_band_is_independent_noise():
    assert upper_bounds.banded_toeplitz(100, 1) >= measured(Identity(100)) == 10.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: upper_bounds.toeplitz(0), "n=0 must be at least 1"),
        (lambda: upper_bounds.column_normalized_toeplitz(2.5), "n=2.5 must be an integer"),
        (lambda: upper_bounds.tree_aggregation(-1), "n=-1 must be at least 1"),
        (lambda: upper_bounds.banded_toeplitz(8, 0), "bands=0 must be at least 1"),
        (lambda: upper_bounds.banded_toeplitz(8, 9), "bands=9 must be at most n=8"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()

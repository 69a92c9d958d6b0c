"""Banded inverses: named members, closed forms, what is claimed of C, published losses."""

import math
from fractions import Fraction
from importlib import import_module
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import workloads
from anechoic.algebra import toeplitz
from anechoic.losses.dispatch import error, loss
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedInverse, BandedToeplitz
from tests.marks import every_other, slow

module = import_module("anechoic.strategies.banded_inverse")


def binomials(power, count):
    """Coefficients of (1 - x)^power, exactly rounded."""
    exact, found = Fraction(1), []
    for j in range(count):
        found.append(float(exact))
        exact *= (j - Fraction(power)) / (j + 1)
    return np.array(found)


# Named members


def test_the_one_parameter_mechanism_is_the_matrix_of_the_monograph():
    n, decay = 7, 0.6
    strategy = BandedInverse.one_parameter(n, decay)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    np.testing.assert_allclose(strategy.to_dense(), np.where(lag >= 0, decay ** np.maximum(lag, 0), 0.0))
    np.testing.assert_array_equal(strategy.solve(np.eye(n)), np.eye(n) - decay * np.eye(n, k=-1))  # (1.21)
    decoder = np.tril(np.ones((n, n))) @ np.linalg.inv(strategy.to_dense())  # (1.22)
    np.testing.assert_allclose(np.tril(decoder, -1), np.tril(np.full((n, n), 1 - decay), -1), atol=1e-15)
    # Eqs. (1.23) and (1.24), the loss without the factor 4 of its adjacency
    assert strategy.largest_column_norm() ** 2 == pytest.approx((1 - decay ** (2 * n)) / (1 - decay**2))
    squared = (1 - decay ** (2 * n)) / (1 - decay**2) * (1 + (n - 1) * (1 - decay) ** 2)
    found = loss(workloads.prefix_sum(n), strategy, Single(), "max")
    assert found == pytest.approx(math.sqrt(squared), rel=1e-14)


@pytest.mark.parametrize("bands", [1, 2, 5, 40])
@pytest.mark.parametrize("power", [0.5, 0.92, 0.1])
def test_powers_of_prefix_sums(bands, power):
    found = BandedInverse.fractional(workloads.prefix_sum(50), power, bands)
    np.testing.assert_allclose(found.inverse_coefficients, binomials(power, bands), rtol=1e-13)
    if bands == 2:
        np.testing.assert_allclose(found.to_dense(), BandedInverse.one_parameter(50, power).to_dense())


def test_the_square_root_with_momentum_and_weight_decay():
    # arXiv 2505.12128 and 2405.13763: sums of products of the coefficients for beta and for alpha
    beta, alpha, bands = 0.8, 0.95, 9
    workload = workloads.momentum(30, beta, weight_decay=1 - alpha)
    j = np.arange(bands)
    for sign, found in (
        (1, BandedInverse.square_root(workload, bands).inverse_coefficients),
        (-1, BandedToeplitz.square_root(workload, bands).coefficients[:bands]),
    ):
        r = binomials(Fraction(sign, 2), bands)
        np.testing.assert_allclose(found, np.convolve(r * beta**j, r * alpha**j)[:bands], rtol=1e-12)


# What is claimed of C


def truth(inverse, n):
    """Coefficients of C, exactly."""
    q = [Fraction(float(value)) for value in inverse]
    c = [1 / q[0]]
    for t in range(1, n):
        c.append(-sum(q[j] * c[t - j] for j in range(1, min(t, len(q) - 1) + 1)) / q[0])
    return c


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
@pytest.mark.slow
def test_no_property_is_claimed_that_exact_arithmetic_denies(seed):
    rng = np.random.default_rng(seed)
    n, bands = int(rng.integers(2, 40)), int(rng.integers(2, 7))
    # coarse numbers, so that ties and zeros occur; mostly signs of interest
    tail = rng.integers(-8, 3 if rng.random() < 0.5 else 1, size=min(bands, n) - 1) / rng.integers(8, 40)
    strategy = BandedInverse(n, np.append(1.0, tail))
    c = truth(strategy.inverse_coefficients, n)
    largest = max(abs(value) for value in c)
    structure = strategy.structure
    np.testing.assert_allclose(strategy.coefficients, np.array(c, dtype=float), atol=1e-12 * float(largest))
    slack = Fraction(1, 10**13) * largest
    if structure.nonnegative:
        assert min(c) >= (0 if max(tail) <= 0 else -slack)
    if structure.nonincreasing:
        assert max(b - a for a, b in pairwise(c)) <= slack
    if max(tail) <= 0 and module.inverse_falls(np.append(1.0, tail)):
        assert structure.nonincreasing and all(a >= b >= 0 for a, b in pairwise(c))


def test_properties_are_found():
    flags = {
        (1.0, -0.5): (True, True),
        (1.0, -0.5, -0.1): (True, True),
        (1.0, -0.2, -0.5): (True, False),
        (1.0, 0.5): (False, False),
        (1.0, -0.5, 0.01): (True, True),  # not by the theorem, but by its coefficients
        (1.0, -1.5): (True, False),
    }
    for inverse, (nonnegative, falling) in flags.items():
        structure = BandedInverse(30, inverse).structure
        assert (structure.nonnegative, structure.nonincreasing) == (nonnegative, falling), inverse
        assert structure.bands == 30 and structure.toeplitz


@pytest.mark.parametrize("bands", [2, 3, 17, 400, 3000])
@pytest.mark.parametrize("power", [1e-3, 0.5, 0.93, 0.999])
def test_powers_are_proven_to_fall_without_their_coefficients(bands, power, monkeypatch):
    monkeypatch.setattr(module, "leading_coefficients", None)
    structure = BandedInverse.fractional(workloads.prefix_sum(10**9), power, bands).structure
    assert structure.nonnegative and structure.nonincreasing


# Closed forms, and coefficients that fade


def test_a_billion_steps():
    n = 10**9
    workload, schema = workloads.prefix_sum(n), MinSep(10**8, 10)
    decay = 1 - 1e-5
    strategy = BandedInverse.one_parameter(n, decay)
    assert error(workload, strategy).max == pytest.approx(
        math.sqrt(1 + (n - 1) * (1 - decay) ** 2), rel=1e-14
    )
    assert sensitivity(strategy, schema).value ** 2 == pytest.approx(10 / (1 - decay**2), rel=1e-9)
    wide = BandedInverse.square_root(workload, 16)  # not closed, but its coefficients fade
    sums = np.cumsum(wide.inverse_coefficients)
    squared = np.square(sums[:-1]).sum() + (n - 15) * sums[-1] ** 2
    assert error(workload, wide).max == pytest.approx(math.sqrt(squared), rel=1e-14)
    short = BandedInverse(2 * 10**5, wide.inverse_coefficients)
    expected = math.sqrt(10) * short.largest_column_norm()
    assert sensitivity(wide, schema).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "inverse", [(1.0, -0.02), (1.0, -0.3, -0.2, 0.05), (1.0, -0.9, -0.05), (4.0, 0.3, 0.2)]
)
def test_what_is_left_out_is_negligible(inverse):
    n = 20_000
    strategy = BandedInverse(n, inverse)
    impulse = np.eye(1, n)[0]
    c = strategy.multiply(impulse)
    living = strategy._leading
    assert len(living) < n
    np.testing.assert_allclose(strategy.coefficients[: len(living)], c[: len(living)], rtol=1e-9)
    assert np.abs(c[len(living) :]).max() < 1e-199
    for separation, count in ((30, 200), (5000, 4), (19_990, 2)):  # the last tooth is cut at step n
        comb = np.zeros(n)
        comb[: (count - 1) * separation + 1 : separation] = 1.0
        expected = float(np.square(strategy.multiply(comb)).sum())
        assert strategy.comb_norm_squared(separation, count) == pytest.approx(expected, rel=1e-12)


# Zeros close together near the unit circle: the plain recursion loses digits


def powers_of(factor, order):
    found = np.ones(1)
    for _ in range(order):
        found = np.convolve(found, factor)
    return found


def column(inverse, n):
    """First column of C, with 80 digits."""
    with mpmath.workdps(80):
        r = [mpmath.mpf(float(value)) for value in inverse]
        c = []
        for t in range(n):
            c.append(((t == 0) - sum(r[j] * c[t - j] for j in range(1, min(t, len(r) - 1) + 1))) / r[0])
        return c


QUADRATIC = [1.0, -2 * 0.9999 * math.cos(0.01), 0.9999**2]
CLUSTERS = {
    "five": powers_of([1.0, -0.999], 5),
    "four": 0.1 * powers_of([1.0, -1.0], 4),
    "waves": powers_of(QUADRATIC, 3),
    "waves-2": powers_of(QUADRATIC, 2),
    "one-wave": np.array(QUADRATIC),
    "flipped": powers_of([1.0, 0.999], 4),
}


@pytest.mark.parametrize("name", every_other(CLUSTERS))
@pytest.mark.few(2)
def test_clustered_zeros(name):
    inverse, n = CLUSTERS[name], 8000
    exact = column(inverse, n)
    strategy = BandedInverse(n, inverse)
    with mpmath.workdps(80):
        norm = float(mpmath.sqrt(sum(value * value for value in exact)))
    found = sensitivity(strategy, Single())
    assert found.exact and found.value == pytest.approx(norm, rel=2e-9)
    # the product of C and a pattern, which Cyclic and FullBatch use
    c = np.array(exact, dtype=np.float64)
    expected = np.array([float(mpmath.fsum(exact[t % 2000 : t + 1 : 2000])) for t in range(0, n, 37)])
    teeth = (np.arange(n) % 2000 == 0).astype(float)
    np.testing.assert_allclose(strategy.multiply(teeth)[::37], expected, rtol=0, atol=3e-9 * np.abs(c).max())


def test_a_cluster_that_no_digits_resolve_is_refused():
    # the truth is 6.9034085e20 (80 digits), float64 recursion says 6.526e20
    strategy = BandedInverse(8000, powers_of([1.0, -0.999], 6))
    for ask in (
        lambda: sensitivity(strategy, Single()),
        lambda: sensitivity(strategy, Cyclic(1000)),
        lambda: sensitivity(strategy, FullBatch()),
        lambda: strategy.multiply(np.ones(8000)),
    ):
        with pytest.raises(ValueError, match=r"coefficient j times 0\.99\*\*j"):
            ask()
    assert sensitivity(strategy.truncate(500), Single()).exact


@pytest.mark.parametrize("scale", [*slow(1.0, 2.0**-40), 3e30])
@pytest.mark.slow
def test_the_bound_of_the_error_holds(scale):
    for inverse in (*CLUSTERS.values(), np.array([1.0, -0.5, -0.4]), np.array([1.0, 0.5, -0.45])):
        inverse = inverse * scale
        n = 700
        plain = module.leading_coefficients(inverse, n)
        for tolerance in (1e-3, 1e-9, 1e-14):
            c, bound = toeplitz.accurate_inverse(inverse, plain, tolerance)
            with mpmath.workdps(80):
                exact = column(inverse, n)
                off = mpmath.sqrt(
                    sum((mpmath.mpf(float(a)) - b) ** 2 for a, b in zip(c, exact, strict=False))
                )
                assert off <= bound * mpmath.sqrt(sum(b * b for b in exact))


# Published losses: shared/GOLDEN.md, section 2


def test_published_losses_for_2052_steps():
    # n = 2052, k = 6, b = 342 (arXiv 2408.08868), recomputed there
    workload, schema = workloads.prefix_sum(2052), MinSep(342, 6)
    for strategy, rms, largest in (
        (BandedToeplitz.square_root(workload, 342), 8.98, 11.05),
        (BandedInverse.square_root(workload, 342), 9.66, 10.92),
        (BandedInverse.one_parameter(2052, 0.97), 13.97, None),
        (BandedInverse.fractional(workload, 0.92, 4), 13.58, None),
        (BandedInverse.fractional(workload, 0.74, 16), 11.48, None),
        (BandedInverse.square_root(workload, 16), 17.08, None),
    ):
        assert sensitivity(strategy, schema).exact
        assert loss(workload, strategy, schema) == pytest.approx(rms, abs=5e-3)
        if largest is not None:
            assert loss(workload, strategy, schema, "max") == pytest.approx(largest, abs=5e-3)

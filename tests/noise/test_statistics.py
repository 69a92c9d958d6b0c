"""The covariance of what a stream emits is std^2 C^-1 C^-T, by a test whose power is shown.

Entries of a row are i.i.d., so m of them are m draws of N(0, std^2 C^-1 C^-T) in n dimensions. C rows / std
is then white: the likelihood ratio of its sample covariance S against the identity,

    m (tr S - log det S - n),

is asymptotically chi-squared with n(n+1)/2 degrees of freedom (Anderson, An Introduction to Multivariate
Statistical Analysis, Section 10.8).
"""

import numpy as np
import pytest
from scipy import stats

from anechoic import strategies, workloads
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Output, Restarted, Toeplitz
from tests.marks import in_turn
from tests.noise.streams import emit, make_stream

N, M, STD = 10, 300_000, 1.7
COEFFICIENTS = np.array([1.0, 0.5, 0.375, 0.3125])


def p_value(white):
    """Of the hypothesis that the columns of `white`, shape (n, m), are i.i.d. N(0, I)."""
    n, m = white.shape
    s = white @ white.T / m
    statistic = m * (np.trace(s) - np.linalg.slogdet(s)[1] - n)
    return stats.chi2.sf(statistic, n * (n + 1) / 2)


def emitted(strategy):
    """Rows of NumPy; torch emits the same bits (test_slices.py)."""
    rows, _ = emit(make_stream(strategy, M, "numpy", precision="float32", std=STD))
    return rows


CASES = {
    "identity": strategies.Identity(N),
    "output": Output(workloads.momentum(N, 0.9)),
    "root": Toeplitz.square_root(workloads.prefix_sum(N)),
    "banded": BandedToeplitz(N, COEFFICIENTS),
    "normalised": ColumnNormalized(BandedToeplitz(N, COEFFICIENTS)),
    "blt": BLT(N, [0.3, 0.5], [0.9, 0.4]),
    "restarted": Restarted(BandedToeplitz(4, COEFFICIENTS), 3, N),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_emitted_rows_have_the_covariance_of_the_mechanism(name):
    strategy = CASES[name]
    rows = emitted(strategy)
    white = strategy.multiply(rows) / STD
    assert p_value(white) > 1e-3
    # C (gradients + noise) carries i.i.d. noise of the calibrated std: also in law, entry by entry
    assert stats.kstest(white[-1], "norm").pvalue > 1e-3
    # and the covariance itself, entry by entry
    inverse = strategy.solve(np.eye(N))
    expected = STD**2 * inverse @ inverse.T
    error = rows @ rows.T / M - expected
    spread = np.sqrt((expected**2 + np.outer(expected.diagonal(), expected.diagonal())) / M)
    assert (np.abs(error) < 5 * spread).all()


@in_turn("factor", [0.95, 1.05])
@in_turn("k", range(len(COEFFICIENTS)))
@pytest.mark.slow
def test_the_test_fails_when_one_coefficient_is_five_percent_off(k, factor):
    wrong = COEFFICIENTS.copy()
    wrong[k] *= factor
    white = BandedToeplitz(N, COEFFICIENTS).multiply(emitted(BandedToeplitz(N, wrong))) / STD
    assert p_value(white) < 1e-9


@pytest.mark.slow
def test_the_test_fails_for_rows_of_independent_noise_and_for_a_std_one_percent_off():
    rows = emitted(CASES["identity"])
    assert p_value(CASES["banded"].multiply(rows) / STD) < 1e-9
    assert p_value(1.01 * rows / STD) < 1e-9


def test_the_test_has_its_level():
    # p-values of 200 small cases are uniform: the limit is reached well before m = 300,000
    rng = np.random.default_rng(0)
    values = [p_value(rng.standard_normal((4, 3000))) for _ in range(200)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3

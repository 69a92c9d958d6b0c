"""The programmes for patterns in which only neighbours interact, against enumeration."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.participation import MinSep, OncePerEpoch
from anechoic.sensitivity.chain import best_epoch_chain, best_pair, best_separated_chain
from anechoic.sensitivity.gram import gram_of
from tests.zoo import dense


def band_of(matrix, width):
    n = len(matrix)
    return np.stack([np.pad(np.abs(matrix.diagonal(lag)), (0, lag)) for lag in range(min(width, n))])


def enumerated(band, patterns):
    width = len(band)

    def value(steps):
        pairs = itertools.pairwise(steps)
        return sum(band[0, t] for t in steps) + 2 * sum(band[b - a, a] for a, b in pairs if b - a < width)

    return max(value(steps) for steps in patterns)


def drawn(seed, n, width):
    x = np.random.default_rng(seed).standard_normal((n, n))
    return band_of(x.T @ x, width)


@settings(max_examples=150)
@given(
    st.integers(0, 10**6),
    st.integers(2, 9),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(2, 6) | st.none(),
)
@pytest.mark.slow
def test_separated(seed, n, width, separation, count):
    schema = MinSep(separation, count)
    band = drawn(seed, n, width)
    found = best_separated_chain(band, separation, schema.max_participations_in(n))
    assert found == pytest.approx(enumerated(band, schema.patterns(n)), rel=1e-12)


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 10))
def test_epochs(seed, n, width, period):
    band = drawn(seed, n, width)
    assert best_epoch_chain(band, period) == pytest.approx(
        enumerated(band, OncePerEpoch(period).patterns(n)), rel=1e-12
    )


@pytest.mark.parametrize("bands", [1, 3, 9])
@pytest.mark.parametrize("separation", [1, 2, 4, 8])
def test_pairs(bands, separation):
    strategy = dense(9, bands=bands)
    c = strategy.to_dense()
    band = band_of(c.T @ c, bands)
    truth = enumerated(band, MinSep(separation, 2).patterns(9))
    assert best_pair(gram_of(strategy), separation) == pytest.approx(truth, rel=1e-12)

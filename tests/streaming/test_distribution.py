"""Distributions: noise over time, over the domain, and both, against matrices written out."""

import itertools
import math

import numpy as np
import pytest

from anechoic import streaming
from anechoic.streaming.distribution import FINE, monotone, range_encoder
from tests.streaming.test_stream import NoNoise

EDGES = [0.0, 1.0, 2.5, 3.0, 7.0, 8.0]


def quiet(statistic, **promise):
    return NoNoise({"d": statistic}, **{"epsilon": 1.0, "horizon": 8, **promise})


def range_error(matrix):
    """RMS over all ranges of buckets of the deviation that noise D^-1 z has in their sums."""
    inverse, buckets = np.linalg.inv(matrix), len(matrix)
    ranges = [inverse[i : j + 1].sum(axis=0) for i in range(buckets) for j in range(i, buckets)]
    return math.sqrt(np.mean(np.square(ranges).sum(axis=1)))


def test_cumulative_counts_without_noise_are_exact():
    stream = quiet(streaming.Distribution(EDGES))
    stream.update([0.5, 0.0, 1.0, 2.9, 7.5, 99.0, -math.inf, math.nan, 2.5])
    assert np.allclose(stream.release().estimate, [3, 4, 6, 6, 8], atol=1e-9)
    stream.update([3.0, 8.0])
    assert np.allclose(stream.release().estimate, [3, 4, 6, 7, 10], atol=1e-9)
    assert stream.diagnostics() == {"d: not a number": 1, "d: beyond the edges": 3}


def test_quantiles_without_noise():
    stream = quiet(streaming.Quantiles(range(101), [0.1, 0.5, 0.9]))
    stream.update(np.arange(0, 100, 0.01))
    found = stream.release().only
    assert np.allclose(found.value, [10, 50, 90], atol=0.1)
    assert (found.low <= [10, 50, 90]).all() and (found.high >= [10, 50, 90]).all()


@pytest.mark.parametrize("buckets", [2, 5, 84])
def test_columns_of_the_encoder_are_no_longer_than_one(buckets):
    matrix = range_encoder(buckets)
    assert np.square(matrix).sum(axis=0).max() <= 1
    statistic = streaming.Distribution(range(buckets + 1))
    fine = statistic._fine
    assert max(sum(int(v) ** 2 for v in column) for column in fine.T) <= FINE**2
    root = np.cumprod(np.concatenate([[1.0], (np.arange(1.0, buckets) - 0.5) / np.arange(1.0, buckets)]))
    square_root = np.array([[root[i - j] if i >= j else 0 for j in range(buckets)] for i in range(buckets)])
    square_root /= np.linalg.norm(square_root, axis=0)
    assert range_error(matrix) <= min(range_error(square_root), range_error(np.eye(buckets))) * (1 + 1e-6)


def test_noise_is_correlated_over_the_domain():
    assert streaming.Distribution([0, 1])._fine == FINE
    with pytest.raises(ValueError, match="1025 buckets: give at most 1,024"):
        streaming.Distribution(range(1026))
    assert 5.3 < range_error(np.eye(84)) < 5.4 and 2.41 < range_error(range_encoder(84)) < 2.42


def test_the_kronecker_product_has_the_sensitivity_of_its_time_factor():
    """Column norms multiply: brute force over the columns of C (x) D, and over pairs of them."""
    stream = streaming.Stream(streaming.Distribution(EDGES), epsilon=1.0, horizon=6)
    time = stream.mechanism.strategy.to_dense()
    domain = range_encoder(5)
    both = np.kron(time, domain)
    assert np.linalg.norm(both, axis=0).max() <= stream.mechanism.sensitivity.value * (1 + 1e-12)
    # a unit with two steps, in any two buckets: the bound is that of two vectors of norm 1
    pairs = [
        np.linalg.norm(both[:, s * 5 + i] + both[:, t * 5 + j])
        for s, t in itertools.combinations(range(6), 2)
        for i in range(5)
        for j in range(5)
    ]
    lines = [np.linalg.norm(time[:, s] + time[:, t]) for s, t in itertools.combinations(range(6), 2)]
    assert max(pairs) <= max(lines) * (1 + 1e-12)


def test_monotone_is_the_nearest_of_all_monotone_sequences():
    rng = np.random.default_rng(0)
    counts, errors = rng.normal(3, 2, 6), rng.uniform(0.5, 2, 6)
    best = monotone(counts, errors)
    assert (np.diff(best) >= -1e-12).all()

    def distance(x):
        return float((np.square(x - counts) / np.square(errors)).sum())

    for _ in range(300):
        other = np.sort(best + rng.normal(0, 0.3, 6))
        assert distance(np.maximum(other, 0)) >= distance(best) - 1e-9


def test_errors_are_the_standard_errors():
    statistic, rng = streaming.Distribution(EDGES), np.random.default_rng(0)
    totals = statistic._fine @ np.array([90.0, 70, 50, 30, 10]) / FINE
    found = [statistic.decode(totals + rng.normal(0, 2.0, 5), 2.0, 1.96) for _ in range(4000)]
    scores = np.array([(one.raw - [90, 160, 210, 240, 250]) / one.standard_error for one in found])
    assert np.allclose(np.square(scores).mean(axis=0), 1.0, atol=0.12)


def test_quantiles_of_nothing_are_anywhere():
    found = quiet(streaming.Quantiles(range(11), [0.5])).release().only
    assert found.low[0] == 0 and found.high[0] == 10 and found.value[0] == 5

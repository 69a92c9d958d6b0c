"""The law at a billion draws: layers, tails and moments, by float64 entries as streams use them."""

import time

import numpy as np
import pytest
from scipy import stats

from anechoic.noise.gaussian import AES, CIPHERS, FreshRow
from tests.marks import every_other
from tests.noise.streams import KEY

DRAWS = 10**9
ROW = 2**24
LEVELS = np.array([1.0, 2.0, 3.0, 4.0, 4.25, 4.5, 5.0, 5.5, 6.0])
#: Bins of equal width for the body; their probabilities are exact to 1e-16.
EDGES = np.linspace(-4.0, 4.0, 4097)


class Totals:
    """What is kept of the draws."""

    def __init__(self):
        self.count = 0
        self.bins = np.zeros(len(EDGES) + 1, np.int64)
        self.above, self.below = np.zeros(len(LEVELS), np.int64), np.zeros(len(LEVELS), np.int64)
        self.moments, self.lagged = np.zeros(4), 0.0

    def add(self, values):
        self.count += len(values)
        place = np.clip(np.floor((values + 4.0) * 512.0), -1, 4096).astype(np.int64)
        self.bins += np.bincount(place + 1, minlength=len(self.bins))
        far = values[np.abs(values) > 1.0]
        self.above += [(far > level).sum() for level in LEVELS]
        self.below += [(far < -level).sum() for level in LEVELS]
        squares = values * values
        self.moments += [values.sum(), squares.sum(), (squares * values).sum(), (squares * squares).sum()]
        self.lagged += float(np.dot(values[1:], values[:-1]))

    def check(self):
        n = self.count
        probabilities = np.diff(np.concatenate([[0.0], stats.norm.cdf(EDGES[: len(EDGES) // 2 + 1])]))
        probabilities = np.concatenate([probabilities, probabilities[::-1]])
        expected = n * probabilities
        statistic = ((self.bins - expected) ** 2 / expected).sum()
        assert 1e-4 < stats.chi2.sf(statistic, len(expected) - 1) < 1 - 1e-4
        for side in (self.above, self.below):
            for level, found in zip(LEVELS, side, strict=True):
                # at the ends a count may be 0, so that the lower tail is not small
                assert stats.poisson.cdf(found, n * stats.norm.sf(level)) > 1e-5 or level <= 3
                assert stats.poisson.sf(found - 1, n * stats.norm.sf(level)) > 1e-5 or level <= 3
                spread = np.sqrt(n * stats.norm.sf(level) * stats.norm.cdf(level))
                assert abs(found - n * stats.norm.sf(level)) < 4.5 * spread + 5
        for moment, (mean, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)]):
            assert abs(self.moments[moment] / n - mean) < 4 * np.sqrt(variance / n)
        assert abs(self.lagged) < 4.5 * np.sqrt(n)


def totals(draws, change=lambda values: values, cipher=AES):
    found, block, step = Totals(), np.empty(2**18), 0
    while found.count < draws:
        row = FreshRow(KEY, step, cipher)
        for start in range(0, min(ROW, draws - found.count), len(block)):
            row.fill(block, start)
            found.add(change(block))
        step += 1
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_billion_draws_are_standard_normal():
    start = time.process_time()
    found = totals(DRAWS)
    found.check()
    assert found.count >= DRAWS
    assert time.process_time() - start < 600


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.slow
def test_ten_million_draws_are_standard_normal(cipher):
    totals(10**7, cipher=cipher).check()


@pytest.mark.parametrize(
    "change",
    every_other(
        [
            lambda values: values * 1.003,
            lambda values: values + 0.002,
            lambda values: np.clip(values, -4.1, 4.1),
            lambda values: np.where(np.abs(values) < 0.01, 0.5 * values, values),
        ]
    ),
)
@pytest.mark.few(1)
def test_small_faults_are_seen(change):
    with pytest.raises(AssertionError):
        totals(10**7, change).check()

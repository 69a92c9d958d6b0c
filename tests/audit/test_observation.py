"""The score of a canary: its law, no interference, the same by streaming."""

import numpy as np
import pytest

from anechoic.audit import Observation
from anechoic.audit.observation import canary_scores
from anechoic.audit.patterns import strongest_pattern
from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Tree
from tests.zoo import STRATEGIES, every


@pytest.mark.parametrize("name", every(lambda strategy: strategy.n > 4 and strategy.rows == strategy.n))
def test_scores_are_those_of_dense_algebra(name):
    strategy, rng = STRATEGIES[name], np.random.default_rng(0)
    n, dense = strategy.n, strategy.to_dense()
    rows, pattern = rng.standard_normal((n, 5)), rng.random((n, 5)) < 0.6
    pattern[0] = True
    scores, norms = canary_scores(strategy, rows, pattern)
    for j in range(5):
        filter_ = dense @ pattern[:, j]
        assert norms[j] == pytest.approx(np.linalg.norm(filter_), rel=1e-9)
        assert scores[j] == pytest.approx(filter_ @ dense @ rows[:, j] / norms[j], rel=1e-8, abs=1e-9)


def test_the_law_of_the_score():
    """Noise of every canary alike, whatever it takes part in; the mean is ||C 1_pi|| with cross-terms."""
    strategy = STRATEGIES["toeplitz-root"]
    rng = np.random.default_rng(1)
    pattern = np.arange(strategy.n) % 4 == 1
    noise = strategy.solve(0.7 * rng.standard_normal((strategy.n, 40_000)))
    scores, norms = canary_scores(strategy, noise + pattern[:, None], pattern)
    assert norms[0] > 1.2 * np.sqrt(strategy.column_norms_squared()[pattern].sum())
    assert scores.mean() == pytest.approx(norms[0], abs=4 * 0.7 / 200)
    assert scores.std() == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize(
    "schema",
    [
        Single(),
        Cyclic(4),
        Cyclic(50),
        MinSep(3),
        MinSep(3, 2),
        FullBatch(),
        OncePerEpoch(4),
        Patterns([[0, 5], [1, 2, 9]]),
    ],
)
def test_the_strongest_pattern_is_allowed_and_strong(schema):
    strategy = STRATEGIES["toeplitz-root"]
    pattern = strongest_pattern(strategy, schema)
    steps = set(np.flatnonzero(pattern).tolist())
    assert any(steps <= set(allowed) for allowed in schema.patterns(strategy.n))
    norm = np.linalg.norm(strategy.multiply(pattern.astype(float)))
    exact = sensitivity(strategy, schema)
    assert norm <= exact.value * (1 + 1e-9)
    assert norm >= 0.85 * exact.value


def test_a_strategy_that_is_not_square_is_refused():
    with pytest.raises(UnsupportedError, match="not square"):
        canary_scores(Tree(3), np.ones((3, 1)), np.ones((3, 1)))


GOOD = {
    "rows": np.ones((3, 2)),
    "participation": np.ones((3, 2), bool),
    "contribution": np.array([1.0, 0.0]),
    "possible": np.ones((3, 2), bool),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.ones(3)}, "finite numbers"),
        ({"rows": np.full((3, 2), np.nan)}, "finite numbers"),
        ({"participation": np.ones((3, 1), bool)}, "must have the shape of rows"),
        ({"possible": np.zeros((3, 2), bool)}, "canary 0 is in batch 0"),
        ({"contribution": np.array([1.0, 0.5])}, "1, 0 or -1"),
        ({"contribution": np.array([1.0])}, "1, 0 or -1"),
    ],
)
def test_observations_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Observation(**{**GOOD, **change})

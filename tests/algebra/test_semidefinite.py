"""Semidefinite duality on one pattern against ascent, with certificates on both sides."""

import numpy as np
import pytest

from anechoic.algebra.semidefinite import largest_correlated_sum
from tests.marks import every_other
from tests.sensitivity.brute import on_pattern


def grams(k, seed):
    rng = np.random.default_rng([k, seed])
    yield "full rank", rng.standard_normal((k, k))
    yield "rank one", rng.standard_normal((1, k))
    yield "rank two", rng.standard_normal((2, k))
    yield "triangular", np.tril(rng.standard_normal((k, k)))
    yield "orthogonal", np.diag(1.0 + rng.random(k))
    yield "alternating", np.tril(np.ones((k, k))) * (-1.0) ** np.arange(k)
    yield "tiny scale", 1e-30 * rng.standard_normal((k, k))


@pytest.mark.parametrize("k", every_other([1, 2, 3, 5, 8, 13]))
def test_both_sides_meet_at_the_supremum(k):
    for seed in range(5):
        for name, x in grams(k, seed):
            gram = x.T @ x
            lower, upper = largest_correlated_sum(gram)
            truth = on_pattern(gram, np.random.default_rng(0), restarts=3)
            assert lower <= upper * (1 + 1e-12), name
            assert upper - lower <= 1e-9 * upper, name
            assert truth <= upper * (1 + 1e-12), name
            assert lower <= truth * (1 + 1e-8), name


def test_three_vectors_in_the_plane():
    # M = I - J / 3 is rank 2 with M_ij = -1/3: unit vectors at 120 degrees are best, 3 * 2/3 + 6 * 1/6 = 3
    gram = np.eye(3) - 1 / 3
    lower, upper = largest_correlated_sum(gram)
    assert (lower, upper) == (pytest.approx(3.0, rel=1e-9), pytest.approx(3.0, rel=1e-9))
    assert max(s @ gram @ s for s in np.array([[1, a, b] for a in (1, -1) for b in (1, -1)])) < 2.7


def test_bounds_are_certified_wherever_the_method_stops(monkeypatch):
    from anechoic.algebra import semidefinite as correlations

    x = np.random.default_rng(3).standard_normal((9, 9))
    gram = x.T @ x
    low, high = largest_correlated_sum(gram)
    for rounds in range(12):
        monkeypatch.setattr(correlations, "ROUNDS", rounds)
        lower, upper = largest_correlated_sum(gram)
        assert lower <= high * (1 + 1e-12)
        assert upper >= low * (1 - 1e-12)
    monkeypatch.undo()
    lower, upper = largest_correlated_sum(gram, floor=1.2 * high)
    assert low <= upper <= 1.2 * high


def test_more_dimensions_gain_at_most_half_of_pi():
    """Theorem 5.1 of the monograph, for Gram matrices: pi / 2 (Nesterov) is below Grothendieck's constant."""
    signs = 1.0 - 2.0 * (np.arange(64)[:, None] >> np.arange(6) & 1)
    gains = []
    for seed in range(40):
        x = np.random.default_rng(seed).standard_normal((1 + seed % 6, 6))
        gram = x.T @ x
        one = np.einsum("ki,ij,kj->k", signs, gram, signs).max()  # in one dimension; s = t for a Gram matrix
        assert (signs @ gram @ signs.T).max() <= one * (1 + 1e-12)
        lower, upper = largest_correlated_sum(gram)
        assert one <= upper * (1 + 1e-9)
        assert upper <= np.pi / 2 * one
        gains.append(lower / one)
    assert max(gains) > 1.01  # and they do gain

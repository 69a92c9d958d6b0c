"""200 random (strategy, participation) pairs: never below the supremum over dimensions, equal where exact.

The supremum is searched from below: every pattern, every dimension m = 1 … k, by ascent over low-rank U.
"""

import numpy as np
import pytest

from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedToeplitz, Dense, Identity, Toeplitz
from tests.sensitivity.strategies_and_schemas import strategy

STARTS = 4  # random starts of each dimension
SOUND = 1 - 1e-10
TIGHT = 1e-6


def schema(rng, n):
    """Every kind, with k from 1 to more than fits, separations of 1 to more than n."""
    b = int(rng.integers(1, n // 2 + 1)) if n > 3 and rng.random() < 0.9 else int(rng.integers(1, n + 2))
    kinds = ["single", *4 * ["cyclic"], *8 * ["min-sep"], *4 * ["epochs"], *2 * ["full"], *4 * ["listed"]]
    match rng.choice(kinds):
        case "single":
            return Single()
        case "cyclic":
            return Cyclic(b)
        case "min-sep":
            most = -(-n // b)
            return MinSep(b, rng.choice([None, most, int(rng.integers(1, most + 1)), most + 2]))
        case "epochs":
            return OncePerEpoch(b)
        case "full":
            return FullBatch()
        case _:
            count = int(rng.integers(1, 6))
            return Patterns(
                [rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist() for _ in range(count)]
            )


def pair(seed):
    rng = np.random.default_rng([20, seed])
    drawn = next(
        found for found in iter(lambda: strategy(rng, 10), None) if found.n > 4 or rng.random() < 0.1
    )
    if drawn.rows == drawn.n and rng.random() < 0.7:  # signs of entries
        dense = drawn.to_dense()
        flipped = dense * np.where(rng.random(dense.shape) < 0.5, -1.0, 1.0)
        np.fill_diagonal(flipped, np.abs(dense.diagonal()))
        drawn = Dense(flipped)
    return drawn, schema(rng, drawn.n)


EDGES = {
    "three by three": (
        Dense([[0.0547, 0, 0], [-0.865, 0.8667, 0], [-0.4998, -0.4998, 1.0005]]),
        FullBatch(),
    ),
    "one step": (Identity(1), MinSep(1, 1)),
    "one band": (BandedToeplitz(7, [1.0]), MinSep(2, 4)),
    "odd n, b not dividing it": (BandedToeplitz(7, [1.0, -0.9, 0.8]), MinSep(3)),
    "k at its maximum": (BandedToeplitz(8, [1.0, -0.9, 0.8, -0.7, 0.6]), MinSep(2, 4)),
    "k one below its maximum": (BandedToeplitz(8, [1.0, -0.9, 0.8, -0.7, 0.6]), MinSep(2, 3)),
    "bands above the separation": (Toeplitz(8, [1.0, 0.9, -0.8, 0.7, 0.2, 0.1, 0.1, 0.3]), MinSep(3, 2)),
    "listed, mixed signs": (
        Dense([[1.0, 0, 0, 0], [-0.8, 1, 0, 0], [0.7, -0.9, 1, 0], [0.6, 0.5, -0.8, 1]]),
        Patterns([[0, 1, 2], [0, 2, 3], [1, 3]]),
    ),
    "once per epoch, the last one cut": (BandedToeplitz(7, [1.0, -0.9, 0.8]), OncePerEpoch(3)),
}


def supremum(dense, patterns, rng):
    """The largest ||C U||_F found over patterns and U of 1 … k columns: attained, so not above the truth."""
    gram = dense.T @ dense
    blocks = [gram[np.ix_(pattern, pattern)] for pattern in patterns]
    blocks.sort(key=lambda block: -np.abs(block).sum())
    best = 0.0
    for block in blocks:
        if np.abs(block).sum() <= best:
            break  # Lemma 3.15 (a): neither this pattern nor those after it can be larger
        best = max(best, block.sum() if (block >= 0).all() else ascended(block, rng))
    return float(np.sqrt(best))


def ascended(block, rng):
    """max tr(U^T M U) over unit rows, by block coordinates: all starts of all dimensions at once."""
    k = len(block)
    rows = rng.standard_normal((STARTS * k, k, k))
    rows *= (
        np.arange(k) <= np.repeat(np.arange(k), STARTS)[:, None, None]
    )  # the r-th start has r // STARTS + 1
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    off = block - np.diag(block.diagonal())
    values = np.full(len(rows), -np.inf)
    for _ in range(5000):
        for i in range(k):
            pull = np.einsum("j,rjm->rm", off[i], rows)
            length = np.linalg.norm(pull, axis=1, keepdims=True)
            rows[:, i] = np.where(length > 0, pull / np.maximum(length, 1e-300), rows[:, i])
        before, values = values, np.einsum("rim,ij,rjm->r", rows, block, rows)
        if (values - before).max() <= 1e-13 * values.max():  # the best of them may have stopped at a saddle
            break
    return float(values.max())


def check(drawn, participation, rng):
    found = sensitivity(drawn, participation)
    patterns = [np.array(pattern) for pattern in participation.patterns(drawn.n)]
    truth = supremum(drawn.to_dense(), patterns, rng)
    assert found.value >= truth * SOUND, f"{found} is below {truth}: {drawn!r}, {participation}"
    if found.exact:
        assert found.value <= truth * (1 + TIGHT), f"{found} is called exact, but {truth}: {participation}"
    assert found.theorem, found.method
    return found


@pytest.mark.slow
def test_no_sensitivity_is_below_the_supremum_over_dimensions():
    exact, kinds, mixed = 0, set(), 0
    for seed in range(200):
        drawn, participation = pair(seed)
        exact += check(drawn, participation, np.random.default_rng(seed)).exact
        kinds.add(type(participation))
        dense = drawn.to_dense()
        mixed += bool((dense.T @ dense).min() < -1e-9)
    assert kinds == {Single, Cyclic, MinSep, OncePerEpoch, FullBatch, Patterns}
    assert mixed >= 100
    assert 140 <= exact < 210


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    check(*EDGES[name], np.random.default_rng(0))


def test_one_dimension_is_not_enough():
    """The 3 x 3 example recomputed for this project: best signs 2.0008, every m >= 2 reaches 2.1220."""
    drawn, participation = EDGES["three by three"]
    dense = drawn.to_dense()
    signs = max(np.linalg.norm(dense @ [1, a, b]) for a in (1, -1) for b in (1, -1))
    assert signs == pytest.approx(2.0008, abs=5e-5)
    assert supremum(dense, [np.arange(3)], np.random.default_rng(0)) == pytest.approx(2.1220, abs=5e-5)
    assert sensitivity(drawn, participation).value == pytest.approx(2.1220, abs=5e-5)


def test_the_search_itself_reaches_what_is_known():
    """Three vectors at 120 degrees: M = I - J / 3 has the supremum 3, at dimension 2 only."""
    block = np.eye(3) - 1 / 3
    assert ascended(block, np.random.default_rng(1)) == pytest.approx(3.0, rel=1e-10)

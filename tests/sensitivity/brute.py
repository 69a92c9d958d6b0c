"""sens(C, Pi) by brute force, from its definition: every pattern, every dimension."""

from itertools import product

import numpy as np


def supremum(strategy, participation, *, restarts=4, sweeps=20_000, seed=0):
    """The largest ||C U||_F found over patterns and U: attained, hence never above the truth.

    On one pattern with C^T C >= 0 it is the sum of the entries; otherwise the best signs (dimension 1) and
    block-coordinate ascent over unit rows of dimension 2, …, k from random starts.
    """
    dense = strategy.to_dense()
    gram = dense.T @ dense
    rng = np.random.default_rng(seed)
    best = 0.0
    patterns = [np.array(pattern) for pattern in participation.patterns(strategy.n)]
    limits = [np.abs(gram[np.ix_(pattern, pattern)]).sum() for pattern in patterns]
    for index in np.argsort(limits)[::-1]:
        if limits[index] <= best:
            break  # Lemma 3.15(a): this pattern and those after it cannot be larger
        block = gram[np.ix_(patterns[index], patterns[index])]
        best = max(best, on_pattern(block, rng, restarts=restarts, sweeps=sweeps))
    return float(np.sqrt(best))


def on_pattern(block, rng, *, restarts=4, sweeps=20_000):
    k = len(block)
    if (block >= 0).all():
        return block.sum()
    best = max(s @ block @ s for s in sign_vectors(k)) if k <= 10 else 0.0
    for start in range(restarts):
        dimension = k if start == 0 else int(rng.integers(1, k + 1))
        best = max(best, ascend(block, rng.standard_normal((k, dimension)), sweeps))
    return best


def sign_vectors(k):
    for tail in product((1.0, -1.0), repeat=k - 1):
        yield np.array((1.0, *tail))


def ascend(block, rows, sweeps):
    """Move one row at a time to where it is best; the rows stay on the unit sphere."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    off = block - np.diag(block.diagonal())
    value = -np.inf
    for _ in range(sweeps):
        for i in range(len(block)):
            pull = off[i] @ rows
            length = np.linalg.norm(pull)
            if length > 0:
                rows[i] = pull / length
        before, value = value, float((block * (rows @ rows.T)).sum())
        if value - before <= 1e-14 * value:
            break
    return value

"""Arithmetic of trees over the steps: node i of height h covers the steps i k^h, …, (i + 1) k^h - 1.

Of all nodes only those count that are complete within a horizon: every leaf is one of its steps. They form
one tree for every unit of every base-k digit of the horizon, the largest trees first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array


def top_height(branching: int, horizon: int) -> int:
    """Height of the largest complete node, floor(log_k horizon)."""
    height = 0
    while branching ** (height + 1) <= horizon:
        height += 1
    return height


def height_at(step: int, branching: int, horizon: int) -> int:
    """Height of the tree that `step` is a leaf of."""
    height, width = 0, branching
    while (step // width + 1) * width <= horizon:
        height, width = height + 1, width * branching
    return height


def heights(n: int, branching: int, horizon: int) -> Array:
    """`height_at` of the first n steps, shape (n,), as floats: it never rises."""
    found = np.zeros(n)
    for h in range(1, top_height(branching, horizon) + 1):
        found[: horizon // branching**h * branching**h] += 1.0
    return found


def variances(branching: int, height: int) -> Array:
    """v_0, …, v_height: v_0 = 1, v_h = 1 / (1 + 1 / (k v_{h-1})), shape (height + 1,).

    v_h is the variance of the best estimate of a node's sum from itself and all nodes below it, each measured
    with variance 1; equally the variance of that sum in the model whose precision is the sum over these
    nodes of 1 1^T.

    References:
        Honaker, Efficient use of differentially private binary trees, TPDP 2015 (for k = 2).
    """
    found = np.ones(height + 1)
    for h in range(1, height + 1):
        found[h] = 1.0 / (1.0 + 1.0 / (branching * found[h - 1]))
    return found


def node_sums(x: Array, branching: int) -> list[Array]:
    """Sums of x over the complete nodes of each height, shapes (n // k^h, ...)."""
    sums = [x]
    while len(sums[-1]) >= branching:
        children = sums[-1][: len(sums[-1]) // branching * branching]
        sums.append(children.reshape(-1, branching, *x.shape[1:]).sum(axis=1))
    return sums


def shared_nodes(n: int, branching: int, horizon: int, lag: int) -> Array:
    """How many complete nodes hold both t and t + lag, shape (n - lag,)."""
    later = np.arange(lag, n)
    found = np.zeros(n - lag)
    for h in range(top_height(branching, horizon) + 1):
        width = branching**h
        if width > lag:
            inside = later[: max(0, horizon // width * width - lag)]
            found[: len(inside)] += inside % width >= lag
    return found


def comb_in_nodes(steps: NDArray[Any], branching: int, horizon: int) -> float:
    """Sum over the complete nodes of (number of the given sorted steps in it)^2."""
    total = 0.0
    for h in range(top_height(branching, horizon) + 1):
        width = branching**h
        nodes = steps[steps < horizon // width * width] // width
        if len(nodes):
            edges = np.flatnonzero(np.diff(nodes, prepend=-1, append=np.inf))
            total += float(np.square(np.diff(edges).astype(np.float64)).sum())
    return total


def digits(n: int, branching: int, weights: Array) -> Array:
    """sum_h weights[h] times digit h of t in base `branching`, for t = 1, …, n, shape (n,)."""
    count = np.arange(1, n + 1)
    terms = (count // branching**h % branching * weight for h, weight in enumerate(weights))
    return np.asarray(sum(terms, np.zeros(n)))

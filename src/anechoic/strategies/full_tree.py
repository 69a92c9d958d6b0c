"""Tree with the best linear estimate from all nodes, as a square lower-triangular strategy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, positive_int, rows_of
from anechoic.algebra import trees
from anechoic.strategies.base import SquareStrategy, Structure
from anechoic.strategies.tree import KAryTree


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class FullTree(KAryTree, SquareStrategy):
    """Sums over the nodes of a tree, with Honaker's full estimator $B = A C_tree^+$ ("full H2").

    C_tree is that of `Tree`: a row for each complete node. The pseudo-inverse uses nodes that are finished
    later, but the injected noise is Gaussian, and only its covariance matters: $S = (C_tree^T C_tree)^-1$.
    This class is the lower-triangular C with $C^T C = C_tree^T C_tree$ (Remark 1.17), so C^-1 Z has exactly
    that covariance, sensitivity and error are those of (A C_tree^+, C_tree), and it is causal.

    The precision of the noise is sum over nodes of 1 1^T, a tree-shaped model, so the mean of x_t given
    all earlier rows depends on them only through one sum for each open node:
    x_t = z_t / sqrt(1 + q_0) - sum_h (rho_0 … rho_{h-1}) P_h, where P_h is the sum over the finished children
    of the open node of height h; downwards from q = 0 at the root,
    q_{h-1} = 1 / (1 / (1 + q_h) + r v_{h-1}) with r its unfinished later children, rho_h = q_h / (1 + q_h).
    A stream keeps at most floor(log_k horizon) + 1 rows, where the monograph counts O(n).

    Args:
        n: steps, >= 1.
        branching: k, children of a node, >= 2.
        horizon: steps of the whole tree, >= n; None for n. A tree cut short keeps the horizon that it was
            made for: its noise depends on it. The next power of k pads the tree: without it many small trees
            add up where n lies just below that power (n = 1023: max loss 7.618, with 1024 it is 4.420).

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> tree = FullTree(4)
        >>> (tree.to_dense().T @ tree.to_dense()).round(9)
        array([[3., 2., 1., 1.],
               [2., 3., 1., 1.],
               [1., 1., 3., 2.],
               [1., 1., 2., 3.]])

    References:
        Monograph, Sections 2.7 and 2.12 and Remark 1.17; Honaker, TPDP 2015; Hay et al., VLDB 2010.
    """

    horizon: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        horizon = self.n if self.horizon is None else self.horizon
        remedy = f"The tree has at least n={self.n} steps."
        object.__setattr__(self, "horizon", positive_int("horizon", horizon, minimum=self.n, remedy=remedy))

    @property
    def _leaves(self) -> int:
        return cast("int", self.horizon)

    @cached_property
    def structure(self) -> Structure:
        # rows of C are those of conditional means of a model with non-negative precision: C >= 0
        bands = min(self.n, self.branching**self._height)
        return Structure(bands, bands, nonnegative=True)

    def multiply(self, x: ArrayLike) -> Array:
        x = rows_of(self.n, x)
        tail = (1,) * (x.ndim - 1)
        sums = np.concatenate([np.zeros((1, *x.shape[1:])), np.cumsum(x, axis=0)])
        t, out, weight = np.arange(self.n), x.copy(), np.ones(self.n)
        for h in range(1, self._height + 1):
            child, node = t // self.branching ** (h - 1), t // self.branching**h
            weight *= self._rho[h - 1][child]
            finished = sums[child * self.branching ** (h - 1)] - sums[node * self.branching**h]
            out += weight.reshape(-1, *tail) * finished
        return np.asarray(np.sqrt(self._precision).reshape(-1, *tail) * out)

    def solve(self, z: ArrayLike) -> Array:
        z = rows_of(self.n, z)
        k = self.branching
        out = np.empty_like(z)
        finished = np.zeros((self._height, *z.shape[1:]))
        for t in range(self.n):
            row = self._row(t)
            height = len(row) - 1
            out[t] = row[0] * z[t] + np.tensordot(row[1:], finished[:height], axes=1)
            g, carried = 0, out[t]
            while g < height and (t + 1) % k ** (g + 1) == 0:
                carried = carried + finished[g]
                finished[g] = 0.0
                g += 1
            if g < height:  # otherwise the tree is complete, and nothing is left of it
                finished[g] += carried
        return out

    def column_norms_squared(self) -> Array:
        return self.gram_diagonal(0)

    def largest_column_norm(self) -> float:
        if self.n == self._leaves:
            return float(np.sqrt(1.0 + self._height))
        return super().largest_column_norm()

    def comb_norm_squared(self, separation: int, count: int) -> float:
        steps = np.arange(count) * separation
        inside = [np.count_nonzero((first <= steps) & (steps < stop)) for first, stop in self._open.spans]
        partial = self._open.rows @ np.array(inside, dtype=np.float64)
        return trees.comb_in_nodes(steps, self.branching, self.n) + float(partial @ partial)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[t, t + lag], shape (n - lag,).

        The number of nodes that hold both steps, where those that n cuts short weigh less.
        """
        found = trees.shared_nodes(self.n, self.branching, self.n, lag)
        gram = self._open.rows.T @ self._open.rows
        for i, (first, stop) in enumerate(self._open.spans):
            for j, (later, end) in enumerate(self._open.spans):
                start, until = max(first, later - lag), min(stop, end - lag)
                if start < until:
                    found[start:until] += gram[i, j]
        return found

    def prefix_errors_squared(self) -> Array:
        """Squared row norms of A_pre C^-1, shape (n,).

        Trees are independent. Of a node with sum S of variance v_h, the first q leaves sum to q S / k^h plus
        what is independent of S; going down, d whole children and a part b of the next one add the variance
        v_{h-1} (d + b^2 - (d + b)^2 / k).
        """
        k, v = self.branching, trees.variances(self.branching, self._height)
        t = np.arange(self.n)
        height = trees.heights(self.n, k, self._leaves).astype(np.int64)
        whole = np.cumsum([self._leaves // k**h % k * v[h] for h in range(self._height, -1, -1)])[::-1]
        larger = np.append(whole, 0.0)[height + 1]  # trees of greater height, all of them finished
        width = k**height
        part = t % width + 1
        found = larger + v[height] * (t // width % k + np.square(part / width))
        for h in range(1, self._height + 1):
            d, b = part // k ** (h - 1) % k, part % k ** (h - 1) / k ** (h - 1)
            found += np.where(h <= height, v[h - 1] * (d + b**2 - np.square(d + b) / k), 0.0)
        return found

    def describe(self) -> str:
        cut = "" if self.n == self._leaves else f", horizon={self._leaves}"
        return f"FullTree(n={self.n}, branching={self.branching}{cut})"

    def _row(self, s: int) -> Array:
        """Coefficients of step s: of the fresh row, and of the sums over finished children."""
        k, height = self.branching, trees.height_at(s, self.branching, self._leaves)
        rho, q = np.empty(height), 0.0
        for h in range(height - 1, -1, -1):
            later = k - 1 - s // k**h % k
            q = 1.0 / (1.0 / (1.0 + q) + later * self._v[h])
            rho[h] = q / (1.0 + q)
        return np.concatenate([[1.0 / np.sqrt(1.0 + q)], -np.cumprod(rho)])

    @cached_property
    def _messages(self) -> tuple[list[Array], Array]:
        """rho of every node that holds one of the n steps, by height, and 1 + q of the leaves."""
        k, rho = self.branching, []
        precision = np.ones(0)
        for h in range(self._height, -1, -1):
            node = np.arange(-(-self.n // k**h))
            q = np.zeros(len(node))
            if h < self._height:
                below = (node // k + 1) * k ** (h + 1) <= self._leaves  # its parent is complete
                q[below] = 1.0 / (1.0 / precision[node[below] // k] + (k - 1 - node[below] % k) * self._v[h])
            precision = 1.0 + q
            rho.append(q / precision)
        return rho[::-1], precision

    @property
    def _rho(self) -> list[Array]:
        return self._messages[0]

    @property
    def _precision(self) -> Array:
        return self._messages[1]

    @cached_property
    def _open(self) -> _OpenNodes:
        return _open_nodes(self.n, self.branching, self._leaves)


@dataclass(frozen=True)
class _OpenNodes:
    """Rows w whose sum of w w^T is what nodes that step n finds open add to C^T C.

    Attributes:
        spans: (first step, step after the last) of the finished children of each open node, innermost first.
        rows: constant value of row i on span j, shape (nodes, nodes); it vanishes outside the spans.
    """

    spans: list[tuple[int, int]]
    rows: Array


def _open_nodes(n: int, k: int, horizon: int) -> _OpenNodes:
    """What the nodes cut by n still say of the first n steps.

    The sum S over an open node is p + F, with p a combination of the n steps, and F of variance V made of
    what comes later. Integrating F out of exp(-S^2 / 2) leaves weight w = 1 / (1 + V) on p^2, and S given p
    has mean w p and variance w V, which is what the next higher node sees.
    """
    v = trees.variances(k, trees.top_height(k, horizon))
    spans: list[tuple[int, int]] = []
    combinations: list[list[float]] = []
    weights: list[float] = []
    mean, spread = 0.0, 0.0
    for h in range(1, len(v)):
        width = k**h
        if (n // width + 1) * width > horizon:
            break
        if n % width == 0:
            continue  # not begun
        below = k ** (h - 1)
        later = k - n // below % k - (n % below > 0)
        spans.append((n // width * width, n // below * below))
        earlier = [mean * value for value in combinations[-1]] if combinations else []
        combinations.append([*earlier, 1.0])
        variance = spread + later * v[h - 1]
        mean = 1.0 / (1.0 + variance)
        spread = variance * mean
        weights.append(mean)
    rows = np.zeros((len(spans), len(spans)))
    for i, (values, weight) in enumerate(zip(combinations, weights, strict=True)):
        rows[i, : len(values)] = np.sqrt(weight) * np.array(values)
    return _OpenNodes(spans, rows)

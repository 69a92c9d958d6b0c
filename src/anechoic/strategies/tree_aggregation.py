"""Binary mechanism (no estimation): a prefix sum adds the noisy nodes of its digits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, rows_of
from anechoic.algebra import trees
from anechoic.strategies.base import SquareStrategy, Structure
from anechoic.strategies.tree import KAryTree


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class TreeAggregation(KAryTree, SquareStrategy):
    """Tree aggregation without any refinement; the "binary mechanism" for branching 2 (Section 2.7).

    A prefix sum of t steps adds the noisy sums of the nodes that the base-k digits of t name, k = branching:
    d nodes of height h for a digit d. Nodes that no prefix sum needs, which are the last children, are left
    out; what remains is one node for each step, the largest that ends there, and C is square: row t is 1 on
    the k^h steps that end with t, where k^h is the largest power that divides t + 1 (for k = 2 the matrix of
    a Fenwick tree).

    For n a power of 2 the max loss is sqrt(log2(n) (1 + log2(n))), which is the bound of Theorem 2.20. `Tree`
    and `FullTree` combine the nodes better; a stream keeps at most floor(log_k n) + 1 rows here too.

    Args:
        n: steps, >= 1.
        branching: k, children of a node, >= 2.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> TreeAggregation(4).to_dense()
        array([[1., 0., 0., 0.],
               [1., 1., 0., 0.],
               [0., 0., 1., 0.],
               [1., 1., 1., 1.]])

    References:
        Monograph, Section 2.7 and Theorem 2.20; Dwork, Naor, Pitassi and Rothblum, STOC 2010; Chan, Shi and
        Song, Private and continual release of statistics, TISSEC 2011.
    """

    @property
    def structure(self) -> Structure:
        bands = self.branching**self._height
        return Structure(bands, bands, nonnegative=True)

    def multiply(self, x: ArrayLike) -> Array:
        out = rows_of(self.n, x).copy()
        for h, sums in enumerate(trees.node_sums(out.copy(), self.branching)):
            out[self.branching**h - 1 :: self.branching**h] = sums
        return out

    def solve(self, z: ArrayLike) -> Array:
        z, k = rows_of(self.n, z), self.branching
        out = z.copy()
        for h in range(1, self._height + 1):
            # a node replaces its first k - 1 children in the prefix sum; its last child is not measured
            count = self.n // k**h
            children = z[k ** (h - 1) - 1 :: k ** (h - 1)][: count * k]
            out[k**h - 1 :: k**h] -= children.reshape(count, k, *z.shape[1:])[:, :-1].sum(axis=1)
        return out

    def column_norms_squared(self) -> Array:
        return self.gram_diagonal(0)

    def largest_column_norm(self) -> float:
        return float(np.sqrt(1.0 + self._height))  # the first step is in a node of every height

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[t, t + lag], the number of nodes that hold both steps, shape (n - lag,)."""
        found = np.zeros(self.n - lag)
        for h in range(self._height + 1):
            width, parent = self.branching**h, self.branching ** (h + 1)
            later = np.arange(lag, self.n // width * width)
            found[: len(later)] += (later % width >= lag) & (later % parent < parent - width)
        return found

    def prefix_errors_squared(self) -> Array:
        """Squared row norms of A_pre C^-1, the sums of the digits of 1, …, n, shape (n,)."""
        return trees.digits(self.n, self.branching, np.ones(self._height + 1))

    def _row(self, s: int) -> Array:
        """x_s is the noise of its node less that of the nodes it replaces: all children finished below."""
        row = np.zeros(1 + trees.height_at(s, self.branching, self.n))
        row[0] = 1.0
        for h in range(1, len(row)):
            if (s + 1) % self.branching**h:
                break
            row[h] = -1.0
        return row

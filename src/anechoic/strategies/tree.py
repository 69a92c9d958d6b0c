"""Tree with Honaker's estimation from below: one row of C a node, so C is rectangular (Section 2.7)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._serialize import serializable
from anechoic._validate import Array, positive_int, rows_of, steps_within
from anechoic.algebra import trees
from anechoic.noise.recurrence import Nested, Recurrence
from anechoic.strategies.base import Strategy, Structure, store_fields


@dataclass(frozen=True, eq=False, repr=False)
class KAryTree(Strategy):
    """A strategy of the nodes of a tree with `branching` children a node; a stream keeps a row a height."""

    branching: int = 2

    def __post_init__(self) -> None:
        branching = positive_int("branching", self.branching, minimum=2)
        store_fields(self, n=positive_int("n", self.n), branching=branching)

    @property
    def _leaves(self) -> int:
        return self.n

    @abstractmethod
    def _row(self, s: int) -> Array:
        """Coefficients of step s in the stream: of the fresh row, and of what is kept of each height."""

    def recurrence(self) -> Recurrence:
        return Nested(self.n, branching=self.branching, leaves=self._leaves, row=self._row)

    def truncate(self, steps: int) -> Self:
        return replace(self, n=steps_within(self.n, steps))

    def describe(self) -> str:
        return f"{type(self).__name__}(n={self.n}, branching={self.branching})"

    @cached_property
    def _height(self) -> int:
        return trees.top_height(self.branching, self._leaves)

    @cached_property
    def _v(self) -> Array:
        return trees.variances(self.branching, self._height)


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Tree(KAryTree):
    """Sums over the nodes of a tree, with Honaker's estimation from below ("streaming H2").

    Node i of height h covers the steps i k^h, …, (i + 1) k^h - 1, k = branching. C has one row of zeros and
    ones for each node that is complete, so that no n needs padding, and no column pays for a node that is
    never finished; the rows are in the order in which nodes are finished, lower nodes first (postorder).

    The estimate of a node combines its own noisy sum with those of its children, by inverse variance:
    y = v_h z + (1 - v_h) (y_child + … + y_child), of variance v_h = 1 / (1 + 1 / (k v_{h-1})), v_0 = 1. A
    prefix sum adds the estimates of the nodes that its base-k digits name. Only finished nodes enter, so
    the estimate is causal as it stands, and the first steps of a tree are themselves a `Tree`.

    The stream draws one row a step, not one a node: with L the left inverse, its rows are R Z' with R
    lower-triangular and R R^T = L L^T, which is the same release. A stream keeps at most
    floor(log_k n) + 1 rows.

    Its injected noise does not use all that the nodes tell; `FullTree` does, and is better at every n.
    `from_factorization(L, C)` gives the square strategy with this very noise, whose sensitivity is smaller.

    Args:
        n: steps, >= 1.
        branching: k, children of a node, >= 2.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> Tree(4).to_dense()
        array([[1., 0., 0., 0.],
               [0., 1., 0., 0.],
               [1., 1., 0., 0.],
               [0., 0., 1., 0.],
               [0., 0., 0., 1.],
               [0., 0., 1., 1.],
               [1., 1., 1., 1.]])

    References:
        Monograph, Section 2.7; Honaker, Efficient use of differentially private binary trees, TPDP 2015.
    """

    @property
    def rows(self) -> int:
        return sum(self.n // self.branching**h for h in range(self._height + 1))

    @cached_property
    def structure(self) -> Structure:
        bands = min(self.n, self.branching**self._height)  # trees of the forest do not interact
        return Structure(bands, bands, nonnegative=True)

    def multiply(self, x: ArrayLike) -> Array:
        x = rows_of(self.n, x)
        out = np.empty((self.rows, *x.shape[1:]))
        for h, sums in enumerate(trees.node_sums(x, self.branching)):
            out[self._rows_of_height(h)] = sums
        return out

    def correlate(self, z: ArrayLike) -> Array:
        z = rows_of(self.rows, z)
        estimates = z[self._rows_of_height(0)]
        out = estimates.copy()
        for h in range(1, self._height + 1):
            # at its last leaf a node replaces its children in the prefix sum
            width, count = self.branching**h, self.n // self.branching**h
            children = estimates[: count * self.branching].reshape(count, self.branching, *z.shape[1:])
            below = children.sum(axis=1)
            v = self._v[h]
            estimates = v * z[self._rows_of_height(h)] + (1.0 - v) * below
            out[width - 1 : count * width : width] += estimates - below
        return np.asarray(out)

    def column_norms_squared(self) -> Array:
        return 1.0 + trees.heights(self.n, self.branching, self.n)

    def largest_column_norm(self) -> float:
        return float(np.sqrt(1.0 + self._height))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        return trees.comb_in_nodes(np.arange(count) * separation, self.branching, self.n)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[t, t + lag], the number of nodes that hold both steps, shape (n - lag,)."""
        return trees.shared_nodes(self.n, self.branching, self.n, lag)

    def prefix_errors_squared(self) -> Array:
        """Squared row norms of A_pre L, shape (n,): the digits of t + 1 weigh the variances v_h."""
        return trees.digits(self.n, self.branching, self._v)

    def _rows_of_height(self, h: int) -> NDArray[Any]:
        """Rows of C of the nodes of height h: all nodes finished earlier or lower come first."""
        last = np.arange(1, self.n // self.branching**h + 1) * self.branching**h - 1
        return np.asarray(h + np.sum([last // self.branching**g for g in range(self._height + 1)], axis=0))

    def _row(self, s: int) -> Array:
        """Coefficients of step s: of the fresh row, and of the estimates that its finished node replaces.

        With M_g the estimates of the other children at height g, the node of height h that step s finishes is
        y_h = v_h z_h + (1 - v_h) (M_{h-1} + y_{h-1}), y_0 = z_0, and x_s = y_h - M_0 - … - M_{h-1}.
        The z_g occur nowhere else, so that one fresh row of the same variance stands for their sum.
        """
        k = self.branching
        row = np.zeros(1 + trees.height_at(s, k, self.n))
        row[0] = variance = 1.0
        for h in range(1, len(row)):
            if (s + 1) % k**h:
                break
            v = self._v[h]
            variance = v**2 + (1.0 - v) ** 2 * variance
            row[1:h] = (1.0 - v) * (1.0 + row[1:h]) - 1.0
            row[h] = (1.0 - v) - 1.0
        row[0] = np.sqrt(variance)
        return row

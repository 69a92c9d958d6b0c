"""A tree whose nodes sum their children with a strategy of their own, such as a BLT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, positive_int, rows_of, steps_within
from anechoic.algebra import trees
from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Recurrence,
    Stacked,
    StackStep,
    StateSpace,
)
from anechoic.strategies.base import SquareStrategy, Strategy, Structure


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class RecursiveTree(SquareStrategy):
    """Tree aggregation in which each node sums its children by a factorisation instead of one by one.

    The steps are the leaves of trees with k = base.n + 1 children a node. A prefix sum of t steps is, for
    each base-k digit d of t, the sum of the first d < k children of one node: a prefix sum of d terms, for
    which `base` is used. With `Identity` as the base this is `TreeAggregation`.

    The row of step t is that of `base` for the lowest digit of t + 1 that is not 0, on the sums over the
    children of that node, so that C is square and lower-triangular. With h digits, squared errors and squared
    column norms are at most h times those of the base, and so is the max loss. That of the best BLT of k
    steps is ln(k) / pi + O(1), and the number of digits is ln(n) / ln(k): so wide trees come near to ln(n) /
    pi, where tree aggregation has log2(n). A stream keeps for each digit one row and what the base keeps.

    Args:
        n: steps, >= 1.
        base: strategy of k - 1 >= 1 steps, square, for the first k - 1 children of a node.

    Raises:
        ValueError: if an argument is out of range, or the base is not square.

    Example:
        >>> from anechoic.strategies import BLT
        >>> RecursiveTree(5, BLT(2, [0.5], [0.9])).to_dense()
        array([[1. , 0. , 0. , 0. , 0. ],
               [0.5, 1. , 0. , 0. , 0. ],
               [1. , 1. , 1. , 0. , 0. ],
               [0. , 0. , 0. , 1. , 0. ],
               [0. , 0. , 0. , 0.5, 1. ]])

    References:
        Dvijotham, McMahan, Pillutla, Steinke and Thakurta, Efficient and near-optimal noise generation for
        streaming differential privacy, FOCS 2024 (trees over BLTs); monograph, Section 2.12.
    """

    base: Strategy

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", positive_int("n", self.n))
        if not isinstance(self.base, Strategy) or self.base.rows != self.base.n:
            raise ValueError(
                f"base={self.base!r} must be a strategy with a square matrix, such as a BLT: turn another one"
                " into a square one with strategies.from_factorization."
            )

    @property
    def branching(self) -> int:
        """k, children of a node."""
        return self.base.n + 1

    @cached_property
    def structure(self) -> Structure:
        k, inner = self.branching, self.base.structure
        lengths = [
            min(k - 1, self.n // k**h, inner.bands) * k**h for h in range(self._height + 1)
        ]  # the children in one row
        bands = min(self.n, max(lengths))
        return Structure(bands, bands, nonnegative=inner.nonnegative)

    def multiply(self, x: ArrayLike) -> Array:
        out = np.zeros_like(rows_of(self.n, x))
        for h, sums in enumerate(trees.node_sums(rows_of(self.n, x), self.branching)):
            self._scatter(self.base.multiply(self._by_node(sums)), out, h)
        return out

    def solve(self, z: ArrayLike) -> Array:
        z, k = rows_of(self.n, z), self.branching
        out = np.zeros_like(z)
        for h in range(self._height + 1):
            made = self.base.correlate(self._by_node(z[k**h - 1 :: k**h]))
            self._scatter(made, out, h, add=True)
            # the step that completes a node replaces what its children added up to
            whole = self.n // k ** (h + 1)
            out[k ** (h + 1) - 1 :: k ** (h + 1)] -= made.sum(axis=0)[:whole]
        return out

    def column_norms_squared(self) -> Array:
        k, found = self.branching, np.zeros(self.n)
        for h in range(self._height + 1):
            count = self.n // k**h
            norms = np.zeros(-(-count // k) * k)
            norms.reshape(-1, k)[:, : k - 1] = self.base.column_norms_squared()
            if count % k:  # of the last node only so many children are measured
                norms[-k:] = 0.0
                norms[-k:][: count % k] = self.base.truncate(count % k).column_norms_squared()
            found[: count * k**h] += np.repeat(norms[:count], k**h)
        return found

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[t, t + lag], shape (n - lag,): a sum over the nodes of which both are in measured children.

        It takes the k - 1 x k - 1 Gram matrix of the base.
        """
        k, step, found = self.branching, np.arange(self.n - lag), np.zeros(self.n - lag)
        for h in range(self._height + 1):
            count = self.n // k**h
            earlier, later = step // k**h, (step + lag) // k**h
            shared = np.flatnonzero((earlier // k == later // k) & (later < count) & (later % k < k - 1))
            node, i, j = earlier[shared] // k, earlier[shared] % k, later[shared] % k
            whole = node < count // k
            found[shared[whole]] += self._base_gram[i[whole], j[whole]]
            if not whole.all():  # of the last node only so many children are measured
                part = self.base.truncate(count % k).to_dense()
                found[shared[~whole]] += (part.T @ part)[i[~whole], j[~whole]]
        return found

    def prefix_errors_squared(self) -> Array:
        """Squared row norms of A_pre C^-1, shape (n,): the base's errors at the digits of 1, …, n."""
        k, count = self.branching, np.arange(1, self.n + 1)
        found = np.zeros(self.n)
        errors = np.concatenate([[0.0], self._base_errors])
        for h in range(self._height + 1):
            found += errors[count // k**h % k]
        return found

    def recurrence(self) -> Recurrence:
        steps = self._base_steps
        parts = [np.array([self.branching], dtype=np.float64), steps.parameters]
        return Stacked(
            self.n,
            step=self._step,
            depth=self._depth,
            deepest=sum(self._largest_block(h) for h in range(self._height + 1)),
            parameters=np.concatenate(parts),
            name=f"RecursiveTree of {steps.kind}",
            integral=steps.kind == "diagonal",
        )

    def truncate(self, steps: int) -> RecursiveTree:
        return RecursiveTree(steps_within(self.n, steps), self.base)

    def describe(self) -> str:
        return f"RecursiveTree(n={self.n}, base={self.base.describe()})"

    @cached_property
    def _height(self) -> int:
        return trees.top_height(self.branching, self.n)

    def _by_node(self, children: Array) -> Array:
        """The first k - 1 children of every node, shape (k - 1, nodes, ...), zero where there is none."""
        k = self.branching
        padded = np.zeros((-(-len(children) // k) * k, *children.shape[1:]))
        padded[: len(children)] = children
        return np.moveaxis(padded.reshape(-1, k, *children.shape[1:])[:, : k - 1], 1, 0)

    def _scatter(self, values: Array, out: Array, h: int, *, add: bool = False) -> None:
        """Put what `_by_node` ordered at the steps that finish these children."""
        k, width = self.branching, self.branching**h
        count = self.n // width
        flat = np.zeros((values.shape[1] * k, *values.shape[2:]))
        flat.reshape(-1, k, *values.shape[2:])[:, : k - 1] = np.moveaxis(values, 0, 1)
        child = np.arange(count)
        child = child[child % k < k - 1]
        steps = (child + 1) * width - 1
        out[steps] = flat[child] + (out[steps] if add else 0.0)

    @cached_property
    def _base_gram(self) -> Array:
        dense = self.base.to_dense()
        return np.asarray(dense.T @ dense)

    @cached_property
    def _base_errors(self) -> Array:
        """Squared row norms of A_pre C^-1 of the base, shape (k - 1,)."""
        first = np.zeros(self.base.n)
        first[0] = 1.0
        if self.base.structure.toeplitz:
            return np.cumsum(np.square(np.cumsum(self.base.correlate(first))))
        return np.asarray(np.square(np.cumsum(self.base.correlate(np.eye(self.base.n)), axis=0)).sum(axis=1))

    @cached_property
    def _base_steps(self) -> _BaseSteps:
        return _base_steps(self.base)

    def _block(self, digit: int) -> int:
        """Rows on the stack for a node with `digit` finished children: their sum, and the base's memory."""
        if digit == 0:
            return 0
        return 1 if digit == self.base.n else 1 + self._base_steps.memory(digit)

    def _largest_block(self, h: int) -> int:
        most = min(self.base.n, self.n // self.branching**h)
        return max(self._block(most), self._block(most - 1))  # memory shrinks at the last child only

    def _depth(self, s: int) -> int:
        found = 0
        while s:
            found, s = found + self._block(s % self.branching), s // self.branching
        return found

    def _step(self, s: int) -> StackStep:
        """On top of the stack: the block of the node whose child is finished, and the sums of l full nodes.

        The row is that of the base less those l sums; so what enters the base is the row plus those sums.
        """
        k, full, digits = self.branching, 0, s
        while digits % k == k - 1:
            digits, full = digits // k, full + 1
        done = digits % k  # children that the node had before
        lead, readout, transition, entry = self._base_steps.step(done)
        if done + 1 == k - 1:
            transition, entry = transition[:0], entry[:0]
        own = min(done, 1)
        mix = np.zeros((1 + len(entry), own + len(readout) + full))
        mix[0, :own] = 1.0
        mix[1:, own : own + len(readout)] = transition
        arriving = np.concatenate([[1.0], entry])
        mix[:, own + len(readout) :] = arriving[:, None]
        return StackStep(lead, np.concatenate([np.zeros(own), readout, -np.ones(full)]), mix, arriving)


class _BaseSteps(NamedTuple):
    """The noise of the base as x = lead z + readout^T m, m <- transition m + entry x."""

    kind: str
    memory: Callable[[int], int]  # rows after so many steps, >= 1
    step: Callable[[int], tuple[float, Array, Array, Array]]
    parameters: Array


def _base_steps(base: Strategy) -> _BaseSteps:
    """How the base's noise is made: with its own states where it has them, from the rows of C otherwise."""
    given = base.recurrence()
    if given.period is None and isinstance(given, MovingAverage) and given.window == 1:
        leads = np.array([given.row(i)[0] * given.gain(i) for i in range(base.n)])
        no, none = np.zeros(0), np.zeros((0, 0))
        return _BaseSteps("diagonal", lambda done: 0, lambda i: (float(leads[i]), no, none, no), leads)
    if given.period is None and isinstance(given, (Buffered, StateSpace)):
        return _of_states(given)
    return _of_rows(base, given)


def _of_states(given: Buffered | StateSpace) -> _BaseSteps:
    def step(i: int) -> tuple[float, Array, Array, Array]:
        own, gain = given.step(i), given.gain(i)  # the state is one of rows before their gain
        scale = gain / own.divisor
        return scale * own.lead, scale * own.readout, own.mix, own.entry / gain

    usual, gains = given.step(1), np.zeros(0) if given.gains is None else given.gains
    parts = [np.array([usual.divisor]), -usual.readout, usual.mix.ravel(), usual.entry, gains]
    return _BaseSteps("states", lambda done: given.rows, step, np.concatenate(parts))


def _of_rows(base: Strategy, given: Recurrence) -> _BaseSteps:
    window: int
    row: Callable[[int], Array]
    if isinstance(given, Autoregressive) and given.period is None and given.gains is None:
        window, row = given.window, given.row
    else:
        dense, window = base.to_dense(), base.structure.bands
        row = lambda i: dense[i, max(0, i - window + 1) : i + 1][::-1]  # noqa: E731

    def step(i: int) -> tuple[float, Array, Array, Array]:
        coefficients = row(i)
        before, after = min(i, window - 1), min(i + 1, window - 1)
        entry = np.zeros(after)
        entry[:1] = 1.0
        lead = 1.0 / float(coefficients[0])
        return lead, -coefficients[1:] * lead, np.eye(after, before, -1), entry

    rows = np.concatenate([row(i) for i in range(base.n)])
    return _BaseSteps("rows", lambda done: min(done, window - 1), step, rows)

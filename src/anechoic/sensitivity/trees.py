"""Trees under minimum separation: sens^2 is the largest sum over nodes of (participations in the node)^2.

The entries of C^T C are >= 0 and count the nodes that two steps share, so the sum of the entries on a pattern
is that sum of squares, and sens^2 its maximum (Lemma 3.15 b). `TreeAggregation` measures no last children.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.sensitivity import theorems
from anechoic.sensitivity.bounds import bounds_of_class
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import FullTree, Tree
from anechoic.strategies.base import Strategy
from anechoic.strategies.tree_aggregation import TreeAggregation

WORK = 1_000_000_000  # numbers that the dynamic programme may look up

# What one node allows: (participations in it, their value) -> for each first step that is allowed in it, the
# earliest first step that is then allowed in the node after it.
Table = dict[tuple[int, int], NDArray[Any]]


def by_heights(strategy: Tree | FullTree | TreeAggregation, separation: int, count: int) -> float:
    """A bound of the maximum, in O(log n): nodes that are cut short weigh less than whole ones.

    So do nodes that are not measured. A node of k^h steps holds at most q = ceil(k^h / b) participations; the
    squares of numbers <= q of a given sum are largest if as many as possible are q.
    """
    total, width = 0, 1
    horizon = getattr(strategy, "horizon", None) or strategy.n  # of the whole tree
    while width <= horizon:
        nodes, most = horizon // width, -(-width // separation)
        full = min(nodes, count // most)
        rest = count - full * most if full < nodes else 0
        total += full * most**2 + rest**2
        width *= strategy.branching
    return float(total)


@bounds_of_class.register(Tree)
@bounds_of_class.register(FullTree)
@bounds_of_class.register(TreeAggregation)
def _(strategy: Tree | FullTree | TreeAggregation, separation: int, count: int) -> Iterator[Sensitivity]:
    squared, method = (
        by_heights(strategy, separation, count),
        "most participations that nodes of each height can hold",
    )
    yield Sensitivity.of_squared(squared, False, method, theorems.TREES)


def best_pattern(strategy: Strategy, separation: int, count: int) -> float | None:
    """The maximum itself, or None where C is no whole tree, or the programme too large.

    Nodes of one kind are alike, so one table a kind is enough. Of two ways to hold c participations from the
    same first step on, one that is worth no less and lets the next node begin no later makes the other
    superfluous.
    """
    programme = _Programme(separation, count)
    try:
        nodes = nodes_of(strategy, programme)
        if nodes is None:
            return None
        state: Table = {(0, 0): np.zeros(1, dtype=np.int64)}
        for node in nodes:
            state = programme.join(state, node)
    except _TooLong:
        return None
    return float(max(value for _, value in state))


@singledispatch
def nodes_of(strategy: Strategy, programme: _Programme) -> Iterator[Table] | None:
    """The nodes of a strategy that is a whole tree, as tables; None for all others."""
    return None


@nodes_of.register(Tree)
def _(strategy: Tree, programme: _Programme) -> Iterator[Table]:
    return _whole_trees(strategy, programme)


@nodes_of.register(FullTree)
def _(strategy: FullTree, programme: _Programme) -> Iterator[Table] | None:
    return _whole_trees(strategy, programme) if strategy.horizon in (None, strategy.n) else None


@nodes_of.register(TreeAggregation)
def _(strategy: TreeAggregation, programme: _Programme) -> Iterator[Table]:
    return _whole_trees(strategy, programme, counted_last=False)


def _whole_trees(
    strategy: Tree | FullTree | TreeAggregation, programme: _Programme, *, counted_last: bool = True
) -> Iterator[Table]:
    """The trees that the steps make up; all their nodes count, last children where `counted_last`."""
    k, n, inside = strategy.branching, strategy.n, programme.leaf()
    tables = [_counted(inside)]
    while k ** len(tables) <= n:
        last = tables[-1] if counted_last else inside
        inside = programme.nothing()
        for child in [tables[-1]] * (k - 1) + [last]:
            inside = programme.join(inside, child)
        tables.append(_counted(inside))
    for h in range(len(tables) - 1, -1, -1):
        yield from [tables[h]] * (n // k**h % k)


class _TooLong(Exception):
    """The programme would look up more than WORK numbers."""


class _Programme:
    """Joins of tables, for one separation and one largest number of participations."""

    def __init__(self, separation: int, count: int) -> None:
        self._count = count
        self._first = np.arange(separation)
        self._never = np.full(separation, separation)  # later than any step that is allowed
        self._work = 0

    def nothing(self) -> Table:
        """No steps."""
        return {(0, 0): self._first}

    def leaf(self) -> Table:
        """One step, which does not count itself."""
        later = len(self._first) - 1
        once = np.where(self._first == 0, later, later + 1)
        return {(0, 0): np.maximum(self._first - 1, 0), (1, 0): once}

    def join(self, earlier: Table, later: Table) -> Table:
        """The steps of both, one after the other."""
        self._work += len(earlier) * len(later) * len(self._first)
        if self._work > WORK:
            raise _TooLong
        return _pruned(_one_after_the_other(earlier, later, self._count), self._never)


def _counted(inside: Table) -> Table:
    """A node: what is inside it, and the square of how much that is."""
    return {(c, value + c * c): after for (c, value), after in inside.items()}


def _one_after_the_other(earlier: Table, later: Table, count: int) -> Table:
    found: Table = {}
    for (c, value), before in earlier.items():
        for (more, gain), after in later.items():
            if c + more <= count:
                step = np.append(after, len(after))[before]  # what is not allowed stays so
                key = (c + more, value + gain)
                found[key] = np.minimum(found[key], step) if key in found else step
    return found


def _pruned(table: Table, never: NDArray[Any]) -> Table:
    kept: Table = {}
    best: dict[int, NDArray[Any]] = {}
    for c, value in sorted(table, key=lambda key: -key[1]):
        after = table[c, value]
        reached = best.get(c, np.full(len(after), len(never)))
        if (after < reached).any():
            kept[c, value] = np.where(after < reached, after, len(never))
            best[c] = np.minimum(reached, after)
    return kept

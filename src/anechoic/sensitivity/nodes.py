"""Trees under minimum separation: sens^2 is the largest sum over nodes of (participations in the node)^2.

The entries of C^T C are >= 0 and count the nodes that two steps share, so the sum of the entries on a pattern
is that sum of squares, and sens^2 its maximum (Lemma 3.15 b). `TreeAggregation` measures no last children.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.strategies import FullTree, Strategy, Tree, TreeAggregation

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
    while width <= _horizon(strategy):
        nodes, most = _horizon(strategy) // width, -(-width // separation)
        full = min(nodes, count // most)
        rest = count - full * most if full < nodes else 0
        total += full * most**2 + rest**2
        width *= strategy.branching
    return float(total)


def best_pattern(strategy: Strategy, separation: int, count: int) -> float | None:
    """The maximum itself, or None where C is no whole tree, or the programme too large.

    Nodes of one height are alike, so one table a height is enough, and another one for a last child that does
    not count itself. Of two ways to hold c participations from the same first step on, one that is worth no
    less and lets the next node begin no later makes the other superfluous.
    """
    if not isinstance(strategy, (Tree, FullTree, TreeAggregation)) or _horizon(strategy) != strategy.n:
        return None
    k, n = strategy.branching, strategy.n
    first = np.arange(separation)
    never = np.full(separation, separation)  # later than any step that is allowed
    once = np.where(first == 0, separation - 1, separation)
    tables: list[Table] = [{(0, 0): np.maximum(first - 1, 0), (1, 1): once}]
    last = tables[0]
    if isinstance(strategy, TreeAggregation):
        last = {(c, 0): after for (c, _), after in tables[0].items()}
    work = 0
    while k ** len(tables) <= n:
        found: Table = {(0, 0): first}
        for child in [tables[-1]] * (k - 1) + [last]:
            work += len(found) * len(child) * separation
            if work > WORK:
                return None
            found = _pruned(_one_after_the_other(found, child, count), never)
        tables.append({(c, value + c * c): after for (c, value), after in found.items()})
        last = found if isinstance(strategy, TreeAggregation) else tables[-1]
    state: Table = {(0, 0): np.zeros(1, dtype=np.int64)}
    for h in range(len(tables) - 1, -1, -1):
        for _ in range(n // k**h % k):
            state = _pruned(_one_after_the_other(state, tables[h], count), never)
    return float(max(value for _, value in state))


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


def _horizon(strategy: Tree | FullTree | TreeAggregation) -> int:
    return strategy.horizon or strategy.n if isinstance(strategy, FullTree) else strategy.n

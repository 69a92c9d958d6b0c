"""Trees under minimum separation, bounded by the participations that nodes of each height can hold."""

from __future__ import annotations

from collections.abc import Iterator

from anechoic.sensitivity import nodes, theorems
from anechoic.sensitivity.bounds import bounds_of_kind
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import FullTree, Tree
from anechoic.strategies.tree_aggregation import TreeAggregation


@bounds_of_kind.register(Tree)
@bounds_of_kind.register(FullTree)
@bounds_of_kind.register(TreeAggregation)
def _(strategy: Tree | FullTree | TreeAggregation, separation: int, count: int) -> Iterator[Sensitivity]:
    squared = nodes.by_heights(strategy, separation, count)
    yield Sensitivity.of_squared(
        squared, False, "most participations that nodes of each height can hold", theorems.TREES
    )

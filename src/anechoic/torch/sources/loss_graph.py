"""What the graph of a loss shows of it while its backward pass runs: class weights under reduction "mean".

Such a loss is divided by the sum of the weights of all rows' classes, so each row's gradient depends on the
classes of the others. The loss is the training script's own; but whoever is called in its backward pass
finds the tensors that it began with among the callers, and from there the nodes that made them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_MEAN, _SUM = 1, 2  # of torch's enum of reductions
WEIGHTED = (
    'class weights under reduction "mean" divide the loss by the sum of the weights of all rows\' classes, so'
    " the gradient of one row depends on the classes of the others, and clipping it does not bound what they"
    ' change. Take cross_entropy(…, weight=weight, reduction="none").mean(), which divides by a constant.'
)


def check_divisor(ends: Iterable[Any]) -> str:
    """What is wrong with the loss whose backward pass runs: a sentence, or "" where nothing is seen.

    Args:
        ends: nodes of the model's outputs, behind which the graph is the model's.
    """
    seen, todo = set(ends), [root.grad_fn for root in _roots()]
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("NllLoss") and node._saved_reduction == _MEAN and _weighted(node):
            return WEIGHTED
        todo.extend(before for before, _ in node.next_functions)
    return ""


def is_summed() -> bool:
    """Whether the loss whose backward pass runs is itself what a criterion gave under reduction "sum"."""
    return any(getattr(root.grad_fn, "_saved_reduction", None) == _SUM for root in _roots())


def _weighted(node: Any) -> bool:
    """Whether class weights were given; once the node has run they cannot be read any more."""
    try:
        return node._saved_weight is not None
    except RuntimeError:
        return True


def _roots() -> tuple[Tensor, ...]:
    """What backward() was called on; empty where no backward pass is found."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)  # private: another torch may lack it
    if run is None:
        return ()
    # on a GPU this is another thread than the one that called backward(), and waits
    frames: list[FrameType | None] = [sys._getframe(), *sys._current_frames().values()]
    for frame in frames:
        while frame is not None:
            if frame.f_code is run.__code__:
                roots: tuple[Tensor, ...] = tuple(frame.f_locals["t_outputs"])
                return roots
            frame = frame.f_back
    return ()

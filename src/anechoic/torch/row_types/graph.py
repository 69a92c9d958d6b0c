"""What the graph of a loss shows: the models that it was computed with, and where backward() began."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor


def reached(loss: Tensor) -> tuple[list[Any], bool]:
    """The runs whose models a loss was computed with; whether it reaches anything else with a gradient."""
    found: list[Any] = []
    others, seen_nodes, todo = False, set(), [loss.grad_fn]
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen_nodes:
            continue
        seen_nodes.add(node)
        types = getattr(node, "types", None)
        if types is not None:
            if types.active and types not in found:
                found.append(types)
            continue
        others = others or hasattr(node, "variable")
        todo.extend(before for before, _ in node.next_functions)
    return found, others


def running_roots() -> tuple[Tensor, ...]:
    """What the backward() that runs was called on; empty where none is found."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)  # private: another torch may lack it
    if run is None:
        return ()
    # on a GPU this is another thread than the one that called backward(), and waits
    frames: list[FrameType | None] = [sys._getframe(), *sys._current_frames().values()]
    try:
        for frame in frames:
            while frame is not None:
                if frame.f_code is run.__code__:
                    roots: tuple[Tensor, ...] = tuple(frame.f_locals["t_outputs"])
                    return roots
                frame = frame.f_back
        return ()
    finally:
        frames.clear()  # a frame that is kept keeps the graph of the loss, and with it the run
        frame = None

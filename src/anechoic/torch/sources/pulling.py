"""Gradients by plain autograd that leave p.grad, and the hooks on parameters, as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from anechoic.errors import UnsupportedError


def pulled(outputs: list[Tensor], parameters: list[nn.Parameter], cotangents: list[Tensor]) -> list[Any]:
    """Gradients of the parameters by plain autograd; None where there is none. p.grad stays as it is.

    Raises:
        UnsupportedError: where autograd cannot.
    """
    try:
        if _backward_inside(outputs):
            return _by_backward(outputs, parameters, cotangents)
        return list(torch.autograd.grad(outputs, parameters, cotangents, allow_unused=True))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnsupportedError(f"autograd cannot give the gradient of one row: {error}") from error


def _by_backward(
    outputs: list[Tensor], parameters: list[nn.Parameter], cotangents: list[Tensor]
) -> list[Any]:
    kept = [p.grad for p in parameters]
    tables = [hooks for p in parameters if (hooks := getattr(p, "_post_accumulate_grad_hooks", None))]
    hooks = [dict(table) for table in tables]
    try:
        for table in tables:
            table.clear()
        for p in parameters:
            p.grad = None
        torch.autograd.backward(outputs, cotangents)
        return [p.grad for p in parameters]
    finally:
        for p, gradient in zip(parameters, kept, strict=True):
            p.grad = gradient
        for table, own in zip(tables, hooks, strict=True):
            table.update(own)


def _backward_inside(outputs: list[Tensor]) -> bool:
    """Whether a function written in Python is part of their graph, as in reentrant checkpointing.

    Its backward pass may run another one, which knows backward() alone: autograd.grad leaves it out unseen.
    """
    found: list[Any] = [output.grad_fn for output in outputs]
    seen = set()
    while found:
        node = found.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        found.extend(following for following, _ in node.next_functions)
    return False

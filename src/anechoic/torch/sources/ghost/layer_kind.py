"""Kinds of layers under ghost clipping, and what one call of a layer leaves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.torch.sources.ghost.factored_gradients import MemoryAllowance, RowGradients

Parameters = dict[str, Tensor | None]


@dataclass(frozen=True, eq=False)
class BackwardCall:
    """One call of a layer in a backward pass.

    Attributes:
        layer: what was called.
        given: its input, rows first.
        backprop: the gradient at its output, rows first.
        options: of the layer, when it was called.
        versions: of both tensors, when the backward pass came by.
    """

    layer: nn.Module
    given: Tensor
    backprop: Tensor
    options: tuple[Any, ...] = ()
    versions: tuple[int, int] = (0, 0)

    def changed(self, kind: LayerKind | None) -> bool:
        """Whether layer (now of `kind`) or tensors are no longer what they were in the pass."""
        now = (self.given._version, self.backprop._version)
        return kind is None or self.options != kind.options(self.layer) or self.versions != now

    def rows(self, keep: Tensor) -> BackwardCall:
        """The same call for some of the rows only."""
        return BackwardCall(self.layer, self.given[keep], self.backprop[keep], self.options)


class LayerKind(ABC):
    """Class of layers that ghost clipping knows.

    Attributes:
        time_first: whether axis 0 may be time (batch_first), in inputs of more than the fewest axes.
    """

    time_first = True

    def fault(self, layer: Any) -> str:
        """Why the options of `layer` are not on the list, or ""."""
        return ""

    def options(self, layer: Any) -> tuple[Any, ...]:
        """Attributes that the gradients of the rows are computed by."""
        return ()

    @abstractmethod
    def leading(self, layer: Any) -> tuple[int, int]:
        """Fewest and most axes of an input."""

    @abstractmethod
    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        """The layer's output for x, from `weights`, differentiable with respect to x."""

    @abstractmethod
    def gradients(
        self, calls: list[BackwardCall], budget: MemoryAllowance
    ) -> dict[str, Callable[[], RowGradients]]:
        """Makers of the gradients of the rows with respect to each parameter, over all calls of one layer."""


def positions(tensor: Tensor) -> Tensor:
    """(rows, …, features) as (rows, positions, features)."""
    return tensor.reshape(len(tensor), math.prod(tensor.shape[1:-1]), tensor.shape[-1])


def joined(parts: list[Tensor], axis: int) -> Tensor:
    return torch.cat(parts, dim=axis) if len(parts) > 1 else parts[0]


def per_row(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:])


def total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]

"""Layers that look lines up in a table: an example moves the lines that it names, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anechoic.torch.sources.ghost.kind import BackwardCall, Kind, Parameters, joined, per_row, positions
from anechoic.torch.sources.ghost.rows import Budget, RowGradients, Scattered


class Lookup(Kind):
    """nn.Embedding."""

    def fault(self, layer: Any) -> str:
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(layer, name):
                return f"{name}={getattr(layer, name)!r}"
        return ""

    def leading(self, layer: Any) -> tuple[int, int]:
        return 1, 99

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        return F.embedding(x, weights["weight"], layer.padding_idx)  # type: ignore[arg-type]

    def gradients(self, calls: list[BackwardCall], budget: Budget) -> dict[str, Callable[[], RowGradients]]:
        layer: Any = calls[0].layer

        def weight() -> RowGradients:
            rows = len(calls[0].given)
            lines = joined([call.given.reshape(rows, per_row(call.given)) for call in calls], 1)
            values = joined([positions(call.backprop) for call in calls], 1)
            if layer.padding_idx is not None:
                values = values.masked_fill((lines == layer.padding_idx).unsqueeze(-1), 0)
            return Scattered(lines.long(), values, layer.weight.shape[0])

        return {"weight": weight}


class Bag(Lookup):
    """nn.EmbeddingBag for bags of one length: an input of two axes, neither offsets nor weights."""

    def fault(self, layer: Any) -> str:
        return f"mode={layer.mode!r} (only 'sum' and 'mean')" if layer.mode == "max" else super().fault(layer)

    def options(self, layer: Any) -> tuple[Any, ...]:
        return layer.mode, layer.padding_idx

    def leading(self, layer: Any) -> tuple[int, int]:
        return 2, 2

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        table: Any = weights["weight"]
        return F.embedding_bag(x, table, mode=layer.mode, padding_idx=layer.padding_idx)

    def gradients(self, calls: list[BackwardCall], budget: Budget) -> dict[str, Callable[[], RowGradients]]:
        layer: Any = calls[0].layer

        def weight() -> RowGradients:
            lines = joined([call.given for call in calls], 1)
            values = joined([self._of_words(layer, call) for call in calls], 1)
            return Scattered(lines.long(), values, layer.weight.shape[0])

        return {"weight": weight}

    @staticmethod
    def _of_words(layer: Any, call: BackwardCall) -> Tensor:
        """What each word adds to its line: (rows, words, width)."""
        words = call.given
        counts = torch.ones_like(words) if layer.padding_idx is None else words != layer.padding_idx
        shares = counts.double()
        if layer.mode == "mean":
            shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1)
        made = call.backprop.double().unsqueeze(1) * shares.unsqueeze(2)
        # what is left out has no part in it, though the backprop be infinite
        return made.masked_fill((shares == 0).unsqueeze(2), 0)

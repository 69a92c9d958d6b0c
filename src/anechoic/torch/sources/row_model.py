"""A model that is run row by row: its weights, and what was seen of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.torch.sources.stateless import called

logger = logging.getLogger("anechoic")

#: By how much weights `nearby` are off, relative to each.
NEARBY = 2.0**-8


class RowModel:
    """A model that is run row by row.

    Args:
        module: the plain one.
        parameters: those whose gradients are wanted, in this order.
        batch_first: whether the first dimension of inputs and outputs is the batch, or the second one.

    Attributes:
        loops: why rows were last taken one after another; "" while vmap runs the model.
        draws: whether it was seen to draw random numbers.
        decides: whether it was seen to decide something by its data.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], batch_first: bool) -> None:
        self.module, self.parameters = module, parameters
        self.dimension = 0 if batch_first else 1
        self.loops = ""
        self.draws = self.decides = False
        self._others: dict[str, Tensor] | None = None
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names[id(p)] for p in parameters]

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, as they are now, or those `nearby`."""
        if self._others is not None:
            return self._others
        return {name: p.detach() for name, p in zip(self._names, self.parameters, strict=True)}

    @contextmanager
    def nearby(self, seed: int) -> Iterator[None]:
        """Run with weights that are a little off: no row is at a kink of the model then."""
        draw = torch.Generator().manual_seed(seed)
        self._others = {
            name: p * (1 + NEARBY * torch.randn(p.shape, generator=draw).to(p))
            for name, p in self.weights().items()
        }
        try:
            yield
        finally:
            self._others = None

    def run(self, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, list[Any]]:
        """(the module's outputs, the weights that they were computed with)."""
        if self._others is None:
            return self.module(*arguments, **keywords), list(self.parameters)
        leaves = {name: p.detach().requires_grad_() for name, p in self._others.items()}
        return called(self.module, leaves, arguments, keywords), self.gradients(leaves)

    def gradients(self, found: dict[str, Tensor]) -> list[Tensor]:
        """In the order of the parameters."""
        return [found[name] for name in self._names]

    def told(self, reason: str) -> None:
        """vmap could not run it: say so once."""
        if not self.loops:
            logger.warning(
                "torch.func.vmap cannot run this model, so its rows are taken one after another, which is"
                " right and slow: %s",
                reason.strip().split("\n")[0],
            )
        self.loops = reason

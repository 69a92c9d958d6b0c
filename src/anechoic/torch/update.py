"""The update: the user's optimizer as it is, stepped from within a release alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from anechoic.errors import GuaranteeError


class Update:
    """Hands noisy gradients to an optimizer and steps it; refuses every other step of it.

    Args:
        optimizer: the user's.
        parameters: those that gradients are released for, in their order.
    """

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._parameters = parameters
        self._allowed = False
        self._guard = optimizer.register_step_pre_hook(self._check)

    def put(self, gradients: list[Tensor]) -> None:
        """Put released gradients into p.grad."""
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient

    def step(self) -> Any:
        """Step the optimizer; what it returns."""
        self._allowed = True
        try:
            return self.optimizer.step()
        finally:
            self._allowed = False

    def detach(self) -> None:
        """Let go of the optimizer: it may be stepped by anyone."""
        self._guard.remove()

    def _check(self, *_: Any) -> None:
        if not self._allowed:
            raise GuaranteeError(
                "the optimizer given to make_private was stepped directly, with gradients that are neither"
                " clipped nor noisy: step the one that make_private returned."
            )

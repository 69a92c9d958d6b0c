"""What must stay as it is between two releases: trainable parameters, buffers, frozen parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError

#: Entries of buffers and frozen parameters that are kept as a copy; the others go by their version counters.
COPIED = 1_000_000


class Watch:
    """Remembers tensors of the model, and refuses a release where something else than step() changed them.

    Args:
        parameters: the trainable ones.
        still: buffers and frozen parameters, by name: those that training never changes.
    """

    def __init__(self, parameters: list[nn.Parameter], still: Callable[[], dict[str, Tensor]]) -> None:
        self._parameters, self._still = parameters, still
        self.retake()

    def retake(self) -> None:
        """Take all tensors as they are now."""
        self._kept = _kept(self._still())
        self.released()

    def released(self) -> None:
        """Take the trainable parameters as they are now: step() has just changed them."""
        self._versions = [(id(p), p._version) for p in self._parameters]

    def check(self) -> None:
        """Compare with what was taken.

        Raises:
            GuaranteeError: naming what changed.
        """
        now = self._still()
        changed = [name for name in now.keys() | self._kept.keys() if not self._same(name, now.get(name))]
        if changed:
            raise GuaranteeError(
                f"{min(changed)} changed during training without noise: buffers"
                " (such as the statistics of batch normalisation) and frozen parameters must stay as they"
                " are. Keep such layers in eval() mode, or replace them."
            )
        if [(id(p), p._version) for p in self._parameters] != self._versions:
            raise GuaranteeError(
                "a trainable parameter was changed by something else than optimizer.step(), which alone clips"
                " and adds noise: a second optimizer, an edit in place (p.sub_(p.grad)), or a layer that"
                " changes its own weights. Load weights after make_private and before the first batch; to"
                " evaluate averaged weights, put them into a copy of the model."
            )

    def _same(self, name: str, tensor: Tensor | None) -> bool:
        kept = self._kept.get(name)
        if kept is None or tensor is None:
            return False
        if not isinstance(kept, Tensor):
            return kept == (id(tensor), tensor._version)
        if (kept.shape, kept.dtype, kept.device) != (tensor.shape, tensor.dtype, tensor.device):
            return False
        return torch.equal(bits(kept), bits(tensor.detach()))


def _kept(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Copies of the smallest tensors, up to COPIED entries in all; versions of the others."""
    found: dict[str, Any] = {}
    total = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].numel()):
        total += tensor.numel()
        dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
        copied = dense and total <= COPIED
        found[name] = tensor.detach().clone() if copied else (id(tensor), tensor._version)
    return found


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in one axis."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)  # a NaN equals itself

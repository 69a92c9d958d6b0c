"""Per-example gradients: clipped and summed; what must not mix them; what Opacus's hooks leave behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.unit_batch import UnitBatch

#: Layers whose output for one example depends on the others of the batch, unless in eval() mode.
MIXING = (nn.modules.batchnorm._BatchNorm,)
#: Entries whose norm is taken in float32, which falls short by at most 4e-6 over so many; parts are combined
#: in float64. The slack covers what is lost, where layers have more entries than `_FEW`.
_CHUNK = 2**12
_FEW = 2**8
_SLACK = 1e-5


def check_not_mixing(layers: Iterable[nn.Module]) -> None:
    """Refuse batch normalisation in train() mode, trainable or not: it mixes the examples of a batch.

    Raises:
        GuaranteeError: if one of the layers is in train() mode.
    """
    if any(layer.training for layer in layers if isinstance(layer, MIXING)):
        raise GuaranteeError(
            "a batch normalisation layer is in train() mode: it mixes the examples of a batch, so clipping"
            " one example's gradient does not bound what it changes. Keep it in eval() mode throughout, or"
            " replace it: PrivacyEngine.get_compatible_module does."
        )


def clear_hooks(module: Any) -> None:
    """Drop what Opacus's hooks keep between a forward and a backward pass, of which one was interrupted."""
    inner: nn.Module = module._module
    for layer in inner.modules():
        for name in ("activations", "max_batch_len"):
            if hasattr(layer, name):
                delattr(layer, name)
    for p in inner.parameters():
        if hasattr(p, "_forward_counter"):
            p._forward_counter = 0
        if hasattr(p, "_current_grad_sample"):
            del p._current_grad_sample
    if hasattr(module, "enable_hooks"):
        module.enable_hooks()


def item_gradients(samples: list[Tensor], batch: UnitBatch) -> list[Tensor]:
    """Gradients of the rows of each item, summed and scaled.

    Args:
        samples: one tensor a parameter, shape (rows, *parameter).
        batch: which rows make up which item.

    Returns:
        One tensor a parameter, shape (items, *parameter).
    """
    if not samples:
        return []
    items = torch.from_numpy(batch.items).to(samples[0].device)
    scales = torch.from_numpy(batch.scales).to(samples[0].device)
    found = []
    for sample in samples:
        total = sample.new_zeros((batch.count, *sample.shape[1:])).index_add_(0, items, sample)
        found.append(total.mul_(scales.to(total.dtype).reshape(-1, *(1,) * (total.dim() - 1))))
    return found


def clipped_sums(
    samples: list[Tensor], clip_norm: float, limits: NDArray[np.float64] | None = None
) -> list[Tensor]:
    """Sums over examples of per-example gradients clipped to `clip_norm` over all parameters together.

    Args:
        samples: one tensor a parameter, shape (examples, *parameter).
        clip_norm: > 0.
        limits: what part of `clip_norm` each may use, shape (examples,); None for all of it.

    Returns:
        One tensor a parameter, without the first axis. An example whose gradient is not finite counts as
        zero.
    """
    norms = torch.stack([_squared_norms(s) for s in samples]).sum(dim=0).sqrt()
    large = any(s[0].numel() > _FEW for s in samples if len(s))
    bound: float | Tensor = clip_norm * (1 - _SLACK) if large else clip_norm
    if limits is not None:
        bound = torch.from_numpy(limits).to(norms.device) * bound
    factors = (bound / (norms + 1e-6)).clamp(max=1.0)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        factors = torch.where(finite, factors, torch.zeros_like(factors))
        keep = [finite.reshape(-1, *(1,) * (s.dim() - 1)) for s in samples]
        samples = [torch.where(k, s, torch.zeros_like(s)) for k, s in zip(keep, samples, strict=True)]
    return [torch.einsum("i,i...", factors.to(s.dtype), s) for s in samples]


def _squared_norms(sample: Tensor) -> Tensor:
    """Squared 2-norm of each example's gradient, shape (examples,), float64.

    A float32 norm over 10**8 entries can fall short by per cents, and clipping would let that much through.
    """
    flat = sample.reshape(len(sample), -1)
    parts = [part.norm(2, dim=-1).double().square() for part in flat.split(_CHUNK, dim=1)]
    return torch.stack(parts).sum(dim=0)

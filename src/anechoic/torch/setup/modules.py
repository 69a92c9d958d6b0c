"""What must not mix per-example gradients, and what Opacus's hooks leave behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from anechoic.errors import GuaranteeError

#: Layers whose output for one example depends on the others of the batch, unless in eval() mode.
MIXING = (nn.modules.batchnorm._BatchNorm,)


def check_not_mixing(layers: Iterable[nn.Module]) -> None:
    """Refuse batch normalisation by the statistics of the batch, trainable or not: it mixes the examples.

    Raises:
        GuaranteeError: if one of the layers is in train() mode, or keeps no statistics to use in eval() mode.
    """
    found = [layer for layer in layers if isinstance(layer, MIXING)]
    if any(layer.running_mean is None and layer.running_var is None for layer in found):
        raise GuaranteeError(
            "a batch normalisation layer keeps no running statistics (track_running_stats=False), so it mixes"
            " the examples of a batch in eval() mode too, and clipping one example's gradient does not bound"
            " what it changes. Replace it: PrivacyEngine.get_compatible_module does."
        )
    if any(layer.training for layer in found):
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

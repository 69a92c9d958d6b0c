"""What an earlier private run left on layers: hooks that would measure, count or refuse once more."""

from __future__ import annotations

from typing import Any

from opacus.grad_sample.gsm_base import OPACUS_PARAM_MONKEYPATCH_ATTRS
from torch import Tensor, nn

from anechoic.torch.sources.stateless import is_ours

_OF_LAYERS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_BESIDE = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_ATTRIBUTES = ("autograd_grad_sample_hooks", "ft_compute_sample_grad", "activations", "max_batch_len")
_ON_PARAMETERS = (*OPACUS_PARAM_MONKEYPATCH_ATTRS, "summed_grad")


def take_over(module: nn.Module) -> None:
    """Take the hooks and attributes of earlier private runs (Opacus's too) off the layers of `module`.

    Hooks of the user stay.
    """
    for layer in module.modules():
        for name in _OF_LAYERS:
            hooks: dict[int, Any] = layer.__dict__.get(name) or {}
            for number in [number for number, hook in hooks.items() if is_ours(hook)]:
                del hooks[number]
                for beside in _BESIDE:
                    layer.__dict__.get(beside, {}).pop(number, None)
        for name in _ATTRIBUTES:
            if name in layer.__dict__:
                delattr(layer, name)
    for p in module.parameters():
        _clear(p)


def _clear(p: Tensor) -> None:
    for name in _OF_PARAMETERS:
        hooks: dict[int, Any] = getattr(p, name, None) or {}
        for number in [number for number, hook in hooks.items() if is_ours(hook)]:
            del hooks[number]
    for name in _ON_PARAMETERS:
        if hasattr(p, name):
            delattr(p, name)

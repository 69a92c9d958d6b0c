"""grad_sample_mode="auto": which source takes a model, by a rule that looks at its modules alone."""

from __future__ import annotations

from torch import nn

AUTO = "auto"
#: Trainable layers, by exact class, in models of which vmap was measured at most 1.2 times as slow as hooks
#: (benchmarks/gradient_modes.py), and what stands between them without a parameter or a random number.
_MEASURED: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.LayerNorm, nn.GroupNorm),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
        *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Softmax, nn.LogSoftmax),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten),
    }
)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
#: Trainable entries up to which that holds: of larger models fewer rows fit into one chunk.
_ENTRIES = 2**18
#: Layers of torch for which hooks have no rule.
_WITHOUT_RULE = (nn.RNNBase, nn.MultiheadAttention)


def chosen_mode(module: nn.Module, *, wrap: bool) -> str:
    """The mode for a model, by the classes and options of its modules.

    "vmap" where hooks have no rule for a layer; or where every module is of a class that was measured, none
    draws random numbers, and the model has a size and a device that was measured. A class of the user's own
    may do anything in its forward(), and gets "hooks".

    Args:
        module: plain module.
        wrap: `wrap_model` of make_private; without it there are only hooks.
    """
    if not wrap:
        return "hooks"
    layers = list(module.modules())
    if any(isinstance(layer, _WITHOUT_RULE) and _trains(layer) for layer in layers):
        return "vmap"
    trainable = [p for p in module.parameters() if p.requires_grad]
    known = all(type(layer) in _MEASURED or _passes(layer) for layer in layers)
    small = sum(p.numel() for p in trainable) <= _ENTRIES and all(p.device.type == "cpu" for p in trainable)
    return "vmap" if known and small else "hooks"


def _trains(layer: nn.Module) -> bool:
    return any(p.requires_grad for p in layer.parameters())


def _passes(layer: nn.Module) -> bool:
    """Whether it is dropout that drops nothing."""
    return isinstance(layer, _DROPOUTS) and type(layer) in _DROPOUTS and layer.p == 0

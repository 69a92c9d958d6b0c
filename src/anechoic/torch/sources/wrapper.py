"""What the training loop calls in place of the model: Opacus's wrapper, whose hooks are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module import GradSampleHooks
from opacus.grad_sample.gsm_base import OPACUS_PARAM_MONKEYPATCH_ATTRS
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from anechoic.torch.sources.capture import Capture, idle


class _OurHooks:
    """Mixin over Opacus's two classes: its settings and names, with the hooks of a `Capture`."""

    hooks_enabled: bool
    _module: nn.Module

    def add_hooks(self, **_: Any) -> None:
        self._module.autograd_grad_sample_hooks = []  # type: ignore[assignment]
        self.autograd_grad_sample_hooks = self._module.autograd_grad_sample_hooks
        self.hooks_enabled = True
        for p in self._module.parameters():  # nothing is kept on parameters, which may be pickled
            for name in OPACUS_PARAM_MONKEYPATCH_ATTRS:
                if hasattr(p, name):
                    delattr(p, name)

    def follow(self, capture: Capture, cleared: Callable[[], None]) -> None:
        """Attach `capture`; `cleared` is called where the user clears gradients on the module."""
        self._module.autograd_grad_sample_hooks.extend(capture.attach())  # type: ignore[union-attr,operator]
        self._cleared = _Told(cleared)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, those of single examples too."""
        self._cleared()
        self._module.zero_grad(set_to_none)


class PrivateModule(_OurHooks, GradSampleModule):  # type: ignore[misc]
    """The model, wrapped. A batch of no row goes through as one row of zeros, of which nothing is left."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        dimension = 0 if self.batch_first else 1
        if self.training and torch.is_grad_enabled() and _is_empty((args, kwargs), dimension):
            args, kwargs = tree_map(lambda value: _one_row(value, dimension), (args, kwargs))
            with torch.no_grad():
                output = self._module(*args, **kwargs)
            return tree_map(lambda value: _no_row(value, dimension), output)
        return self._module(*args, **kwargs)


class PrivateHooks(_OurHooks, GradSampleHooks):  # type: ignore[misc]
    """The same without a wrapper: hooks on the model itself."""


class _Told:
    """A callback that copies of the module do not call."""

    def __init__(self, cleared: Callable[[], None]) -> None:
        self._cleared = cleared

    def __call__(self) -> None:
        self._cleared()

    def __reduce__(self) -> Any:
        return idle, ()


def _is_empty(values: Any, dimension: int) -> bool:
    tensors = [t for t in tree_flatten(values)[0] if isinstance(t, Tensor) and t.dim() > dimension]
    return bool(tensors) and all(t.shape[dimension] == 0 for t in tensors)


def _one_row(value: Any, dimension: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() <= dimension:
        return value
    shape = list(value.shape)
    shape[dimension] = 1
    return value.new_zeros(shape)


def _no_row(value: Any, dimension: int) -> Any:
    """The part of an output that belongs to no row: it depends on no parameter, and can be differentiated."""
    if not isinstance(value, Tensor):
        return value
    found = value.detach()
    if found.dim() > dimension and found.shape[dimension] == 1:
        found = found.narrow(dimension, 0, 0)
    return found.requires_grad_() if found.is_floating_point() else found

"""A module run under other weights than its own, without a trace of them left in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.interrupts import uninterrupted
from anechoic.torch.sources.untraced import untraced

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def called(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    inputs: tuple[Any, ...],
    keywords: dict[str, Any] | None = None,
) -> Any:
    """module(*inputs, **keywords) under `weights`, by the names of named_parameters(); tied ones once."""
    given = {place: weights[name] for place, name in _names(module).items() if name in weights}
    # torch's own tying would put the given tensors back for good where a module has two names
    return functional_call(module, given, inputs, keywords, tie_weights=False)


@contextmanager
def left_as_it_is(module: nn.Module) -> Iterator[None]:
    """Put parameters and buffers back where they were, whatever happens: they would hold a unit's weights.

    Raises:
        GuaranteeError: if something was changed or replaced.
    """
    owners = [
        (path, own, dict(own))
        for path, layer in module.named_modules()
        for own in (layer._parameters, layer._buffers)
    ]
    tensors = [
        (f"{path}.{name}" if path else name, tensor, tensor._version, _copy(tensor))
        for path, _, before in owners
        for name, tensor in before.items()
        if tensor is not None
    ]
    changed, fault = set(), None
    try:
        yield
    except UnsupportedError as error:  # vmap cannot go on with what an earlier pass put there
        fault = error
    finally:
        for path, own, before in owners:
            for name in own.keys() | before.keys():
                if own.get(name) is not before.get(name):
                    changed.add(f"{path}.{name}" if path else name)
            own.clear()
            own.update(before)
        for name, tensor, version, value in tensors:
            if tensor._version != version:
                changed.add(name)
                if value is not None:
                    with torch.no_grad():
                        tensor.copy_(value)
    if changed:
        raise GuaranteeError(
            f"{min(changed)} changed in the local steps without noise: parameters and buffers (such as the"
            " statistics of a normalisation) must stay as they are. Keep such layers in eval() mode, or"
            " replace them."
        ) from fault
    if fault is not None:
        raise fault


@contextmanager
def without_our_hooks(module: nn.Module) -> Iterator[None]:
    """Leave out Opacus's hooks and ours, which look at ordinary passes only; those of the user stay."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    for layer in module.modules():
        for name in _HOOKS:
            hooks: Mapping[int, Any] = layer.__dict__.get(name) or {}
            if any(is_ours(hook) for hook in hooks.values()):
                kept.append((layer.__dict__, name, hooks))
    try:
        for namespace, name, hooks in kept:
            namespace[name] = OrderedDict((i, hook) for i, hook in hooks.items() if not is_ours(hook))
        with untraced():
            yield
    finally:
        for namespace, name, hooks in kept:
            namespace[name] = hooks


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Whatever a forward pass leaves in the module's attributes and buffers is taken back."""
    layers = [
        (layer, dict(layer.__dict__), dict(layer._parameters), dict(layer._buffers))
        for layer in module.modules()
    ]
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with uninterrupted():  # half of it would be the end of the model
            for layer, own, parameters, tensors in layers:
                layer.__dict__.clear()
                layer.__dict__.update(own)
                layer._parameters.clear()
                layer._parameters.update(parameters)
                layer._buffers.clear()
                layer._buffers.update(tensors)
            for buffer, version, value in buffers:
                if buffer._version != version:
                    with torch.no_grad():
                        buffer.copy_(value)


def _names(module: nn.Module) -> dict[str, str]:
    """Each place of a parameter, once where a module has several names: its parameter's first name."""
    first = {id(p): name for name, p in module.named_parameters()}
    return {
        f"{path}.{name}" if path else name: first[id(p)]
        for path, layer in module.named_modules()
        for name, p in layer._parameters.items()
        if p is not None
    }


def _copy(tensor: Tensor) -> Tensor | None:
    """Its values, to put back; frozen parameters may be too large for that."""
    frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
    return None if frozen else tensor.detach().clone()


def is_ours(hook: Any) -> bool:
    """Whether a hook is of this library or of Opacus, not of the user."""
    function = hook.func if isinstance(hook, partial) else hook
    owner = getattr(function, "__self__", None)
    ours = any(type(part).__module__.startswith("anechoic.torch") for part in (hook, function, owner))
    return ours or hasattr(owner, "capture_backprops_hook")

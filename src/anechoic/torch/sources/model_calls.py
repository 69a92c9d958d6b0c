"""Calls of a model: its weights as arguments, and that a call leaves no trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from anechoic.errors import UnsupportedError
from anechoic.torch.structure import nodes, uninterrupted

#: What a model may raise for one row.
FAILS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, AttributeError)
#: Of each place of a parameter: the names of its layer's own, its name there, and its first name of all.
Places = list[tuple[dict[str, Any], str, str]]


def places_of(module: nn.Module) -> Places:
    """All places of the parameters: several where a module has several names for one."""
    first = {id(p): name for name, p in module.named_parameters()}
    return [
        (layer._parameters, name, first[id(p)])
        for layer in module.modules()
        for name, p in layer._parameters.items()
        if p is not None
    ]


def called(
    module: nn.Module,
    places: Places,
    weights: Mapping[str, Tensor],
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """module(*inputs, **keywords) under `weights`, by the names of named_parameters(); tied ones once.

    torch.func.functional_call would look for every place anew, and leave given tensors where names are tied.
    """
    kept = [
        (own, name, own[name], weights[first])
        for own, name, first in places
        if first in weights and name in own
    ]
    try:
        for own, name, _, given in kept:
            own[name] = given
        return module(*inputs, **keywords)
    finally:
        for own, name, before, _ in kept:
            own[name] = before


def remembered(module: nn.Module) -> Callable[[], None]:
    """Remember attributes and buffers of a module: what is returned puts them back."""
    layers = [
        (layer, dict(layer.__dict__), dict(layer._parameters), dict(layer._buffers))
        for layer in module.modules()
    ]
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in module.buffers()]

    def put_back() -> None:
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

    return put_back


def take_back(spaces: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    """Set names of layers, each (now, before), to what they were; whether a call changed any."""
    changed = False
    for now, before in spaces:
        if [*now] != [*before] or [*map(id, now.values())] != [*map(id, before.values())]:
            now.clear()
            now.update(before)
            changed = True
    return changed


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Whatever a forward pass leaves in the module's attributes and buffers is taken back."""
    put_back = remembered(module)
    try:
        yield
    finally:
        put_back()


def marks_of(module: nn.Module) -> list[Any]:
    """What a call of a module changes if it keeps anything, as counters and spectral norms do."""
    kept = [(name, id(v)) for layer in module.modules() for name, v in layer.__dict__.items()]
    return [kept, [(id(b), b._version) for b in module.buffers()]]


RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def zero_state(layer: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    """Give a recurrent layer the zeros it would make, made from its input: so they are part of the row."""
    given = arguments[0] if arguments else keywords.get("input")
    state = arguments[1] if len(arguments) > 1 else keywords.get("hx")
    if state is not None or not isinstance(given, Tensor) or given.dim() != 3:
        return None
    axis = 0 if layer.batch_first else 1
    start = given.select(1 - axis, 0).sum(-1)[None, :, None] * 0
    layers = layer.num_layers * (2 if layer.bidirectional else 1)
    size = getattr(layer, "proj_size", 0) or layer.hidden_size
    hidden = start.expand(layers, -1, size)
    if isinstance(layer, nn.LSTM):
        state = (hidden, start.expand(layers, -1, layer.hidden_size))
    else:
        state = hidden
    return (given,), {**{k: v for k, v in keywords.items() if k not in ("input", "hx")}, "hx": state}


def pulled(outputs: list[Tensor], parameters: list[nn.Parameter], cotangents: list[Tensor]) -> list[Any]:
    """Gradients of the parameters by plain autograd; None where there is none. p.grad stays as it is."""
    try:
        # the backward pass of a function written in Python, as in reentrant checkpointing, may run another
        # one, which knows backward() alone: autograd.grad leaves it out unseen
        if any(isinstance(node, BackwardCFunction) for node in nodes(output.grad_fn for output in outputs)):
            return _by_backward(outputs, parameters, cotangents)
        return list(torch.autograd.grad(outputs, parameters, cotangents, allow_unused=True))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnsupportedError(f"autograd cannot give the gradient of one row: {error}") from error


def _by_backward(
    outputs: list[Tensor], parameters: list[nn.Parameter], cotangents: list[Tensor]
) -> list[Any]:
    kept = [p.grad for p in parameters]
    tables = [hooks for p in parameters if (hooks := getattr(p, "_post_accumulate_grad_hooks", None))]
    hooks = [dict(table) for table in tables]
    try:
        for table in tables:
            table.clear()
        for p in parameters:
            p.grad = None
        torch.autograd.backward(outputs, cotangents)
        return [p.grad for p in parameters]
    finally:
        for p, gradient in zip(parameters, kept, strict=True):
            p.grad = gradient
        for table, own in zip(tables, hooks, strict=True):
            table.update(own)

"""A model that is run row by row: its weights, what was seen of it, and that a run leaves no trace in it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from anechoic.errors import UnsupportedError
from anechoic.torch.sources.levels import is_batched
from anechoic.torch.structure import nodes, tensors_in, uninterrupted

logger = logging.getLogger("anechoic")


class RowModel:
    """A model that is run row by row.

    Args:
        module: the plain one.
        parameters: those whose gradients are wanted, in this order.
        batch_first: whether the first dimension of inputs and outputs is the batch, or the second one.

    Attributes:
        called: what it is, in messages.
        places: of its parameters.
        recurrent: its recurrent layers.
        loops: why rows were last taken one after another; "" while vmap runs the model.
        decides: whether it was seen to decide something by its data.
        asks: whether it was seen to ask for gradients of what it computes.
        keeps: whether a call was seen to change its attributes or buffers.
    """

    called = "model"

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], batch_first: bool) -> None:
        self.module, self.parameters = module, parameters
        self.dimension = 0 if batch_first else 1
        self.loops = ""
        self.decides = self.asks = self.keeps = False
        self.forgotten: set[str] = set()
        self.recurrent = [layer for layer in module.modules() if isinstance(layer, RECURRENT)]
        self.places = places_of(module)
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names[id(p)] for p in parameters]

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, as they are now."""
        return {name: p.detach() for name, p in zip(self._names, self.parameters, strict=True)}

    @contextmanager
    def runnable(self) -> Iterator[None]:
        """Recurrent layers in pieces that have batching rules."""
        with ExitStack() as stack:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            for layer in self.recurrent:
                handle = layer.register_forward_pre_hook(_zero_state, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def gradients(self, found: dict[str, Tensor]) -> list[Tensor]:
        """In the order of the parameters."""
        return [found[name] for name in self._names]

    def forget_rows(self, layer: nn.Module, before: dict[str, Any]) -> None:
        """Put back attributes in which a call left something of rows, which the next batch would see."""
        for name, value in list(layer.__dict__.items()):
            if value is before.get(name) or not any(self.loops or is_batched(t) for t in tensors_in(value)):
                continue
            if name in before:
                layer.__dict__[name] = before[name]
            else:
                del layer.__dict__[name]
            if name not in self.forgotten:
                self.forgotten.add(name)
                logger.warning(
                    "%s.%s held tensors of rows after a call of the model, and is put back to what it was: the"
                    " next batch would see rows of this one. Let forward return what the loop needs.",
                    type(layer).__name__,
                    name,
                )

    def told(self, reason: str) -> None:
        """vmap could not run it: say so once."""
        if not self.loops:
            logger.warning(
                "torch.func.vmap cannot run this %s, so its rows are taken one after another, which is"
                " right and slow: %s",
                self.called,
                reason.strip().split("\n")[0],
            )
        self.loops = reason


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
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


@contextmanager
def without_our_hooks(module: nn.Module) -> Iterator[None]:
    """Leave out Opacus's hooks and ours, which look at ordinary passes only; those of the user stay."""
    hooked = [
        (layer.__dict__, name, hooks)
        for layer in module.modules()
        for name in _HOOKS
        if (hooks := layer.__dict__.get(name))
    ]
    kept = [one for one in hooked if any(map(is_ours, one[2].values()))] if hooked else []
    try:
        for namespace, name, hooks in kept:
            namespace[name] = OrderedDict((i, hook) for i, hook in hooks.items() if not is_ours(hook))
        yield
    finally:
        for namespace, name, hooks in kept:
            namespace[name] = hooks


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


def is_ours(hook: Any) -> bool:
    """Whether a hook is of this library or of Opacus, not of the user."""
    function = hook.func if isinstance(hook, partial) else hook
    owner = getattr(function, "__self__", None)
    ours = any(type(part).__module__.startswith("anechoic.torch") for part in (hook, function, owner))
    return ours or hasattr(owner, "capture_backprops_hook")


RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def _zero_state(layer: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
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
    """Gradients of the parameters by plain autograd; None where there is none. p.grad stays as it is.

    Raises:
        UnsupportedError: where autograd cannot.
    """
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

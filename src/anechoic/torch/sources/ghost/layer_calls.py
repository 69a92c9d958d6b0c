"""Calls of trainable layers: hooks keep their parameters out of the graph, and note what backward() brings.

While a layer works on labelled rows its parameters are detached, so the gradient of a parameter is, by
construction, made of what was noted: the layer's input and the gradient at its output. Whatever else uses a
parameter shows in its `grad`, which nothing here sets. That rows are apart in both is what their labels say.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from anechoic.errors import UnsupportedError
from anechoic.torch.labels import Label, LabelledBatch, LabelledTensor, Mixing, OnAxis, label_of, plain
from anechoic.torch.sources.ghost.layers import SHARING, BackwardCall, Embedding, holds, layer_kind

OTHERWISE = "use grad_sample_mode='rows'"


class NotedCall(NamedTuple):
    """One call of a layer, which backward() came through: `expected` is the label of its output."""

    layer: nn.Module
    given: Tensor
    backprop: Tensor
    expected: Label

    def fault(self) -> str:
        """What in it is not of single rows, or ""."""
        label, shape = label_of(self.given), tuple(self.given.shape)
        if isinstance(label, Mixing):
            return f"an input of shape {shape} that mixes rows ({label.why})"
        if not isinstance(label, OnAxis):
            return f"an input of shape {shape} that has no axis of rows"
        # over features that are rows the output is no row's
        return "" if isinstance(self.expected, OnAxis) else f"an input of shape {shape} whose rows it mixes"

    def by_rows(self, rows: int) -> BackwardCall:
        """The tensors without labels, rows first."""
        found = []
        for tensor, label in ((self.given, label_of(self.given)), (self.backprop, self.expected)):
            one = plain(tensor).detach()
            if rows == 1:
                one = one.unsqueeze(0)
            elif isinstance(label, OnAxis):
                apart = (one.shape[label.axis] // (rows * label.inner), rows, label.inner)
                one = one.unflatten(label.axis, apart).movedim(label.axis + 1, 0)
                one = one.flatten(label.axis + 1, label.axis + 2)
            found.append(one)
        return BackwardCall(self.layer, *found)


class BackpropRecorder(torch.autograd.Function):
    """Identity whose backward pass notes the backprops; `anchor` makes sure that there is one."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, given: Tensor, anchor: Tensor, layer: nn.Module, batch: Any) -> Tensor:
        ctx.save_for_backward(given)  # torch refuses to give it back if it was changed in place
        ctx.call = layer, batch, label_of(out)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, backprop: Tensor) -> Any:  # type: ignore[override]
        (given,), (layer, batch, expected) = ctx.saved_tensors, ctx.call
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"create_graph=True: ghost clipping does not measure gradients of gradients, so {OTHERWISE}."
            )
        if batch.passing:  # else a gradient that the script takes for itself
            batch.calls.append(NotedCall(layer, given, backprop, expected))
        return backprop, None, None, None, None


class Hook:
    """A bound method as a hook, as long as its owner is there; in a copy of the model it does nothing."""

    def __init__(self, method: Any = None) -> None:
        self._method = None if method is None else WeakMethod(method)

    def __call__(self, *given: Any) -> Any:
        method = self._method and self._method()
        return None if method is None else method(*given)

    def __reduce__(self) -> Any:
        return Hook, ()


def hooked(layer: nn.Module, before: Any, after: Any, *, within: bool) -> list[Any]:
    """Hang hooks before and behind calls, failed ones too, within the layer's other hooks or around them."""
    return [
        layer.register_forward_pre_hook(Hook(before), with_kwargs=True, prepend=not within),
        layer.register_forward_hook(Hook(after), with_kwargs=True, always_call=True, prepend=within),
    ]


class LayerCalls:
    """Note the calls of the trainable layers of a module; one that is not on the list is refused by name.

    Attributes:
        inside: whether the model works on the batch, so layers are noted; they are in its backward() too.
        layers: for each the names of its trainable parameters and their ids.
        anchor: no parameter, and makes autograd come by.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], *, batch_first: bool) -> None:
        self.layers = trainable_layers(module, parameters)
        self.anchor = torch.zeros((), requires_grad=True)
        self.batch: LabelledBatch | None = None
        self.inside = False
        self._module, self._axis = module, 0 if batch_first else 1
        self._open: dict[nn.Module, dict[str, Any]] = {}
        hung = [hooked(layer, self._before, self._after, within=True) for layer in self.layers]
        self._handles = [handle for handles in hung for handle in handles]

    def detach(self) -> None:
        """Take the hooks off the layers."""
        for handle in self._handles:
            handle.remove()

    def _before(self, layer: Any, args: Any, kwargs: Any) -> Any:
        batch, given = self.batch, [*args, *kwargs.values()]
        if batch is None or not (self.inside or batch.passing) or not torch.is_grad_enabled():
            return None
        if len(given) != 1 or not isinstance(given[0], Tensor):
            raise UnsupportedError(
                f"{self.describe(layer)} was called with {len(given)} arguments, and ghost clipping knows"
                f" layers of one tensor: {OTHERWISE}."
            )
        names, own = self.layers[layer], layer._parameters
        if any(id(own.get(name)) != key for name, key in names.items()):
            return None  # other weights for one call: whatever is in them shows
        self._open[layer] = {name: own[name] for name in names}
        for name in names:
            own[name] = own[name].detach()
        x = self._labelled(layer, given[0], batch)
        return ((x,), {}) if args else ((), dict.fromkeys(kwargs, x))

    def _after(self, layer: Any, args: Any, kwargs: Any, out: Any) -> Any:
        kept = self._open.pop(layer, None)
        if kept is None:
            return None
        layer._parameters.update(kept)
        if not isinstance(out, Tensor):
            return None  # it failed
        x = [*args, *kwargs.values()][0]
        return BackpropRecorder.apply(out, x, self.anchor, layer, self.batch)

    def _labelled(self, layer: Any, x: Tensor, batch: LabelledBatch) -> Tensor:
        """Public numbers as rows: one row an example, or what stands once for all rows, once for each.

        What is added to the rows is the same, and each row's part of the gradient is left apart.
        """
        if label_of(x) is not None or x.requires_grad or batch.rows <= 1:
            return x
        kind, axis = layer_kind(type(layer)), self._axis
        places = x.dim() - (0 if kind is None else kind.own(layer, x))
        axis = min(axis, max(places - 1, 0))
        if type(kind) is Embedding and places == 1 and (len(x) != batch.rows or _counts(x)):
            return LabelledTensor(x.expand(batch.rows, *x.shape).contiguous(), OnAxis(0), batch)
        if places > 0 and x.shape[axis] in (1, batch.rows):
            x = x.repeat_interleave(batch.rows, dim=axis) if x.shape[axis] == 1 else x
            return LabelledTensor(x, OnAxis(axis), batch)
        return x

    def describe(self, layer: nn.Module) -> str:
        """Name and class of a layer."""
        name = next((name for name, other in self._module.named_modules() if other is layer), "")
        return f"{name or 'the module'} ({type(layer).__name__})"


def _counts(places: Tensor) -> bool:
    """Whether public numbers are positions, one after the other, and not one an example."""
    return bool((places.diff() == 1).all())


def trainable_layers(module: nn.Module, parameters: list[nn.Parameter]) -> dict[nn.Module, dict[str, int]]:
    """The layers that hold `parameters`: for each the names of its own and their ids."""
    wanted = {id(p) for p in parameters}
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    found: dict[nn.Module, dict[str, int]] = {}
    for name, layer in module.named_modules():
        own = {key: id(p) for key, p in layer._parameters.items() if p is not None and id(p) in wanted}
        if not own or holds(type(layer)):
            continue
        inside = [part for part in layer.modules() if part is not layer and layer_kind(type(part))]
        of_parts = {id(p) for part in inside for p in part._parameters.values()}
        if layer_kind(type(layer)) is None and of_parts.issuperset(own.values()):
            continue  # second names of what layers inside hold (BERT's head): other uses show in `grad`
        words = f"{name or 'the module'} ({type(layer).__module__}.{type(layer).__qualname__})"
        fault = _fault(layer)
        if fault:
            raise UnsupportedError(f"ghost clipping does not know {words}{fault}: {_instead(name, layer)}.")
        for key, identity in own.items():
            where = f"{name}.{key}" if name else key
            before = owners.setdefault(identity, [])
            if before and (len(before) > 1 or {type(layer), type(before[0][1])} != SHARING):
                raise UnsupportedError(
                    f"{before[0][0]} and {where} are one parameter, and ghost clipping takes shared"
                    f" parameters of one Embedding and one Linear only: {OTHERWISE}."
                )
            before.append((where, layer))
        found[layer] = own
    if wanted - owners.keys():
        raise UnsupportedError(
            f"{len(wanted - owners.keys())} parameters of the optimizer belong to no layer that ghost"
            f" clipping knows: {OTHERWISE}."
        )
    return found


def _instead(name: str, layer: nn.Module) -> str:
    """Return the remedy where `layer` is not on the list: for PEFT, what to leave out of its config."""
    if name.endswith(("lora_embedding_A", "lora_embedding_B")):
        return f"leave embeddings out of LoraConfig(target_modules=…), or {OTHERWISE}"
    if "Dora" in type(layer).__name__:
        return f"leave use_dora=True out of LoraConfig, or {OTHERWISE}"
    return OTHERWISE


def _fault(layer: nn.Module) -> str:
    """Why a trainable layer is not on the list, or ""."""
    kind = layer_kind(type(layer))
    if kind is None:
        return " with parameters of its own"
    if "forward" in layer.__dict__:
        return " with a forward() of its own"
    if set(layer._parameters) - {"weight", "bias"} or "weight" not in layer._parameters:
        return f" with parameters {sorted(layer._parameters)}"
    if layer._compiled_call_impl is not None:
        return ", compiled"
    fault = kind.fault(layer)
    return f" with {fault}" if fault else ""

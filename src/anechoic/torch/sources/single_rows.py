"""The comparison with autograd of single rows: what a source found for a row is what the row gives alone.

It takes the call of the model as it happened (the row's input, the generators at the call, the gradient of
the loss with respect to the row's outputs), runs the model on that row alone with plain autograd, and
compares. It happens at the first delivery, after each change of the model's attributes (train or eval,
options, hooks, a replaced forward), and on secret rows: at steps drawn by the key at a rate of `RATE`, on
one row drawn by the key. One row alone costs at most what its whole batch costs: at most 1/128 of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.torch.ledger import Delivery, ReleaseLedger
from anechoic.torch.sources.pulling import pulled
from anechoic.torch.sources.row_randomness import Generators, rewound
from anechoic.torch.sources.structure import filled, tensors_in
from anechoic.torch.stateless import without_our_hooks

#: Part of the steps in which one secret row is compared.
RATE = 1 / 128
#: An attribute that changed in so many steps is left to the secret rows: each comparison costs up to a step.
CHANGES = 8
#: By how much rounding may move a gradient, or an output, of one row: part of its norm. A rectifier whose
#: input is 0 to rounding may flip, so gradients are not compared to the last digits.
_GRADIENT = {torch.float64: 1e-5, torch.float32: 1e-2}
_OUTPUT = {torch.float64: 1e-8, torch.float32: 1e-3}
_COARSE = 0.1  # where anything is computed in 16 bits
_FLOOR = 0.1  # of a bound, for a parameter's part of the whole gradient
_PLAIN = (int, float, bool, str, type(None))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class SingleRows:
    """Decides which row of which delivery is compared, and compares.

    Args:
        module: the plain one.
        parameters: the trainable ones, in the order of all gradients.
        ledger: knows the batch in hand, and the key.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], ledger: ReleaseLedger) -> None:
        self.module, self.parameters, self.ledger = module, parameters, ledger
        self._layers = list(module.named_modules())
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names.get(id(p), "a parameter") for p in parameters]
        self._state: list[Any] | None = None
        self._changes: dict[str, int] = {}
        self._decided: Delivery | None = None
        self._due = False  # until a row of a batch that has others too was compared, and nothing was found
        self._row: int | None = None
        self.compared = 0

    def row(self, delivery: Delivery) -> int | None:
        """The row of `delivery` to compare, or None: decided when its first call is made."""
        if delivery is not self._decided:
            self._decided = delivery
            self._due = self._changed() or self._due
            draw = int.from_bytes(self.ledger.derived("single rows", delivery.step, delivery.chunk, size=16))
            secret = (draw >> 64) < RATE * 2**64
            self._row = None
            if delivery.size and (self._due or secret):
                self._row = (draw & (2**64 - 1)) % delivery.size
        return self._row

    def forget(self) -> None:
        """The delivery was dropped: it is decided anew."""
        self._decided = None

    def _changed(self) -> bool:
        """Whether attributes of the model are others than at the last delivery; so they are at the first."""
        state = [_state(layer) for _, layer in self._layers]
        before, self._state = self._state, state
        if before is None:
            return True
        counts = False
        for (name, _), old, new in zip(self._layers, before, state, strict=True):
            if old != new:
                self._changes[name] = self._changes.get(name, 0) + 1
                counts = counts or self._changes[name] <= CHANGES
        return counts

    def compare(
        self, found: list[Tensor], alone: list[Tensor], row: int, *, norm: float | None = None
    ) -> None:
        """Refuse `found`, the gradient of one row in the batch, if it is not that of the row alone.

        Args:
            found, alone: one tensor a parameter.
            row: its place in the batch.
            norm: what the row is clipped by, where that is an upper bound of the norm of `found`.

        Raises:
            GuaranteeError: naming the parameter where they differ most.
        """
        self.compared += 1
        if not all(bool(torch.isfinite(tensor).all()) for tensor in (*found, *alone)):
            return  # such a row counts as zero, whatever it is
        bound = self.bound(_GRADIENT)
        gaps = [float((f.detach().double() - a.double()).norm()) for f, a in zip(found, alone, strict=True)]
        norms = [float(a.double().norm()) for a in alone]
        whole = sum(norm * norm for norm in norms) ** 0.5
        excess = [gap - bound * (norm + _FLOOR * whole) for gap, norm in zip(gaps, norms, strict=True)]
        if max(excess) <= 1e-30:
            if norm is not None and not norm >= (1 - bound) * whole:
                self._refuse(row, f"the norm of its gradient is {whole:.6g} and was taken as {norm:.6g}")
            self._due = self._due and self._decided is not None and self._decided.size < 2
            return
        worst = max(range(len(gaps)), key=lambda place: excess[place])
        self._refuse(row, f"its gradient for {self._names[worst]} is off by {gaps[worst]:.3g}, where"
                     f" it has norm {norms[worst]:.3g}")  # fmt: skip

    def compare_output(self, found: Tensor, alone: Tensor, row: int) -> None:
        """Refuse a model whose output for a row depends on the other rows of the batch.

        Raises:
            GuaranteeError: if it does.
        """
        gap = float((found.double() - alone.double()).norm())
        if gap <= self.bound(_OUTPUT) * float(alone.double().norm()) + 1e-30 or gap != gap:
            return
        self._refuse(row, f"the model's output for it is off by {gap:.3g}, where it has norm"
                     f" {float(alone.double().norm()):.3g}: the model mixes the rows of a batch")  # fmt: skip

    def bound(self, bounds: dict[torch.dtype, float]) -> float:
        """How far rounding may go with this model."""
        dtypes = {p.dtype for p in self.module.parameters()}
        device = self.parameters[0].device.type
        coarse = dtypes - set(bounds) or torch.is_autocast_enabled(device) or self.coarse
        return _COARSE if coarse else max(bounds[dtype] for dtype in dtypes)

    #: set while the call that is compared was made under autocast
    coarse: bool = False

    def _refuse(self, row: int, what: str) -> None:
        raise GuaranteeError(
            f"row {row} of the batch, taken alone, does not give what it gave in the batch: {what}. Nothing"
            " was released. Use grad_sample_mode='vmap', which runs every row by itself; a model that mixes"
            " rows must be changed. Call optimizer.abandon_batch() to go on."
        )


def _state(layer: nn.Module) -> list[Any]:
    own = layer.__dict__
    found = [value for value in own.values() if type(value) in _PLAIN or _is_function(value)]
    found.extend(tuple(own[name]) for name in _HOOKS if name in own)
    return found


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (nn.Module, Tensor, type))


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


# -- for sources that let the model see the whole batch ------------------------------------------------


@dataclass
class _Call:
    """One call of the model with the batch in hand, as far as one row needs it."""

    delivery: Delivery
    row: int
    given: Any  # arguments and keywords, with the row's own part of each tensor
    rows: list[bool]  # which of their tensors have a row an example
    start: Generators
    autocast: tuple[bool, torch.dtype]
    drew: bool = False
    outputs: dict[int, tuple[int | None, Tensor]] = field(default_factory=dict)
    cotangents: dict[int, Tensor] = field(default_factory=dict)


class CallWatch:
    """Follows the calls of a module that sees the whole batch, and repeats them for one row alone.

    Where a call draws random numbers, the row is repeated in a batch of as many copies of it: each row then
    draws what it drew, and a model that mixes rows still gives another output.

    Args:
        rows: decides and compares.
        batch_first: whether the first dimension is the batch, or the second one.
        reduction: of the loss.
    """

    def __init__(self, rows: SingleRows, *, batch_first: bool, reduction: str) -> None:
        self.rows = rows
        self._dimension = 0 if batch_first else 1
        self._reduction = reduction
        self._open: list[_Call | None] = []
        self._calls: list[_Call] = []
        self._handles = [
            rows.module.register_forward_pre_hook(_Before(self), with_kwargs=True),
            rows.module.register_forward_hook(_After(self)),
        ]

    def forget(self) -> None:
        """The gradients were used, or the batch was dropped."""
        self._open, self._calls = [], []

    def cleared(self) -> None:
        """Gradients were dropped; a call whose backward() is to come stays."""
        self._calls = [call for call in self._calls if not call.cotangents]

    def detach(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    def row(self, delivery: Delivery) -> int | None:
        """The row whose gradient can be compared now; None if there is none."""
        known = any(call.delivery is delivery and call.cotangents for call in self._calls)
        return self.rows.row(delivery) if known else None

    def alone(self, delivery: Delivery) -> list[Tensor]:
        """The gradient of that row by itself, of all calls, one tensor a parameter.

        Raises:
            GuaranteeError: if the model gives the row another output alone.
        """
        totals = [torch.zeros_like(p) for p in self.rows.parameters]
        for call in self._calls:
            if call.delivery is delivery and call.cotangents:
                for total, part in zip(totals, self._repeated(call), strict=True):
                    total += part
        return totals

    # -- while the model is called ---------------------------------------------------------------

    def before(self, arguments: Any, keywords: dict[str, Any]) -> None:
        """The model is being called."""
        self._open.append(self._opened(arguments, keywords))

    def _opened(self, arguments: Any, keywords: dict[str, Any]) -> _Call | None:
        delivery = self.rows.ledger.in_hand
        if delivery is None or not self.rows.module.training or not torch.is_grad_enabled():
            return None
        row = self.rows.row(delivery)
        if row is None:
            return None
        given = (arguments, keywords)
        tensors = tensors_in(given)
        axes = [self._axis(t, delivery.size) for t in tensors]
        own = [
            t.detach() if axis is None else t.detach().narrow(axis, row, 1).clone()
            for t, axis in zip(tensors, axes, strict=True)
        ]
        device = self.rows.parameters[0].device.type
        autocast = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        flags = [axis is not None for axis in axes]
        return _Call(delivery, row, filled(given, own), flags, Generators(), autocast)

    def after(self, output: Any) -> Any:
        """The call is over; returns the output, or one whose gradients can be told apart."""
        call = self._open.pop() if self._open else None
        if call is None:
            return output
        call.drew = not call.start.same(Generators())
        handed = []
        for place, tensor in enumerate(tensors_in(output)):
            # one output may be made from another: the gradient of this view is that of the loss's own use
            handed.append(tensor.view_as(tensor) if tensor.requires_grad else tensor)
            if tensor.requires_grad:
                axis = self._axis(tensor, call.delivery.size)
                value = tensor if axis is None else tensor.select(axis, call.row)
                call.outputs[place] = (axis, value.detach().clone())
                handed[-1].register_hook(_Taking(call, place, axis))
        self._calls.append(call)
        return filled(output, handed)

    def _axis(self, tensor: Tensor, size: int) -> int | None:
        for axis in (self._dimension, 0):
            if tensor.dim() > axis and tensor.shape[axis] == size:
                return axis
        return None

    # -- once more ------------------------------------------------------------------------------

    def _repeated(self, call: _Call) -> list[Tensor]:
        rows, size = self.rows, call.delivery.size
        copies, place = (size, call.row) if call.drew else (1, 0)
        tensors = [
            t if not has else t.repeat_interleave(copies, min(self._dimension, t.dim() - 1))
            for t, has in zip(tensors_in(call.given), call.rows, strict=True)
        ]
        arguments, keywords = filled(call.given, tensors)
        device = rows.parameters[0].device.type
        enabled, dtype = call.autocast
        rows.coarse = enabled
        # checkpointed segments run once more in the backward pass, so all of it happens in here
        with rewound(call.start), undisturbed(rows.module), without_our_hooks(rows.module):
            with torch.enable_grad(), torch.autocast(device, dtype=dtype, enabled=enabled):
                outputs = tensors_in(rows.module(*arguments, **keywords))
            pairs = []
            for number, cotangent in call.cotangents.items():
                axis, value = call.outputs[number]
                own = outputs[number]
                scale = size if self._reduction == "mean" and axis is not None else 1
                if axis is not None:
                    own = own.select(axis, place)
                    rows.compare_output(value, own.detach(), call.row)
                pairs.append((own, cotangent.to(own.dtype) * scale))
            found = pulled([own for own, _ in pairs], rows.parameters, [c for _, c in pairs])
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, rows.parameters, strict=True)]


class _Before:
    """Forward pre-hook; a copy of the module is another model, and its hook does nothing."""

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> None:
        if module is self._watch.rows.module:
            self._watch.before(arguments, keywords)

    def __reduce__(self) -> Any:
        return _idle, ()


class _After:
    """Forward hook."""

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> Any:
        return self._watch.after(output) if module is self._watch.rows.module else None

    def __reduce__(self) -> Any:
        return _idle, ()


class _Taking:
    """Gradient hook of an output: keeps the part of the row."""

    def __init__(self, call: _Call, place: int, axis: int | None) -> None:
        self._call, self._place, self._axis = call, place, axis

    def __call__(self, gradient: Tensor) -> None:
        if self._place not in self._call.cotangents:
            own = gradient if self._axis is None else gradient.select(self._axis, self._call.row)
            self._call.cotangents[self._place] = own.detach().clone()


class _Idle:
    def __call__(self, *_: Any) -> None:
        pass


def _idle() -> _Idle:
    return _Idle()

"""The comparison with autograd of single rows: what a source found for a row is what the row gives alone.

It takes the call of the model as it happened (the row's input, the generators at the call, the gradient of
the loss with respect to the row's outputs), runs the model on that row alone with plain autograd, and
compares. It happens at the first delivery, and after each change of the model's attributes (train or eval,
options, hooks, a replaced forward): a few rows, and again at every delivery until they agreed on a batch of
two rows or more, since a row that is alone anyway shows nothing. It also happens on secret rows: at steps
drawn by the key at a rate of `RATE`, on one row drawn by the key. One row alone costs at most what its whole batch
costs: at most 1/128 of a step. Where a comparison is due and cannot be made, the step is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.torch.ledger import Delivery, ReleaseLedger
from anechoic.torch.sources.pulling import pulled
from anechoic.torch.sources.row_randomness import Generators, rewound
from anechoic.torch.sources.structure import filled, tensors_in
from anechoic.torch.stateless import undisturbed, without_our_hooks

#: Part of the steps in which one secret row is compared.
RATE = 1 / 128
#: An attribute that changed in so many steps is left to the secret rows: each comparison costs up to a step.
CHANGES = 8
#: Rows that are compared where a comparison is due; never more than half of the batch, but one.
SEVERAL = 4
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
        #: 2 until rows agreed after a change; 1 if that was in a batch of one row, which shows no mixing
        self._due = 0
        self._rows: tuple[int, ...] = ()
        self.compared = 0

    def rows(self, delivery: Delivery) -> tuple[int, ...]:
        """The rows of `delivery` to compare: decided when its first call is made."""
        if delivery is not self._decided:
            self._decided = delivery
            self._due = 2 if self._changed() else self._due
            draw = int.from_bytes(self.ledger.derived("single rows", delivery.step, delivery.chunk, size=16))
            secret = (draw >> 64) < RATE * 2**64
            self._rows = ()
            if delivery.size and (secret or self._due == 2 or (self._due and delivery.size > 1)):
                self._rows = self._chosen(draw & (2**64 - 1), delivery.size)
        return self._rows

    def _chosen(self, draw: int, size: int) -> tuple[int, ...]:
        """One secret row; where a comparison is due, also the last and first one, and another secret one."""
        wanted = (draw % size, size - 1, 0, (draw >> 32) % size)
        several = min(SEVERAL, max(1, size // 2)) if self._due else 1
        return tuple(dict.fromkeys(wanted))[:several]

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

    def settle(self, delivery: Delivery, agreed: bool) -> None:
        """All rows of `delivery` that were to be compared were; `agreed` if one of them was finite."""
        self.compared += 1
        if agreed:
            self._due = min(self._due, 1 if delivery.size < 2 else 0)

    def unmade(self, delivery: Delivery) -> None:
        """Refuse a step whose comparison is due and cannot be made, as no call was seen that shows rows.

        Raises:
            GuaranteeError: naming the remedy.
        """
        if delivery.size > 1 and self.rows(delivery):
            self._due = 2
            raise GuaranteeError(
                f"rows of batch {delivery.step} could not be compared with the same rows alone, so nothing"
                " says that the model keeps them apart. Nothing was released. Call the model itself, with the"
                " batch's tensors among its arguments; return what the loss is made from as tensors, tuples,"
                " dicts or dataclasses from forward (not by an attribute, nor in another object); or use"
                " grad_sample_mode='vmap'."
            )

    def compare(
        self, found: list[Tensor], alone: list[Tensor], row: int, *, norm: float | None = None
    ) -> bool:
        """Refuse `found`, the gradient of one row in the batch, if it is not that of the row alone.

        Args:
            found, alone: one tensor a parameter.
            row: its place in the batch.
            norm: what the row is clipped by, where that is an upper bound of the norm of `found`.

        Returns:
            Whether there was something to compare: a row that is not finite either way counts as zero.

        Raises:
            GuaranteeError: naming the parameter where they differ most.
        """
        whole_there, whole_alone = (all(map(_finite, tensors)) for tensors in (found, alone))
        if whole_there != whole_alone:
            where = "alone" if whole_there else "in the batch"
            self.refuse(row, f"its gradient is not finite {where}, and is otherwise")
        if not whole_alone:
            return False
        bound = self.bound(_GRADIENT)
        gaps = [float((f.detach().double() - a.double()).norm()) for f, a in zip(found, alone, strict=True)]
        norms = [float(a.double().norm()) for a in alone]
        whole = sum(norm * norm for norm in norms) ** 0.5
        excess = [gap - bound * (norm + _FLOOR * whole) for gap, norm in zip(gaps, norms, strict=True)]
        if max(excess) <= 1e-30:
            if norm is not None and not norm >= (1 - bound) * whole:
                self.refuse(row, f"the norm of its gradient is {whole:.6g} and was taken as {norm:.6g}")
            return True
        worst = max(range(len(gaps)), key=lambda place: excess[place])
        self.refuse(row, f"its gradient for {self._names[worst]} is off by {gaps[worst]:.3g}, where"
                     f" it has norm {norms[worst]:.3g}")  # fmt: skip

    def compare_output(self, found: Tensor, alone: Tensor, row: int) -> None:
        """Refuse a model whose output for a row depends on the other rows of the batch.

        Raises:
            GuaranteeError: if it does.
        """
        finite = torch.isfinite(alone)
        if not torch.equal(finite, torch.isfinite(found)):
            self.refuse(row, "the model's output for it is not finite in other places: the model mixes the"
                        " rows of a batch")  # fmt: skip
        found, alone = found[finite], alone[finite]
        gap = float((found.double() - alone.double()).norm())
        if gap <= self.bound(_OUTPUT) * float(alone.double().norm()) + 1e-30:
            return
        self.refuse(row, f"the model's output for it is off by {gap:.3g}, where it has norm"
                     f" {float(alone.double().norm()):.3g}: the model mixes the rows of a batch")  # fmt: skip

    def bound(self, bounds: dict[torch.dtype, float]) -> float:
        """How far rounding may go with this model."""
        dtypes = {p.dtype for p in self.module.parameters()}
        device = self.parameters[0].device.type
        coarse = dtypes - set(bounds) or torch.is_autocast_enabled(device) or self.coarse
        return _COARSE if coarse else max(bounds[dtype] for dtype in dtypes)

    #: set while the call that is compared was made under autocast
    coarse: bool = False

    def refuse(self, row: int, what: str) -> NoReturn:
        """Stop the step: `what` is wrong with that row alone."""
        self._due = 2  # whatever is done about the batch, until rows agree
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


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (nn.Module, Tensor, type))


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
    draws what it drew, and a model that mixes rows still gives another output; the gradient of an output that
    is of all rows (a loss) is not known for one of them then, and is not compared. Where the model cannot
    take a batch of one (it squeezes its output, say), it takes a few copies.

    Args:
        rows: decides and compares.
        batch_first: whether the first dimension is the batch, or the second one.
        reduction: of the loss.
        counts: whether the backward pass that runs is one whose gradients the source uses.
    """

    def __init__(
        self,
        rows: SingleRows,
        *,
        batch_first: bool,
        reduction: str,
        counts: Callable[[], bool] = lambda: True,
    ) -> None:
        self.rows, self.counts = rows, counts
        self._dimension = 0 if batch_first else 1
        self._reduction = reduction
        self._open: list[list[_Call]] = []
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

    def rows_of(self, delivery: Delivery) -> tuple[int, ...]:
        """The rows whose gradients are to be compared now.

        Raises:
            GuaranteeError: if they are due, and no call shows them.
        """
        calls = [call for call in self._calls if call.delivery is delivery and call.cotangents]
        if not calls:
            self.rows.unmade(delivery)
        if any(map(_hidden, calls)):
            self._compare_outputs(calls)
            return ()
        return self.rows.rows(delivery) if calls else ()

    def alone(self, delivery: Delivery, row: int) -> list[Tensor]:
        """The gradient of that row by itself, of all calls, one tensor a parameter.

        Raises:
            GuaranteeError: if the model gives the row another output alone, or none.
        """
        totals = [torch.zeros_like(p) for p in self.rows.parameters]
        for call in self._calls:
            if call.delivery is delivery and call.row == row and call.cotangents:
                for total, part in zip(totals, self._repeated(call), strict=True):
                    total += part
        return totals

    def _compare_outputs(self, calls: list[_Call]) -> None:
        """What can be done where gradients cannot be told apart: outputs that have rows, as logits have."""
        for call in calls:
            if any(axis is not None for axis, _ in call.outputs.values()):
                self.rows.coarse = call.autocast[0]
                with undisturbed(self.rows.module), without_our_hooks(self.rows.module):
                    outputs, _ = self._outputs(call)
                for number in call.outputs:
                    self._own(call, outputs, number)

    # -- while the model is called ---------------------------------------------------------------

    def before(self, arguments: Any, keywords: dict[str, Any]) -> None:
        """The model is being called."""
        self._open.append(self._opened(arguments, keywords))

    def _opened(self, arguments: Any, keywords: dict[str, Any]) -> list[_Call]:
        """One for each row that is to be compared."""
        delivery = self.rows.ledger.in_hand
        if delivery is None or not torch.is_grad_enabled():
            return []
        chosen = self.rows.rows(delivery)
        given = (arguments, keywords)
        tensors = tensors_in(given) if chosen else []
        axes = [self._axis(t, delivery.size) for t in tensors]
        if all(axis is None for axis in axes):
            return []  # nothing in it that is known to be a row's
        device = self.rows.parameters[0].device.type
        autocast = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        flags = [axis is not None for axis in axes]
        start, calls = Generators(), []
        for row in chosen:
            own = [
                t.detach() if axis is None else t.detach().narrow(axis, row, 1).clone()
                for t, axis in zip(tensors, axes, strict=True)
            ]
            calls.append(_Call(delivery, row, filled(given, own), flags, start, autocast))
        return calls

    def after(self, output: Any) -> Any:
        """The call is over; returns the output, or one whose gradients can be told apart."""
        calls = self._open.pop() if self._open else []
        if not calls:
            return output
        drew = not calls[0].start.same(Generators())
        handed = []
        for place, tensor in enumerate(tensors_in(output)):
            # one output may be made from another: the gradient of this view is that of the loss's own use
            handed.append(tensor.view_as(tensor) if tensor.requires_grad else tensor)
            if not tensor.requires_grad:
                continue
            axis = self._axis(tensor, calls[0].delivery.size)
            for call in calls:
                value = tensor if axis is None else tensor.select(axis, call.row)
                call.outputs[place] = (axis, value.detach().clone())
                handed[-1].register_hook(_Taking(self, call, place, axis))
        for call in calls:
            call.drew = drew
        self._calls.extend(calls)
        return filled(output, handed)

    def _axis(self, tensor: Tensor, size: int) -> int | None:
        for axis in (self._dimension, 0):
            if tensor.dim() > axis and tensor.shape[axis] == size:
                return axis
        return None

    # -- once more ------------------------------------------------------------------------------

    def _repeated(self, call: _Call) -> list[Tensor]:
        rows = self.rows
        rows.coarse = call.autocast[0]
        # checkpointed segments run once more in the backward pass, so all of it happens in here
        with rewound(call.start), undisturbed(rows.module), without_our_hooks(rows.module):
            pairs = self._pairs(call)
            found = pulled([own for own, _ in pairs], rows.parameters, [c for _, c in pairs])
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, rows.parameters, strict=True)]

    def _pairs(self, call: _Call) -> list[tuple[Tensor, Tensor]]:
        """The outputs for the row alone, each with the gradient of the loss with respect to it."""
        size = call.delivery.size
        outputs, copies = self._outputs(call)
        pairs = []
        for number, cotangent in call.cotangents.items():
            axis, mean = call.outputs[number][0], self._reduction == "mean"
            own = self._own(call, outputs, number)
            # an output of all rows is reduced over the copies as the loss is over rows
            scale = (size if mean else 1.0) if axis is not None else (1.0 if mean else 1 / copies)
            pairs.append((own, cotangent.to(own.dtype) * scale))
        return pairs

    def _own(self, call: _Call, outputs: list[Tensor], number: int) -> Tensor:
        """The row's part of an output, which is what it was in the batch."""
        axis, value = call.outputs[number]
        own = outputs[number]
        if axis is not None:
            own = own.select(axis, call.row if call.drew else 0)
            self.rows.compare_output(value, own.detach(), call.row)
        return own

    def _outputs(self, call: _Call) -> tuple[list[Tensor], int]:
        """What the model gives for the row alone, and in how many copies it was given."""
        size = call.delivery.size
        if call.drew:
            return self._copied(call, size), size
        try:
            outputs = self._run(call, 1)
        except (RuntimeError, ValueError, IndexError):  # it may want several rows; else it raises again
            outputs = []
        if outputs and all(_fits(outputs[i], *wanted) for i, wanted in call.outputs.items()):
            return outputs, 1
        # never as many as there were: a model that divides by their number would not be seen
        copies = 3 if size == 2 else 2
        return self._copied(call, copies), copies

    def _copied(self, call: _Call, copies: int) -> list[Tensor]:
        try:
            return self._run(call, copies)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            self.rows.refuse(call.row, f"the model cannot run on it ({error})")

    def _run(self, call: _Call, copies: int) -> list[Tensor]:
        tensors = [
            t if not has else t.repeat_interleave(copies, min(self._dimension, t.dim() - 1))
            for t, has in zip(tensors_in(call.given), call.rows, strict=True)
        ]
        arguments, keywords = filled(call.given, tensors)
        module, device = self.rows.module, self.rows.parameters[0].device.type
        enabled, dtype = call.autocast
        with rewound(call.start), torch.enable_grad(), torch.autocast(device, dtype=dtype, enabled=enabled):
            return tensors_in(module(*arguments, **keywords))


def _hidden(call: _Call) -> bool:
    """Whether the loss came by an output of all rows, some at random: copies draw what others did."""
    return call.drew and any(call.outputs[place][0] is None for place in call.cotangents)


def _fits(output: Tensor, axis: int | None, row: Tensor) -> bool:
    """Whether an output for a batch of one has its row where the batch had it."""
    return axis is None or (output.dim() == row.dim() + 1 and output.select(axis, 0).shape == row.shape)


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

    def __init__(self, watch: CallWatch, call: _Call, place: int, axis: int | None) -> None:
        self._watch, self._call, self._place, self._axis = watch, call, place, axis

    def __call__(self, gradient: Tensor) -> None:
        if self._watch.counts() and self._place not in self._call.cotangents:
            own = gradient if self._axis is None else gradient.select(self._axis, self._call.row)
            self._call.cotangents[self._place] = own.detach().clone()


class _Idle:
    def __call__(self, *_: Any) -> None:
        pass


def _idle() -> _Idle:
    return _Idle()

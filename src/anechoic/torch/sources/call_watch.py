"""One call of the plain model on the whole batch, watched: what a row gave, and what it gives alone.

For the modes that run the model as it is on the whole batch ("hooks", "functorch", "ghost").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.runs.ledger import Delivery
from anechoic.torch.local.stateless import undisturbed, without_our_hooks
from anechoic.torch.randomness.rows import Generators, rewound
from anechoic.torch.sources.capture import idle
from anechoic.torch.sources.pulling import pulled
from anechoic.torch.sources.single_rows import SingleRows
from anechoic.torch.sources.structure import filled, tensors_in


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
        self._ends: list[Any] = []  # nodes of the outputs that were handed out
        self._looked = False  # at the graph of the loss
        self._handles = [
            rows.module.register_forward_pre_hook(_Before(self), with_kwargs=True),
            rows.module.register_forward_hook(_After(self)),
        ]

    def forget(self) -> None:
        """The gradients were used, or the batch was dropped."""
        self._open, self._calls, self._ends, self._looked = [], [], [], False

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
        self.rows.check_loss()
        if not calls:
            self.rows.unmade(delivery)
        if any(map(_hidden, calls)):
            self._compare_outputs(calls)
            if self._compare_loss(calls):
                self.rows.settle(delivery, True)
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

    def _compare_loss(self, calls: list[_Call]) -> bool:
        """Whether a model that gives its loss alone, and draws, was seen to add it up over rows.

        In batches of three that hold two rows a and b, each place draws what it draws; so where each row has
        a loss of its own, the gradients of (a, b, a) and (b, a, b) are together those of (a, a, a) and
        (b, b, b).

        Raises:
            GuaranteeError: if they are not.
        """
        first = calls[0]
        others = [call for call in calls if call.start is first.start and call.row != first.row]
        if len({id(call.start) for call in calls}) > 1 or not others:
            return False  # several calls, or a single secret row
        if any(axis is not None for axis, _ in first.outputs.values()):
            return False  # outputs were compared
        second, rows = others[0], self.rows
        rows.coarse = first.autocast[0]
        orders = ((first, second, first), (second, first, second), (first,) * 3, (second,) * 3)
        with rewound(first.start), undisturbed(rows.module), without_our_hooks(rows.module):
            try:
                parts = [self._of_three(first, places) for places in orders]
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, IndexError):
                return False  # it wants batches of another size
        return rows.compare_sums(parts, first.row, second.row)

    def _of_three(self, call: _Call, places: tuple[_Call, ...]) -> list[Tensor]:
        """Gradients of what the call gave, for these rows."""
        own = [tensors_in(one.given) for one in places]
        tensors = [
            torch.cat(parts, min(self._dimension, parts[0].dim() - 1)) if has else parts[0]
            for *parts, has in zip(*own, call.rows, strict=True)
        ]
        outputs = self._called(call, tensors)
        pairs = [(outputs[number], given) for number, given in call.cotangents.items()]
        found = pulled(
            [output for output, _ in pairs],
            self.rows.parameters,
            [given.to(output.dtype) for output, given in pairs],
        )
        return [g for g in found if g is not None]

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
        pairs = zip(tensors, axes, strict=True)
        self.rows.follow(tensor.movedim(axis, 0) for tensor, axis in pairs if axis is not None)
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
            self._watch_loss(output)
            return output
        drew = not calls[0].start.same(Generators())
        handed = []
        for place, tensor in enumerate(tensors_in(output)):
            # one output may be made from another: the gradient of this copy is that of the loss's own use,
            # which may also change it in place
            handed.append(tensor.clone() if tensor.requires_grad else tensor)
            if not tensor.requires_grad:
                continue
            axis = self._axis(tensor, calls[0].delivery.size)
            for call in calls:
                value = tensor if axis is None else tensor.select(axis, call.row)
                call.outputs[place] = (axis, value.detach().clone())
                handed[-1].register_hook(_Taking(self, call, place, axis))
        self._ends.extend(tensor.grad_fn for tensor in handed)
        self._looked = False
        for call in calls:
            call.drew = drew
        self._calls.extend(calls)
        return filled(output, handed)

    def _watch_loss(self, output: Any) -> None:
        """Look at the graph of the loss in a step that compares no row, too."""
        if self.rows.ledger.in_hand is None or not torch.is_grad_enabled():
            return
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                self._ends.append(tensor.grad_fn)
                tensor.register_hook(_Looking(self))
        self._looked = False

    def _axis(self, tensor: Tensor, size: int) -> int | None:
        for axis in (self._dimension, 0):
            if tensor.dim() > axis and tensor.shape[axis] == size:
                return axis
        return None

    def look_at_loss(self) -> None:
        """The backward pass has reached an output."""
        if not self._looked:
            self._looked = True
            self.rows.look_at_loss(self._ends)

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
        return self._called(call, tensors)

    def _called(self, call: _Call, tensors: list[Tensor]) -> list[Tensor]:
        """The model's outputs for `tensors` in the place of those of the call, drawing what that drew."""
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
        return idle, ()


class _After:
    """Forward hook."""

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> Any:
        return self._watch.after(output) if module is self._watch.rows.module else None

    def __reduce__(self) -> Any:
        return idle, ()


class _Looking:
    """Gradient hook of an output: the backward pass of the loss is at the model."""

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch

    def __call__(self, gradient: Tensor) -> None:
        if self._watch.counts():
            self._watch.look_at_loss()

    def __reduce__(self) -> Any:
        return idle, ()


class _Taking:
    """Gradient hook of an output: keeps the part of the row."""

    def __init__(self, watch: CallWatch, call: _Call, place: int, axis: int | None) -> None:
        self._watch, self._call, self._place, self._axis = watch, call, place, axis

    def __call__(self, gradient: Tensor) -> None:
        if self._watch.counts() and self._place not in self._call.cotangents:
            self._watch.look_at_loss()
            own = gradient if self._axis is None else gradient.select(self._axis, self._call.row)
            self._call.cotangents[self._place] = own.detach().clone()

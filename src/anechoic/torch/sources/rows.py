"""Gradients of single rows, each by itself, for any model: right by construction, and the default.

The module that make_private returns is a boundary of autograd. In front of it, the model runs row by row; at
the end of backward(), the gradient of the loss with respect to each row's outputs is pulled back through the
model for that row alone, some rows at a time, and what comes out is clipped and summed at once. No hooks, no
rules for layers: whatever the model does, a row's vector depends on that row, the weights and the gradient
at its outputs; and that this gradient depends on the row alone is seen by the types of rows (`row_types`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import AnechoicError, DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.runs.ledger import Delivery
from anechoic.torch.randomness.modes import paused
from anechoic.torch.row_types.labels import UNPACK, Label, Mixed, RowAxis, Total
from anechoic.torch.sources.base import (
    BY_HAND,
    NOT_CLEARED,
    GradientSource,
    ModelWrapper,
    SourceSetup,
    register,
)
from anechoic.torch.sources.row_calls import RowCall, RowModel
from anechoic.torch.sources.row_model import undisturbed
from anechoic.torch.sources.single_rows import SingleRows
from anechoic.torch.structure import full_precision

#: Bytes of gradients that are held at once, for the rows of one chunk: larger tensors are slower too, since
#: the operating system clears their pages anew in every step.
MEMORY = 2**26
#: With how many other weights a row is compared that differs with those of the model.
TRIES = 3


class RowsModule(ModelWrapper):
    """The model, called row by row while a batch is in hand; else as it is.

    A copy is another model, which is called as it is.
    """

    def __init__(self, source: RowsSource, module: nn.Module, loss_reduction: str, batch_first: bool) -> None:
        super().__init__(module, loss_reduction, batch_first)
        self.__dict__["_source"] = source
        # under torch.compile(model) too, rows are run as they are: compiled code would not see single ones
        self.__dict__["_called"] = torch.compiler.disable(source.called)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        source = self.__dict__["_source"]
        if source is None or not self.training or not torch.is_grad_enabled():
            return self._module(*arguments, **keywords)
        return self.__dict__["_called"](arguments, keywords)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, those of single examples too."""
        source = self.__dict__["_source"]
        if source is not None:
            source.zero_grad()
        self._module.zero_grad(set_to_none)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_called": None}


class PendingCall:
    """A call of the model whose backward() is to come.

    Attributes:
        rows: the call, row by row.
        delivery: the batch in hand when it was made.
        marks: what p.grad was then.
        cotangents: gradients of each row's own loss with respect to its outputs, shape (rows, …) each.
    """

    cotangents: list[Tensor]

    def __init__(
        self, source: RowsSource, rows: RowCall, delivery: Delivery, marks: list[tuple[int, int]]
    ) -> None:
        self.source, self.rows, self.delivery, self.marks = source, rows, delivery, marks

    def pull(self, cotangents: list[Tensor]) -> None:
        """Take the gradient of each row's own loss with respect to its outputs."""
        self.cotangents = [c.detach() for c in cotangents]
        self.source.received(self)


class OutputBoundary(torch.autograd.Function):
    """Outputs of the rows, in the graph of the loss."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: PendingCall, *outputs: Tensor) -> Any:
        ctx.call, ctx.types = call, call.source.types
        made = tuple(output.clone() for output in outputs)  # which the loss may change in place
        ctx.mark_non_differentiable(*(o for o in made if not o.dtype.is_floating_point))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        call: PendingCall = ctx.call
        source = call.source
        source.types.check_backward(gradients, call.rows.axes)
        reduction = source.setup.loss_reduction
        own = call.rows.apart(list(gradients), reduction)
        # a mean that was pulled back from the number of rows, not from 1, knows nothing of that number
        times = call.rows.rows if reduction == "mean" and not source.types.started else 1
        call.pull(
            [c * times for c in own]
        )  # copies: whoever has a gradient may write to it until backward() ends
        return (None,) * (2 + len(gradients))


@register("rows")
class RowsSource(GradientSource):
    """One gradient a row, chunk by chunk; see this module.

    An example whose gradient is not finite contributes zero.

    Attributes:
        memory: bytes of gradients held at once; at least one row.
    """

    mode = "rows"
    by_layers = False
    memory = MEMORY

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        if not setup.wrap:
            raise UnsupportedError(
                f"wrap_model=False with grad_sample_mode={self.mode!r}: rows are kept apart by the module"
                " that make_private returns. Leave it True: attributes and methods of your model are those of"
                " that module too."
            )
        self.module = RowsModule(self, setup.module, setup.loss_reduction, setup.batch_first)
        self._rows = RowModel(setup.module, setup.parameters, setup.batch_first)
        self.single = SingleRows(setup.module, setup.parameters, setup.ledger)
        self.anchor = torch.zeros((), requires_grad=True)
        self._row_bytes = sum(p.numel() * p.element_size() for p in setup.parameters)
        self._stale = False
        self._drop()

    def _drop(self) -> None:
        """Nothing of a batch is left."""
        self._made = 0
        self._clear()

    def _clear(self) -> None:
        """No gradient is left; the model may have been called already."""
        self._calls: list[PendingCall] = []
        self._passes = 0
        self._queued = False
        self._fault: AnechoicError | None = None
        self._sums: list[Tensor] | None = None

    # -- what the training loop calls ------------------------------------------------------------

    def called(self, arguments: Any, keywords: dict[str, Any]) -> Any:
        """model(*arguments, **keywords) in the training loop."""
        delivery = self.ledger.in_hand
        if delivery is None:
            return self.setup.module(*arguments, **keywords)
        with paused():  # a row's numbers are its own
            call = self.begun(delivery, arguments, keywords)
            outputs = call.rows.joined(call.rows.outputs, self.setup.loss_reduction)
            made = list(OutputBoundary.apply(self.anchor, call, *outputs))
            labelled = [self._labelled(*pair) for pair in zip(made, call.rows.axes, strict=True)]
        return call.rows.filled(labelled)

    def _labelled(self, output: Tensor, axis: int | None) -> Tensor:
        size = None if axis is None else output.shape[axis]
        if size is None or size == self.types.rows:
            label: Label = Total(mean=self.means) if axis is None else RowAxis(axis)
        else:
            label = Mixed(f"the model was called with {size} rows of its own")
        self.types.mark(output, label, delivered=True)
        return output

    def begun(self, delivery: Delivery, arguments: Any, keywords: dict[str, Any]) -> PendingCall:
        """The same, up to the outputs of the rows."""
        self.check_weights()
        self.types.check_inputs((arguments, keywords))
        held = self.types.check_held(self.setup.module)
        # by parts a row draws the same wherever it is worked on
        place = delivery.chunk if delivery.parts is None else 0
        seed = self.ledger.derived("rows", delivery.step, place, self._made, size=8)
        self._made += 1
        rows = RowCall(
            self._rows,
            arguments,
            keywords,
            int.from_bytes(seed),
            slots=self.slots(delivery),
            order=None if delivery.units is None else _by_items(delivery),
            parts=delivery.parts,
            watch=self.types if self.single.rows(delivery) else None,
        )
        if self._rows.loops:
            self.types.mark_kept(self.setup.module, held)
        return PendingCall(self, rows, delivery, self.marks())

    def received(self, call: PendingCall) -> None:
        """The gradient with respect to the outputs of `call` is known; backward() is not over yet."""
        self._calls.append(call)
        if not self._queued:
            self._queued = True
            engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            engine.queue_callback(self._finish)

    def _finish(self) -> None:
        """backward() is over: clip and sum, unless something is wrong, which `sums` says."""
        calls, self._calls, self._queued = self._calls, [], False
        self._passes += 1
        if self._passes > 1:
            return
        try:
            with paused():
                self._sums = self._summed(calls)
        except AnechoicError as error:
            self._fault = error

    def _summed(self, calls: list[PendingCall]) -> list[Tensor]:
        delivery = self.ledger.in_hand
        if delivery is None or any(call.delivery is not delivery for call in calls):
            raise DesynchronizedError(
                "backward() reached outputs of the model for another batch than the one in hand: call the"
                " model and backward() once for each delivered batch."
            )
        for call in calls:
            if call.rows.rows != delivery.size:
                raise DesynchronizedError(
                    f"gradients of {call.rows.rows} examples reached release {delivery.step}, whose batch has"
                    f" {delivery.size}: feed the model exactly the delivered batch, one row an"
                    f" example.{UNPACK}."
                )
            if call.marks != self.marks() and any(
                p.grad is not None and bool(p.grad.count_nonzero()) for p in self.parameters
            ):
                raise GuaranteeError(
                    "the loss reaches a parameter past the outputs of the model, as a penalty on weights"
                    " does: what it adds is not that of single examples. Use the optimizer's weight_decay,"
                    " or put the term into the model's outputs."
                )
        with torch.no_grad(), full_precision(self.device.type):
            return self._clipped(calls, delivery)

    def _clipped(self, calls: list[PendingCall], delivery: Delivery) -> list[Tensor]:
        totals = self.clipping.nothing(self.parameters)
        compared, agreed = self.single.rows(delivery), []
        for rows, found in self._chunks(calls, delivery):
            for row in compared:
                for place in (rows == row).nonzero().flatten().tolist():
                    agreed.append(self._agrees(calls, row, [t[place] for t in found]))
            whole = delivery.units is None
            for vectors, limits in [(found, None)] if whole else self._contributions(rows, found, delivery):
                parts = self.clipping.sums(vectors, limits)
                totals = [total + part for total, part in zip(totals, parts, strict=True)]
        if agreed:
            self.single.settle(delivery, any(agreed))
        return totals

    def _chunks(self, calls: list[PendingCall], delivery: Delivery) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Rows, those of one item side by side, and their gradients."""
        self._carry: tuple[int, list[Tensor]] | None = None
        for place, rows in enumerate(calls[0].rows.chunks if delivery.size else ()):
            found: list[Tensor] = []
            for call in calls:
                made = call.rows.gradients(call.cotangents, place)
                found = [a + b for a, b in zip(found, made, strict=True)] if found else made
            yield rows, found

    def slots(self, delivery: Delivery) -> int:
        """Rows of one chunk: a function of public numbers, and so is the shape that kernels work on.

        Those of a part, where batches are cut into parts; else as many as most batches have, rounded up, or
        as micro-batches have; fewer where their gradients would take more than `memory`.
        """
        if self.setup.chunk is not None:
            return self.setup.chunk
        most = self.ledger.micro_batch
        wanted = _rounded(min(self.setup.rows, most) if most > 0 else self.setup.rows)
        held = max(1, self.memory // self._row_bytes)
        return wanted if wanted <= held else min(held, _rounded(-(-wanted // -(-wanted // held))))

    def _contributions(
        self, rows: Tensor, found: list[Tensor], delivery: Delivery
    ) -> Iterator[tuple[list[Tensor], Any]]:
        """What is clipped together: rows, or the items that are complete with this chunk."""
        units: Any = delivery.units
        everyone = torch.from_numpy(units.items)
        items, places = torch.unique(everyone[rows], return_inverse=True)
        sums = [t.new_zeros(len(items), *t.shape[1:]).index_add_(0, places.to(t.device), t) for t in found]
        if self._carry is not None and self._carry[0] == int(items[0]):
            for total, part in zip(sums, self._carry[1], strict=True):
                total[0] += part
        ends = _by_items(delivery)
        last = int((ends == rows[-1]).nonzero())
        open_end = last + 1 < len(ends) and int(everyone[ends[last + 1]]) == int(items[-1])
        self._carry = (int(items[-1]), [t[-1].clone() for t in sums]) if open_end else None
        count = len(items) - open_end
        if not count:
            return
        chosen = items[:count].numpy()
        scales = torch.from_numpy(units.scales[chosen])
        vectors = [t[:count] * scales.to(t).reshape(-1, *(1,) * (t.dim() - 1)) for t in sums]
        yield vectors, None if units.limits is None else units.limits[chosen]

    def _agrees(self, calls: list[PendingCall], row: int, found: list[Tensor]) -> bool:
        self.single.coarse = any(call.rows.coarse for call in calls)
        try:
            return self.single.compare(found, self._alone(calls, row), row)
        except GuaranteeError:
            # rounding decides where a row is at a kink of the model (a rectifier at 0, a routing), and
            # kernels round one row otherwise than many: with other weights it is at none
            if not any(self._agrees_nearby(calls, row, seed) for seed in range(TRIES)):
                raise
            return True

    def _alone(self, calls: list[PendingCall], row: int) -> list[Tensor]:
        alone = [torch.zeros_like(p) for p in self.parameters]
        for call in calls:
            with undisturbed(self.setup.module):
                parts = call.rows.alone(call.cotangents, row)
            alone = [a + b for a, b in zip(alone, parts, strict=True)]
        return alone

    def _agrees_nearby(self, calls: list[PendingCall], row: int, seed: int) -> bool:
        with self._rows.nearby(seed):
            again = [PendingCall(self, call.rows.repeated(), call.delivery, call.marks) for call in calls]
            found = [torch.zeros_like(p) for p in self.parameters]
            for call, before in zip(again, calls, strict=True):
                call.cotangents = before.cotangents
                chunk = next(k for k, rows in enumerate(call.rows.chunks) if bool((rows == row).any()))
                place = int((call.rows.chunks[chunk] == row).nonzero())
                made = call.rows.gradients(call.cotangents, chunk)
                found = [a + b[place] for a, b in zip(found, made, strict=True)]
            try:
                return self.single.compare(found, self._alone(again, row), row)
            except GuaranteeError:
                return False

    def marks(self) -> list[tuple[int, int]]:
        """What p.grad is: it changes where a loss reaches a parameter past the model's outputs."""
        return [(0, 0) if p.grad is None else (id(p.grad), p.grad._version) for p in self.parameters]

    # -- a step --------------------------------------------------------------------------------

    def sums(self, delivery: Delivery) -> list[Tensor]:
        if self._passes and self._stale:
            raise DesynchronizedError(f"{NOT_CLEARED}.")
        if self._passes > 1:
            raise DesynchronizedError(
                f"{self._passes} backward passes reached release {delivery.step}: {BY_HAND}."
            )
        if self._fault is not None:
            raise self._fault
        if self._sums is None:
            if delivery.size == 0:
                return self.clipping.nothing(self.parameters)
            raise DesynchronizedError(
                "no gradient reached this step: call the module that make_private returned (not a part of"
                " it, and not the plain one) on the delivered batch, in train() mode, and backward() on the"
                " loss, before step()."
            )
        return [total.clone() for total in self._sums]

    def discard_sums(self) -> None:
        self._drop()
        self.types.rest()
        self._stale = True

    def zero_grad(self) -> None:
        self._clear()
        self._stale = False

    def forget(self) -> None:
        self.single.forget()
        self.types.rest()
        self._drop()
        self.zero_grad()

    def detach(self) -> None:
        self.module.__dict__.update(_source=None, _called=None)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "source.memory": self.memory}


def _by_items(delivery: Delivery) -> Tensor:
    """The rows of a delivery, those of one item side by side."""
    units: Any = delivery.units
    return torch.from_numpy(units.items).sort(stable=True).indices


def _rounded(rows: int) -> int:
    """A number of rows, rounded up to a multiple of about an eighth of it."""
    grain = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // grain) * grain

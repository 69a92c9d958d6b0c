"""Ghost clipping: clipped sums from the inputs of layers and the gradients at their outputs.

The model runs on the whole batch, whose tensors are labelled. What a layer was given, and what backward()
brings to its output, have their rows on their own axis, or the step is refused; then no gradient of a single
row is needed, but its norm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.runs.ledger import Delivery
from anechoic.torch import label_layers  # noqa: F401 - labels know their rules by it
from anechoic.torch.labels import LabelledBatch, LabelledTensor, OnAxis, fault_of, label_of
from anechoic.torch.sources.base import UNPACK, GradientSource
from anechoic.torch.sources.ghost.factored_gradients import MemoryAllowance, RowGradients, norms, shared
from anechoic.torch.sources.ghost.layer_calls import OTHERWISE, LayerCalls, hooked
from anechoic.torch.sources.ghost.layers import BackwardCall, layer_kind
from anechoic.torch.sources.levels import check_not_packed, only
from anechoic.torch.sources.rows import RowsModule
from anechoic.torch.structure import mapped, tensors_in

#: Modules of transformers that ask whether all rows could do without a mask, unless their code is traced.
_ASKING = ("transformers.masking_utils", "transformers.modeling_utils")


class GhostSource(GradientSource):
    """Clipped sums by norms of layer inputs and backprops; layers that are not on its list are refused.

    Guarantee: what one example adds to the sums has at most the clip norm, but for rounding: it is the same
    float64 numbers that are measured and summed, and norms count what rounding may have hidden.
    """

    mode = "ghost"
    takes_grid = False
    remedy = (
        "Write a loss of each row's own, as with reduction='none', and take its .mean() over rows last; where"
        f" the model mixes rows that it could keep apart, {OTHERWISE}, which runs it row by row"
    )

    def __init__(self, setup: Any, *given: Any, **sizes: Any) -> None:
        super().__init__(setup, *given, **sizes)
        self.layers = LayerCalls(setup.module, self.parameters, batch_first=setup.batch_first)
        self.ends.append(self.layers.anchor)
        self._handles = hooked(setup.module, self._enter, self._leave, within=False)
        self._open: list[ExitStack | None] = []
        self.decided = False
        said: Any = {"loss_reduction": setup.loss_reduction, "batch_first": setup.batch_first}
        #: or a handle that says so, in the place of a module
        self.module = RowsModule(self, setup.module, **said) if setup.wrap_model else SimpleNamespace(**said)
        self.criterion = setup.criterion or nn.CrossEntropyLoss(reduction=setup.loss_reduction)

    # -- the model ------------------------------------------------------------------------------

    def on_delivery(self, delivery: Delivery) -> None:
        super().on_delivery(delivery)
        self.layers.batch, self.decided = self.batch, False

    def called(self, arguments: Any, keywords: dict[str, Any]) -> Any:
        """model(*arguments, **keywords) in the training loop."""
        return self.setup.module(*arguments, **keywords)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Before a call of the model: on the batch in hand, its layers note what they are given."""
        batch, tensors = self.batch, tensors_in((args, kwargs))
        self._open.append(None)
        followed = any(type(t) is LabelledTensor and t.batch is batch for t in tensors)
        if batch is None or self.layers.inside or not module.training or not torch.is_grad_enabled():
            return None
        if not followed and any(t.requires_grad or len(t) != batch.rows for t in tensors if t.dim()):
            return None  # other data than the batch in hand
        check_not_packed((args, kwargs))
        self.before_call()
        stack = self._open[-1] = ExitStack()
        if not batch.rows:
            stack.enter_context(torch.no_grad())  # it runs on a made-up row, of which nothing is left
        else:
            stack.enter_context(_every_mask_used())
            stack.callback(self._note_decisions, batch, batch.numbers)
            stack.callback(setattr, self.layers, "inside", False)
            self.layers.inside = True
        return mapped((args, kwargs), lambda t: self._row(t, batch))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        stack, batch = self._open.pop() if self._open else None, self.batch
        if stack is None or batch is None:
            return None
        stack.close()
        return output if batch.rows else mapped(output, lambda t: self._no_row(t, batch))

    def _note_decisions(self, batch: LabelledBatch, before: int) -> None:
        self.decided |= batch.numbers != before and batch.rows > 1

    def _row(self, tensor: Tensor, batch: LabelledBatch) -> Tensor:
        """An input with a label, if it has one row an example; a made-up row for none."""
        axis = 0 if self.setup.batch_first or tensor.dim() < 2 else 1
        if not batch.rows:
            empty = tensor.dim() and not tensor.shape[axis]
            return tensor.new_zeros(*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :]) if empty else tensor
        known = label_of(tensor) is not None or tensor.requires_grad or not tensor.dim()
        if known or tensor.shape[axis] != batch.rows:
            return tensor
        return LabelledTensor(tensor, OnAxis(axis), batch)

    def _no_row(self, tensor: Tensor, batch: LabelledBatch) -> Tensor:
        """The part of an output that belongs to no row: no parameter is behind it."""
        axis = 0 if self.setup.batch_first or tensor.dim() < 2 else 1
        if tensor.dim() and tensor.shape[axis] == 1:
            tensor = tensor.narrow(axis, 0, 0)
        return LabelledTensor(tensor.detach(), OnAxis(axis), batch, requires_grad=tensor.is_floating_point())

    # -- a step ---------------------------------------------------------------------------------

    def sums(self, delivery: Delivery) -> list[Tensor]:
        """See `GradientSource`; float64. A row that is not finite counts as zero."""
        if self.batch is not None and self.batch.roots and self.batch.rows > 1:
            self._check_rows(self.batch, delivery)
        batch, found = self.checked_batch(delivery), dict[int, Tensor]()
        if batch is not None and delivery.size:
            found = self._clipped(batch)
        every = enumerate(self.parameters)
        return [found[i] if i in found else torch.zeros_like(p, dtype=torch.float64) for i, p in every]

    def _clipped(self, batch: LabelledBatch) -> dict[int, Tensor]:
        """The sums of parameters that the loss reached, by their places."""
        sums: dict[int, Tensor] = {}
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for call in batch.calls:
                if why := fault_of(call.backprop, call.expected, batch):
                    raise GuaranteeError(
                        f"the gradient of one row at the output of {self.layers.describe(call.layer)} depends"
                        f" on other rows. {why}. {self.remedy}."
                    )
            calls = [call.by_rows(batch.rows) for call in batch.calls]
            for _ in range(2):  # once more where a row is not finite: without it
                gradients = self._gradients(calls)
                parts = self._parts(gradients)
                lengths = [norms([gradients[id(self.parameters[i])] for i in places]) for _, places in parts]
                finite = torch.isfinite(torch.stack(lengths)).all(dim=0) if lengths else torch.ones(1)
                if bool(finite.all()):
                    break
                calls = [
                    BackwardCall(c.layer, only(finite, c.given), only(finite, c.backprop)) for c in calls
                ]
            for length, (bound, places) in zip(lengths, parts, strict=True):
                factors = self.clipping.factors(length, bound=bound)
                for place in places:
                    sums[place] = gradients[id(self.parameters[place])].weighted_sum(factors)
        return sums

    def _check_rows(self, batch: LabelledBatch, delivery: Delivery) -> None:
        """Refuse a model that decided by the batch, and layers that were given something else than rows."""
        if self.decided:
            raise GuaranteeError(
                f"something was decided by numbers taken out of batch {delivery.step} (if mask.all():,"
                " .item()), and ghost clipping runs the model on the whole batch, where that mixes examples."
                " Nothing was released. Decide by public numbers (apply a mask whether or not it is all"
                " ones; models of transformers take one of shape (rows, 1, queries, keys) as it is), or use"
                " grad_sample_mode='rows', in which each row decides for itself."
            )
        for call in batch.calls:
            if fault := call.fault():
                packed = f" {UNPACK}." if "a part of the batch" in fault else ""
                raise GuaranteeError(
                    f"{self.layers.describe(call.layer)} was called with {fault}: give it the examples as"
                    f" rows (expand what all of them share), or {OTHERWISE}.{packed}"
                )

    def _gradients(self, calls: list[BackwardCall]) -> dict[int, RowGradients]:
        """Gradients of the rows by the parameter's id; what the loss does not reach is missing."""
        budget, found = MemoryAllowance(), dict[int, RowGradients]()
        by_layer: dict[nn.Module, list[BackwardCall]] = {}
        for call in calls:
            by_layer.setdefault(call.layer, []).append(call)
        for layer, made in by_layer.items():
            kind = layer_kind(type(layer))
            makers = {} if kind is None else kind.gradients(made, budget)
            for name, identity in self.layers.layers[layer].items():
                here = makers[name]()
                found[identity] = shared(found[identity], here) if identity in found else here
        return found

    def _parts(self, gradients: dict[int, RowGradients]) -> list[tuple[float, list[int]]]:
        """(bound, places of parameters that are clipped to it together), of those that the loss reached."""
        parts = self.clipping.members(len(self.parameters))
        reached = [(b, [i for i in places if id(self.parameters[i]) in gradients]) for b, places in parts]
        return [(bound, places) for bound, places in reached if places]

    def detach(self) -> None:
        self.layers.detach()
        for handle in self._handles:
            handle.remove()
        if isinstance(self.module, RowsModule):
            self.module.__dict__.update(_source=None, _called=None)


@contextmanager
def _every_mask_used() -> Iterator[None]:
    """Let models of transformers use a mask whether or not some row needs it, as in code that is traced."""
    asking: list[Any] = [sys.modules[name] for name in _ASKING if name in sys.modules]
    kept = [(module, module.is_tracing) for module in asking if hasattr(module, "is_tracing")]
    try:
        for module, _ in kept:
            module.is_tracing = lambda tensor=None: True
        yield
    finally:
        for module, function in kept:
            module.is_tracing = function

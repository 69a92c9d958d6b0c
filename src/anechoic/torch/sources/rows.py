"""Gradients of single rows: any model row by row, any loss whose rows stay apart.

The model runs on one row at a time, many side by side by torch.func's vmap, in chunks of one public shape.
The training loop gets its outputs with labels (`anechoic.torch.labels`); backward() ends at them. At step()
one question is asked: has the gradient at the outputs its rows on their own axis, and was backward() called
on a mean (or sum) over rows? Then it is pulled back through the model for each row alone, clipped and summed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.runs.ledger import Delivery
from anechoic.torch import label_layers  # noqa: F401 - labels know their rules by it
from anechoic.torch.labels import LabelledBatch, LabelledTensor, Mixing, OnAxis, fault_of, label_of, plain
from anechoic.torch.sources.base import REMEDY, UNPACK, GradientSource
from anechoic.torch.sources.levels import check_not_packed, is_continuous
from anechoic.torch.sources.row_model import RowModel
from anechoic.torch.sources.row_passes import RowPasses
from anechoic.torch.structure import filled, tensors_in

#: Bytes of gradients that are held at once, for the rows of one chunk: larger tensors are slower too, since
#: the operating system clears their pages anew in every step.
MEMORY = 2**26


class RowsModule(nn.Module):
    """The user's model, with its attributes, called row by row while a batch is in hand; else as it is.

    A copy is another model, which is called as it is.
    """

    def __init__(self, source: Any, module: nn.Module, loss_reduction: str, batch_first: bool) -> None:
        super().__init__()
        self._module, self.loss_reduction, self.batch_first = module, loss_reduction, batch_first
        self.__dict__["_source"] = source
        # under torch.compile(model) too, rows are run as they are: compiled code would not see single ones
        self.__dict__["_called"] = torch.compiler.disable(source.called)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)

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


class RowsSource(GradientSource):
    """One gradient a row, chunk by chunk; an example whose gradient is not finite contributes zero."""

    mode = "rows"
    memory = MEMORY

    def __init__(self, setup: Any, *given: Any, **sizes: Any) -> None:
        super().__init__(setup, *given, **sizes)
        if not setup.wrap_model:
            raise UnsupportedError(
                f"wrap_model=False with grad_sample_mode={self.mode!r}: rows are kept apart by the module"
                " that make_private returns. Leave it True: attributes and methods of your model are those of"
                " that module too."
            )
        self.module = RowsModule(self, setup.module, setup.loss_reduction, setup.batch_first)
        self._model = RowModel(setup.module, self.parameters, setup.batch_first)
        self._row_bytes = sum(p.numel() * p.element_size() for p in self.parameters)
        self._calls: list[RowPasses] = []

    # -- the model ------------------------------------------------------------------------------

    def called(self, arguments: Any, keywords: dict[str, Any]) -> Any:
        """model(*arguments, **keywords) in the training loop."""
        delivery, batch = self.ledger.in_hand, self.batch
        if delivery is not None and batch is not None:
            check_not_packed((arguments, keywords))
            with torch._C.DisableTorchFunctionSubclass():
                tensors, followed = tensors_in((arguments, keywords)), False
                for tensor in tensors:
                    followed |= type(tensor) is LabelledTensor and tensor.batch is batch
                own = [len(t) == delivery.size and not t.requires_grad for t in tensors if t.dim()]
                if followed or all(own):
                    return self._by_rows(delivery, batch, (arguments, keywords), tensors, followed)
        return self.setup.module(*arguments, **keywords)  # other data than the batch in hand

    def _by_rows(
        self, delivery: Delivery, batch: LabelledBatch, given: Any, tensors: list[Tensor], followed: bool
    ) -> Any:
        """The same for rows of the batch in hand."""
        if not followed and delivery.units is not None:
            raise DesynchronizedError(
                "the model was called with tensors that do not come from the batch in hand by torch's"
                " operations, so nobody knows whose rows they are, and unit_ids count by owners: do in the"
                " data set or collate_fn what goes through NumPy, strings or files."
            )
        self.before_call()
        axes, sizes = [], set()
        for tensor in tensors:
            axes.append(axis := self.axis_of(tensor, batch))
            sizes |= set() if axis is None else {tensor.shape[axis]}
        if sizes != {batch.rows}:
            raise DesynchronizedError(
                f"the model was called with tensors of shapes {[tuple(t.shape) for t in tensors]}, and the"
                f" batch in hand has {batch.rows} rows: feed it the delivered batch, one row an example."
            )
        if not self._model.tried:
            self._model.try_out(given, axes, self.slots(delivery))
        order = None if delivery.units is None else _by_items(delivery)
        passes = self._passes("rows", self._model, given, axes, delivery, order)
        outputs, leaves, handed = passes.run(), passes.leaves, []
        for output, axis in zip(outputs, passes.axes, strict=True):
            own = axis or 0
            tensor = output.movedim(0, own).contiguous() if own else output
            leaf = LabelledTensor(tensor, OnAxis(own), batch, requires_grad=is_continuous(tensor))
            leaves.append(leaf)
            if axis is None:
                handed.append(leaf.mean(0) if self.means else leaf.sum(0))
                vars(handed[-1])["of_rows"] = leaf  # for a criterion, which is given one row
            else:  # a copy, which may be changed in place
                handed.append(leaf.clone())
        batch.outputs += leaves
        self._calls.append(passes)
        return filled(passes.template, handed)

    def _passes(
        self, what: str, model: RowModel, given: Any, axes: Any, delivery: Delivery, order: Any = None
    ) -> RowPasses:
        """A call of the model, or of the criterion, of which each part has random numbers of its own."""
        numbers = delivery.numbers if delivery.parts is not None else ()
        seeds = [partial(self.seed, what, len(self._calls), number) for number in numbers] if numbers else ()
        own = {"slots": self.slots(delivery), "order": order, "parts": delivery.parts, "seeds": seeds}
        return RowPasses(model, given, axes, delivery.size, **own)

    def axis_of(self, tensor: Tensor, batch: LabelledBatch, called: str = "model") -> int | None:
        """The axis of the rows of an input of the model, or of the criterion."""
        dimension = 0 if self.setup.batch_first else 1
        if tensor.requires_grad and (called == "model" or type(tensor) is not LabelledTensor):
            raise UnsupportedError(
                f"an input of the {called} requires a gradient, and those of rows end at the model's inputs:"
                " take gradients with respect to inputs in the model's forward, by torch.autograd.grad, and"
                " return what follows from them; put the module that made the input into the model; do it"
                " after optimizer.step() (a generator's turn); or detach() it."
            )
        label = label_of(tensor)
        if type(tensor) is LabelledTensor and tensor.batch is not batch:
            label = Mixing("a tensor of an earlier batch")
        if label is None:
            own = dimension if tensor.dim() > dimension else 0
            if not tensor.dim():
                return None
            if tensor.shape[own] == batch.rows:
                return own
            raise UnsupportedError(
                f"the {called} was called with a tensor of shape {tuple(tensor.shape)}: each needs one row an"
                f" example ({batch.rows} here). Expand what all rows share (positions, masks) to the batch,"
                f" or make it a buffer of the {called}. {UNPACK}."
            )
        if isinstance(label, OnAxis) and tensor.shape[label.axis] == batch.rows:
            return label.axis
        why = f": {label.why}" if isinstance(label, Mixing) else ""
        remedy = (
            UNPACK
            if "a part of the batch" in why
            else f"Let the {called} do it for each row, or leave it out"
        )
        raise DesynchronizedError(
            f"the {called} was called with a tensor of shape {tuple(tensor.shape)} that does not have one row"
            f" an example{why}. {remedy}; for parts of a batch use anechoic.torch.BatchMemoryManager."
        )

    # -- a step ---------------------------------------------------------------------------------

    def sums(self, delivery: Delivery) -> list[Tensor]:
        batch, calls = self.checked_batch(delivery), self._calls
        if batch is None:
            return self.clipping.nothing(self.parameters)
        used: list[tuple[RowPasses, list[Tensor]]] = []
        with torch._C.DisableTorchFunctionSubclass():
            for call in calls:
                if given := self._cotangents(call, batch):
                    used.append((call, given))
        with torch.no_grad():
            totals = self.clipping.nothing(self.parameters)
            self._carry: tuple[int, list[Tensor]] | None = None
            for place, rows in enumerate(used[0][0].chunks if used and delivery.size else ()):
                vectors: list[Tensor] = []
                for call, given in used:
                    made = call.gradients(given, place)
                    vectors = [a + b for a, b in zip(vectors, made, strict=True)] if vectors else made
                limits = None
                if delivery.units is not None:
                    vectors, limits = self._contributions(rows, vectors, delivery)
                self.clipping.add(totals, vectors, limits)
        return totals

    def _cotangents(self, call: RowPasses, batch: LabelledBatch) -> list[Tensor]:
        """Gradients of each row's loss at its outputs, rows first; none where no gradient came."""
        made, came = [], False
        for leaf, axis in zip(call.leaves, call.axes, strict=True):
            own, gradient = OnAxis(axis or 0), leaf.grad
            came |= gradient is not None
            if why := fault_of(gradient, own, batch):
                raise GuaranteeError(
                    f"the gradient of one row's outputs depends on other rows. {why}. {REMEDY}."
                )
            found = torch.zeros_like(leaf.raw) if gradient is None else plain(gradient).detach()
            made.append(found.movedim(own.axis, 0))
        return made if came else []

    def discard_sums(self) -> None:
        self._calls = []
        super().discard_sums()

    def detach(self) -> None:
        self.module.__dict__.update(_source=None, _called=None)

    def slots(self, delivery: Delivery) -> int:
        """Rows of one chunk: a function of public numbers, and so is the shape that kernels work on.

        Those of a part, where batches are cut into parts; else as many as most batches have, rounded up, or
        as micro-batches have; fewer where their gradients would take more than `memory`.
        """
        if self.chunk is not None:
            return self.chunk
        most = self.ledger.micro_batch
        wanted = _rounded(min(self.rows, most) if most > 0 else self.rows)
        held = max(1, self.memory // self._row_bytes)
        return wanted if wanted <= held else min(held, _rounded(-(-wanted // -(-wanted // held))))

    def _contributions(
        self, rows: Tensor, found: list[Tensor], delivery: Delivery
    ) -> tuple[list[Tensor], Any]:
        """What is clipped together: the items that are complete with this chunk; and their limits."""
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
        chosen = items[:count].numpy()
        scales = torch.from_numpy(units.scales[chosen])
        vectors = [t[:count] * scales.to(t).reshape(-1, *(1,) * (t.dim() - 1)) for t in sums]
        return vectors, None if units.limits is None else units.limits[chosen]


def _by_items(delivery: Delivery) -> Tensor:
    """The rows of a delivery, those of one item side by side."""
    units: Any = delivery.units
    return torch.from_numpy(units.items).sort(stable=True).indices


def _rounded(rows: int) -> int:
    """A number of rows, rounded up to a multiple of about an eighth of it."""
    grain = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // grain) * grain

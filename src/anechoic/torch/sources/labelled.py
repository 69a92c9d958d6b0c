"""Gradients of single rows where tensors carry labels: any model row by row, any loss whose rows stay apart.

The model runs on one row at a time, many side by side by torch.func's vmap, in chunks of one public shape.
The training loop gets its outputs with labels (`anechoic.torch.labels`); backward() ends at them. At step()
one question is asked: has the gradient at the outputs its rows on their own axis, and was backward() called
on a mean (or sum) over rows? Then it is pulled back through the model for each row alone, clipped and summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.noise import derive
from anechoic.runs.ledger import Delivery
from anechoic.torch import label_layers  # noqa: F401 - labels know their rules by it
from anechoic.torch.labels import LabelledBatch, LabelledTensor, Mixing, OnAxis, OverRows, mark_of, plain
from anechoic.torch.randomness.generators import SEED_BYTES, States, fix, is_secret, restore, states
from anechoic.torch.sources.base import BY_HAND, GradientSource, SourceSetup, register
from anechoic.torch.sources.levels import is_continuous
from anechoic.torch.sources.row_passes import LabelledModel, RowPasses
from anechoic.torch.sources.rows import RowsModule, RowsSource, _by_items
from anechoic.torch.structure import full_precision, mapped, tensors_in

_REMEDY = (
    "Write a loss of each row's own, as with reduction='none', and take its .mean() over rows last; or let"
    " the model's forward return the loss, which is then given one row at a time"
)


class StepGenerators:
    """The global generators from a delivery to its step(): functions of the sampling key and t, and secret.

    Args:
        feed: has the sampling key.
    """

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._delivery: Delivery | None = None
        self._outside: States | None = None
        self._fixed = 0

    def deliver(self, delivery: Delivery) -> None:
        """Set them for one physical batch; where they stood is kept."""
        self.settle()
        self._outside, self._delivery, self._fixed = states(cuda=True), delivery, 0
        self.take()

    def take(self) -> None:
        """The model is called: a state that the script has set meanwhile is replaced by one of the key."""
        if self._delivery is None or (self._fixed and is_secret(torch.initial_seed())):
            return
        again = (self._fixed,) if self._fixed else ()
        self._fixed += 1
        place = self._delivery.place
        seed = derive(self._feed.key, "training step", self._delivery.step, place, *again, size=SEED_BYTES)
        fix(seed, cuda=True, secret=True)

    def settle(self) -> None:
        """The batch was stepped or given up: go on where they were."""
        outside, self._outside, self._delivery = self._outside, None, None
        if outside is not None:
            restore(outside)


class NoTypes:
    """Nothing is watched in this mode."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: False


class Handed:
    """A call of the model whose outputs were handed out."""

    def __init__(self, passes: RowPasses, leaves: list[LabelledTensor], axes: list[int | None]) -> None:
        self.rows, self.leaves, self.axes = passes, leaves, axes
        self.cotangents: list[Tensor] = []


@register("labels")
class LabelledSource(GradientSource):
    """One gradient a row, for losses that labels follow; see this module."""

    mode = "labels"
    by_layers, watches = False, False
    memory = RowsSource.memory
    slots: Any = RowsSource.slots
    _chunks: Any = RowsSource._chunks
    _contributions: Any = RowsSource._contributions

    def __init__(self, setup: SourceSetup) -> None:
        self.setup, self.parameters, self.clipping = setup, setup.parameters, setup.clipping
        self.ledger, self.types = setup.ledger, NoTypes()  # type: ignore[assignment]
        self.check_weights = lambda: None
        source: Any = self
        self.module = RowsModule(source, setup.module, setup.loss_reduction, setup.batch_first)
        self._model = LabelledModel(setup.module, setup.parameters, setup.batch_first)
        self._row_bytes = sum(p.numel() * p.element_size() for p in setup.parameters)
        self.batch: LabelledBatch | None = None
        self._calls: list[Handed] = []

    # -- delivery -------------------------------------------------------------------------------

    def delivered(self, delivery: Delivery) -> None:
        self.forget()
        self.batch = LabelledBatch(delivery.size, means=self.means, parameters=list(self.parameters))

    def labelled(self, content: Any) -> Any:
        """What the loader hands out, its tensors with labels."""
        batch, axis = self.batch, 0 if self.setup.batch_first else 1
        if batch is None:
            return content

        def label(tensor: Tensor) -> Tensor:
            own = axis if tensor.dim() > axis else 0
            if type(tensor) is LabelledTensor or not isinstance(tensor, Tensor):
                return tensor
            if tensor.dim() and tensor.shape[own] == batch.rows:
                return LabelledTensor(tensor, OnAxis(own), batch)
            return LabelledTensor(
                tensor,
                Mixing(f"a part of the batch of shape {tuple(tensor.shape)} has no row an example"),
                batch,
            )

        return mapped(content, label)

    # -- the model ------------------------------------------------------------------------------

    def called(self, arguments: Any, keywords: dict[str, Any]) -> Any:
        """model(*arguments, **keywords) in the training loop."""
        delivery, batch = self.ledger.in_hand, self.batch
        given, tensors = (arguments, keywords), tensors_in((arguments, keywords))
        followed = any(type(t) is LabelledTensor and t.batch is batch for t in tensors)
        size = -1 if delivery is None else delivery.size
        mine = followed or all(len(t) == size and not t.requires_grad for t in tensors if t.dim())
        if delivery is None or batch is None or not mine:  # other data than the batch in hand
            return self.setup.module(*arguments, **keywords)
        self.check_weights()
        axes = [self._axis(t, batch) for t in tensors]
        lengths = {t.shape[a] for t, a in zip(tensors, axes, strict=True) if a is not None}
        if lengths != {batch.rows}:
            raise DesynchronizedError(
                f"the model was called with {sorted(lengths)} rows, and the batch in hand has {batch.rows}:"
                " feed it the delivered batch, one row an example."
            )
        slots = self.slots(delivery)
        if not self._model.tried:
            self._model.try_out(given, axes, slots)
        order = None if delivery.units is None else _by_items(delivery)
        passes = RowPasses(
            self._model, given, axes, batch.rows, slots=slots, order=order, parts=delivery.parts
        )
        outputs = passes.run()
        leaves, handed = [], []
        for output, axis in zip(outputs, passes.axes, strict=True):
            own = axis or 0
            tensor = output.movedim(0, own).contiguous() if own else output
            leaf = LabelledTensor(tensor, OnAxis(own), batch, requires_grad=is_continuous(tensor))
            leaves.append(leaf)
            with torch._C.DisableTorchFunctionSubclass():  # what is handed out may be changed in place
                if axis is not None:
                    handed.append(leaf.clone())
                else:
                    handed.append(leaf.mean(0) if self.means else leaf.sum(0))
        batch.outputs += leaves
        self._calls.append(Handed(passes, leaves, passes.axes))
        return passes.filled(handed)

    def _axis(self, tensor: Tensor, batch: LabelledBatch) -> int | None:
        """The axis of the rows of an input."""
        dimension = 0 if self.setup.batch_first else 1
        if tensor.requires_grad:
            raise UnsupportedError(
                "an input of the model requires a gradient, and gradients of rows end at the model's inputs:"
                " take gradients with respect to inputs in the model's forward, by torch.autograd.grad, and"
                " return what follows from them; put the module that made the input into the model; or"
                " detach() it."
            )
        label = tensor.label if type(tensor) is LabelledTensor and tensor.batch is batch else None
        if type(tensor) is LabelledTensor and tensor.batch is not batch:
            label = Mixing("a tensor of an earlier batch")
        mark = mark_of(plain(tensor))
        label = label if mark is None else mark[0]
        if label is None:
            own = dimension if tensor.dim() > dimension else 0
            if not tensor.dim():
                return None
            if tensor.shape[own] == batch.rows:
                return own
            raise UnsupportedError(
                f"the model was called with a tensor of shape {tuple(tensor.shape)}: each needs one row an"
                f" example ({batch.rows} here). Expand what all rows share (positions, masks) to the batch,"
                " or make it a buffer of the model."
            )
        if isinstance(label, OnAxis) and tensor.shape[label.axis] == batch.rows:
            return label.axis
        why = f": {label.why}" if isinstance(label, Mixing) else ""
        raise UnsupportedError(
            f"the model was called with a tensor of shape {tuple(tensor.shape)} that does not have one row an"
            f" example{why}. Let the model do what mixes rows, or leave it out."
        )

    # -- a step ---------------------------------------------------------------------------------

    def sums(self, delivery: Delivery) -> list[Tensor]:
        batch, calls = self.batch, self._calls
        if batch is None or not batch.roots:
            if delivery.size == 0:
                return self.clipping.nothing(self.parameters)
            raise DesynchronizedError(
                "no gradient reached this step: call the module that make_private returned (not a part of it,"
                " and not the plain one) on the delivered batch, in train() mode, and loss.backward() before"
                " step()."
            )
        if len(batch.roots) > 1:
            raise DesynchronizedError(
                f"{len(batch.roots)} backward passes reached release {delivery.step}: {BY_HAND}. Of several"
                " losses of one batch call backward() on the sum."
            )
        if batch.fault:
            raise GuaranteeError(f"{batch.fault}.")
        self._check_root(batch)
        with torch._C.DisableTorchFunctionSubclass():
            found = [(call, self._cotangents(call, batch)) for call in calls]
        used = [(call, given) for call, given in found if given]
        for call, given in used:
            call.cotangents = given
        with torch.no_grad(), full_precision(self.device.type):
            totals = self.clipping.nothing(self.parameters)
            for rows, vectors in self._chunks([call for call, _ in used], delivery):
                whole = delivery.units is None
                for part, limits in (
                    [(vectors, None)] if whole else self._contributions(rows, vectors, delivery)
                ):
                    sums = self.clipping.sums(part, limits)
                    totals = [total + one for total, one in zip(totals, sums, strict=True)]
        return totals

    def _check_root(self, batch: LabelledBatch) -> None:
        root, wanted = batch.roots[0], OverRows(-1 if batch.means else 0)
        if root == wanted or batch.rows <= 1:
            return
        if isinstance(root, Mixing):
            raise GuaranteeError(f"the loss mixes rows. {root.why}. {_REMEDY}.")
        what = "mean" if batch.means else "sum"
        said = "one of single rows"
        if isinstance(root, OverRows):
            said = {0: "a sum over rows", -1: "a mean over rows"}.get(
                root.power, "divided by the number of rows more than once, or multiplied with it"
            )
        raise GuaranteeError(
            f"backward() was called on a loss that is {said}, and loss_reduction={what!r} says that"
            f" it is a {what} over rows: take .{what}() over rows last, or give make_private the other"
            " loss_reduction."
        )

    def _cotangents(self, call: Handed, batch: LabelledBatch) -> list[Tensor]:
        """Gradients of each row's loss at its outputs, rows first; none where no gradient came."""
        made = []
        for leaf, axis in zip(call.leaves, call.axes, strict=True):
            own, gradient = OnAxis(axis or 0), leaf.grad
            label = gradient.label if type(gradient) is LabelledTensor and gradient.batch is batch else None
            if label not in (None, own) and batch.rows > 1:
                why = label.why if isinstance(label, Mixing) else "a number of all rows weighs each of them"
                raise GuaranteeError(
                    f"the gradient of one row's outputs depends on other rows. {why}. {_REMEDY}."
                )
            if gradient is not None:
                made.append(plain(gradient).detach().movedim(own.axis, 0))
            else:
                made.append(torch.zeros_like(plain(leaf)).movedim(own.axis, 0))
        return made if any(leaf.grad is not None for leaf in call.leaves) else []

    def used(self) -> None:
        self._drop()

    def zero_grad(self) -> None:
        """Forget the backward passes; outputs of the model stay."""
        if self.batch is not None:
            self.batch.roots, self.batch.fault = [], ""
            for leaf in self.batch.outputs:
                leaf.grad = None

    def forget(self) -> None:
        self._drop()

    def _drop(self) -> None:
        self._calls = []
        if self.batch is not None:
            self.batch.end()
        self.batch = None

    def detach(self) -> None:
        self.module.__dict__.update(_source=None, _called=None)

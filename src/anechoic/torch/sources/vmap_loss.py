"""Gradients of losses that are computed row by row: a loss that mixes rows is impossible.

The criterion is an operation on tensors with labels, as any other: it gives the losses of the rows, and what
the script does to them (weights of rows, factors, a mean) is followed by the labels.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.labels import LabelledBatch, LabelledTensor, OnAxis, plain
from anechoic.torch.sources.row_model import RowModel, made_up, undisturbed
from anechoic.torch.sources.row_passes import FAILS
from anechoic.torch.sources.rows import RowsSource
from anechoic.torch.structure import filled, mapped, tensors_in


class VmapLossSource(RowsSource):
    """Gradients of rows; their losses are the user's criterion of one row each, as a batch of one.

    Class weights under "mean" therefore have no effect, and a criterion keeps nothing from row to row: what
    it changes of itself is taken back.
    """

    mode = "vmap_loss"

    def __init__(self, setup: Any, *given: Any, **sizes: Any) -> None:
        super().__init__(setup, *given, **sizes)
        plain = getattr(setup.criterion, "_orig_mod", setup.criterion)  # of torch.compile
        self._losses = LossModel(Criterion(getattr(plain, "_torchdynamo_orig_callable", plain)), [], True)
        self.criterion = torch.compiler.disable(self.loss)

    def loss(self, *arguments: Any, **keywords: Any) -> Tensor:
        """The mean (or sum) of the losses of the rows; for other data than the batch in hand, the user's."""
        batch, delivery = self.batch, self.ledger.in_hand
        given = mapped((arguments, keywords), lambda t: getattr(t, "of_rows", t))
        tensors = tensors_in(given)
        outputs = [t for t in tensors if type(t) is LabelledTensor and t.batch is batch and t.requires_grad]
        if batch is None or delivery is None or not outputs or not torch.is_grad_enabled():
            return self.setup.criterion(*arguments, **keywords)  # type: ignore[no-any-return]
        if not batch.rows:
            return outputs[0].sum() * 0
        axes = [self.axis_of(t, batch, "criterion") for t in tensors]
        model = self._losses
        own = model.differentiate(tensors, axes)
        if not model.tried:
            model.try_out(given, axes, self.slots(delivery))
        passes = self._passes("criterion", model, given, axes, delivery)
        losses = passes.run()[0]
        found = [passes.gradients([torch.ones_like(losses)], k) for k in range(len(passes.chunks))]
        gradients = [
            LabelledTensor(torch.cat(parts).squeeze(a + 1).movedim(0, a), OnAxis(a), batch)
            for a, *parts in zip(own, *found, strict=True)
        ]
        made = Losses.apply(losses, gradients, batch, *outputs)  # type: ignore[no-untyped-call]
        return made.mean() if self.means else made.sum()  # type: ignore[no-any-return]


class Losses(torch.autograd.Function):
    """The losses of rows as functions of outputs, with gradients that are known."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, gradients: Any, batch: LabelledBatch, *_: Tensor) -> Any:
        ctx.axes = [g.label.axis for g in gradients]
        ctx.save_for_backward(*gradients)
        return LabelledTensor(losses, OnAxis(0), batch)

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> Any:  # type: ignore[override]
        pairs = zip(ctx.saved_tensors, ctx.axes, strict=True)
        by_row = [(g, weights.reshape([-1 if i == a else 1 for i in range(g.dim())])) for g, a in pairs]
        return None, None, None, *[(g * w).to(g.dtype) for g, w in by_row]


class Criterion(nn.Module):
    """The user's, of arguments to which `shifts` are added, by the places of these."""

    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.criterion, self.shifts = criterion, dict[str, Tensor]()

    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        tensors = tensors_in((arguments, keywords))
        moved = [t + self.shifts[str(i)] if str(i) in self.shifts else t for i, t in enumerate(tensors)]
        arguments, keywords = filled((arguments, keywords), moved)
        with undisturbed(self):
            loss: Tensor = self.criterion(*arguments, **keywords)
        if loss.numel() != 1:
            raise UnsupportedError(f"the criterion gave shape {tuple(loss.shape)} for one row, no number.")
        return loss.reshape(())


class LossModel(RowModel):
    """The criterion as a model, whose weights are zeros that are added to one row of outputs."""

    called = "criterion"
    module: Any

    def differentiate(self, tensors: list[Tensor], axes: list[Any]) -> list[int]:
        """Take gradients with respect to outputs; return the axes of their rows."""
        own = {str(i): (t, a) for i, (t, a) in enumerate(zip(tensors, axes, strict=True)) if t.requires_grad}
        zeros = {i: nn.Parameter(torch.zeros_like(plain(t).narrow(a, 0, 1))) for i, (t, a) in own.items()}
        self.module.shifts = zeros
        self.parameters, self.names = [*zeros.values()], [*zeros]
        self.places = [(zeros, name, name) for name in zeros]
        return [a for _, a in own.values()]

    def _look_at_axes(self, given: Any, axes: list[int | None], tensors: list[Tensor]) -> None:
        """Refuse a loss that has a gradient though its arguments have none."""
        self.module.shifts, (arguments, keywords) = {}, filled(given, made_up(tensors, axes, 1, 0))
        with suppress(*FAILS), torch.enable_grad():
            self.tried = not self.module(*arguments, **keywords).requires_grad
        self.module.shifts = self.places[0][0]
        if not self.tried:
            raise GuaranteeError(
                "the criterion reaches a trainable parameter past the outputs of the model, as a penalty or a"
                " weight of its own, and what it adds there would be dropped. Use weight_decay=,"
                " or let the model return the term."
            )

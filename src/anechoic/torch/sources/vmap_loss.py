"""Gradients by vmap over model and loss, row by row: a loss that mixes examples is impossible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.torch.randomness.modes import Strangers, paused
from anechoic.torch.randomness.rng_stack import Generators, rewound
from anechoic.torch.row_types.labels import TOTAL
from anechoic.torch.sources.base import SourceSetup, register
from anechoic.torch.sources.rows import PendingCall, RowsSource
from anechoic.torch.structure import filled, tensors_in

_ONLY = (
    "The criterion must be called with outputs of the private module as they are (the whole, or a part such"
    " as outputs.logits): what is computed from them belongs into the criterion, which is given one row, as a"
    " batch of one, at a time."
)


@register("vmap_loss")
class VmapLossSource(RowsSource):
    """Gradients of the losses of single rows.

    Outputs of the module have no gradient: backward() from them is refused. The criterion that make_private
    returns gives each row to the user's, as a batch of one, and the backward() of what it returns takes the
    gradients of these losses alone: outputs have no other way back.
    """

    mode = "vmap_loss"

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        if not callable(setup.criterion):
            raise UnsupportedError(
                f"criterion={setup.criterion!r} must be callable with (outputs, targets), and is given one"
                " row at a time."
            )
        self.criterion = RowCriterion(self)

    @property
    def means(self) -> bool:
        return False  # gradients are those of the losses of rows

    def _drop(self) -> None:
        super()._drop()
        #: outputs that were handed out, by identity, with their call and place
        self.handed: dict[int, tuple[Tensor, PendingCall, int]] = {}

    def called(self, arguments: Any, keywords: dict[str, Any]) -> Any:
        delivery = self.ledger.in_hand
        if delivery is None:
            return self.setup.module(*arguments, **keywords)
        with paused():
            call = self.begun(delivery, arguments, keywords)
        joined = call.rows.joined(call.rows.outputs, self.setup.loss_reduction)
        outputs = [_End.apply(self.anchor, output) for output in joined]  # type: ignore[no-untyped-call]
        for place, output in enumerate(outputs):
            self.handed[id(output)] = (output, call, place)
        return call.rows.filled(outputs)


class RowCriterion:
    """The user's criterion, row by row.

    Args:
        source: of the run. Its criterion is given one row at a time, as a batch of one: whatever its
            `reduction`, it is that over one example. Class weights under "mean" therefore have no effect.
    """

    def __init__(self, source: VmapLossSource) -> None:
        self._source, self._criterion = source, source.setup.criterion
        self.reduction = source.setup.loss_reduction

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """The mean (or sum) of the losses of the rows.

        Raises:
            DesynchronizedError: for outputs that are not those of the module for the batch in hand.
            UnsupportedError: for a criterion that does not give one number for one row.
        """
        if self._source.ledger.in_hand is None or not torch.is_grad_enabled():
            found: Tensor = self._criterion(*arguments, **keywords)
            return found
        given = (arguments, keywords)
        tensors = tensors_in(given)
        self._source.types.check_inputs(given)
        known = [self._source.handed.get(id(tensor)) for tensor in tensors]
        calls = list({id(entry[1]): entry[1] for entry in known if entry is not None}.values())
        if not calls:
            raise DesynchronizedError(f"no output of the private module reached its criterion. {_ONLY}")
        rows = calls[0].rows.rows
        parts, axes = [], []
        for tensor, entry in zip(tensors, known, strict=True):
            if entry is not None:
                _, call, place = entry
                parts.append(call.rows.outputs[place])
                axes.append(call.rows.axes[place])
                continue
            if tensor.requires_grad:
                raise UnsupportedError(f"the criterion was given a tensor with a gradient. {_ONLY}")
            axis = _axis(tensor, rows, self._source.setup.batch_first)
            parts.append(tensor if axis is None else tensor.movedim(axis, 0))
            axes.append(axis)
        due = self._source.single.rows(calls[0].delivery)
        with paused():
            losses, gradients = self._losses(given, parts, axes, [e is not None for e in known], rows, due)
        cotangents: dict[int, list[Tensor]] = {
            id(call): [torch.zeros_like(output) for output in call.rows.outputs] for call in calls
        }
        for entry, gradient in zip([e for e in known if e is not None], gradients, strict=True):
            cotangents[id(entry[1])][entry[2]] = cotangents[id(entry[1])][entry[2]] + gradient
        loss = losses.sum() if self.reduction == "sum" or not rows else losses.mean()
        pairs = [(call, cotangents[id(call)]) for call in calls]
        made: Tensor = _Loss.apply(self._source.anchor, loss, pairs)  # type: ignore[no-untyped-call]
        self._source.types.mark(made, TOTAL)
        return made

    def _losses(
        self,
        given: Any,
        parts: list[Tensor],
        axes: list[int | None],
        own: list[bool],
        rows: int,
        due: tuple[int, ...],
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses of the rows, and their gradients with respect to the outputs among `parts`.

        Those of the rows `due` are taken once more, which shows what a criterion keeps from row to row.
        """
        outputs = [part for part, is_own in zip(parts, own, strict=True) if is_own]
        others = [part for part, is_own in zip(parts, own, strict=True) if not is_own]
        if not rows:
            return parts[0].new_zeros(0), [torch.zeros_like(output) for output in outputs]
        shared = [axis is None for axis, is_own in zip(axes, own, strict=True) if not is_own]

        def loss(mine: list[Tensor], rest: list[Tensor]) -> Tensor:
            first, second = iter(mine), iter(rest)
            row = [next(first) if is_own else next(second) for is_own in own]
            batch = [t if axis is None else t.unsqueeze(axis) for t, axis in zip(row, axes, strict=True)]
            arguments, keywords = filled(given, batch)
            with Strangers(self._source.types, parts):
                found: Tensor = self._criterion(*arguments, **keywords)
            if found.numel() != 1:
                raise UnsupportedError(
                    f"the criterion gave a tensor of shape {tuple(found.shape)} for one row: it must give one"
                    " number."
                )
            return found.reshape(())

        def alone(row: int) -> tuple[Tensor, list[Tensor]]:
            mine = [t[row].detach().requires_grad_() for t in outputs]
            rest = [t if is_shared else t[row] for t, is_shared in zip(others, shared, strict=True)]
            with torch.enable_grad():
                value = loss(mine, rest)
                found = torch.autograd.grad(value, mine, allow_unused=True)
            pairs = zip(found, mine, strict=True)
            return value.detach(), [torch.zeros_like(t) if g is None else g for g, t in pairs]

        places = [None if is_shared else 0 for is_shared in shared]
        start = Generators()
        starts = dict.fromkeys(due, start)
        try:
            chunk = self._source.setup.chunk
            side_by_side = vmap(grad_and_value(loss), in_dims=(0, places or 0), chunk_size=chunk)
            gradients, values = side_by_side(outputs, others)
        except (RuntimeError, NotImplementedError, TypeError):
            start.restore()
            made = []
            for row in range(rows):
                if row in starts:
                    starts[row] = Generators()
                made.append(alone(row))
            values = torch.stack([value for value, _ in made])
            gradients = [torch.stack(own) for own in zip(*(found for _, found in made), strict=True)]
        for row, before in starts.items():
            with rewound(before):
                _, again = alone(row)
            self._source.single.compare_criterion([g[row] for g in gradients], again, row)
        return values.detach(), list(gradients)


class _End(torch.autograd.Function):
    """Output without a gradient: backward() through it is refused."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, output: Tensor) -> Tensor:
        if not output.dtype.is_floating_point:
            ctx.mark_non_differentiable(output)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        raise DesynchronizedError(
            "backward() reached an output of the model past the criterion: in grad_sample_mode='vmap_loss'"
            " only what the criterion of make_private returns has gradients. Call that criterion; for a model"
            " that returns its own loss use grad_sample_mode='rows'."
        )


class _Loss(torch.autograd.Function):
    """Reduced loss; its backward() takes the gradients that were computed with it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, pairs: list[tuple[PendingCall, list[Tensor]]]) -> Any:
        ctx.pairs = pairs
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        if float(gradient) != 1.0:
            raise GuaranteeError(
                f"the loss was multiplied by {float(gradient):.6g} after the criterion, and a factor may know"
                " other examples: call backward() on what the criterion returns; put factors into the"
                " criterion, or into the learning rate."
            )
        for call, cotangents in ctx.pairs:
            call.pull(cotangents)
        return None, None, None


def _axis(tensor: Tensor, rows: int, batch_first: bool) -> int | None:
    """Where a target has its rows; None for what has none, a number for all rows."""
    if not tensor.dim():
        return None
    for axis in (0,) if batch_first else (1, 0):
        if tensor.dim() > axis and tensor.shape[axis] == rows:
            return axis
    raise UnsupportedError(
        f"the criterion was given a tensor of shape {tuple(tensor.shape)}, which does not have one row for"
        f" each of {rows} examples."
    )

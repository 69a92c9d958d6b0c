"""Ghost clipping as a gradient source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from anechoic.errors import GuaranteeError
from anechoic.runs.ledger import Delivery
from anechoic.torch.sources.base import GradientSource, ModelWrapper, SourceSetup, register
from anechoic.torch.sources.ghost.gradients import GhostGradients
from anechoic.torch.sources.ghost.loss import PerExampleCriterion


class GhostHandle:
    """Handle that make_private returns under wrap_model=False, in the place of a module.

    Attributes:
        loss_reduction, batch_first: as given to make_private.
    """

    def __init__(self, module: nn.Module, loss_reduction: str, batch_first: bool) -> None:
        self._module = module
        self.loss_reduction, self.batch_first = loss_reduction, batch_first


class GhostModule(ModelWrapper):
    """Wrapper of the module, whose trainable layers record what ghost clipping needs."""

    def __init__(self, module: nn.Module, loss_reduction: str, batch_first: bool) -> None:
        super().__init__(module, loss_reduction, batch_first)
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return forward_allowing_empty(self._module, args, kwargs, batch_first=self.batch_first)


@register("ghost")
class GhostSource(GradientSource):
    """Clipped sums by norms of layer inputs and backprops; layers that are not on its list are refused.

    The model runs on the whole batch; the types of rows (`row_types`) show in every step that each traced
    layer is fed with one row an example, and that each loss is that of its own row.

    Guarantee: what one example adds to the sums has norm at most clip norm * (1 + `excess`): it is the same
    float64 numbers that are measured and summed, and norms count what rounding may have hidden.
    """

    mode = "ghost"
    takes_grid = False

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        self.types.whole = True
        self._gradients = GhostGradients(
            setup.module,
            setup.parameters,
            setup.ledger,
            setup.clipping,
            self.types,
            batch_first=setup.batch_first,
        )
        self.module = (GhostModule if setup.wrap else GhostHandle)(
            setup.module, setup.loss_reduction, setup.batch_first
        )
        self.criterion = PerExampleCriterion(self._gradients, setup.criterion, setup.loss_reduction)

    @property
    def means(self) -> bool:
        return False  # backward() starts at the losses of the rows, whatever becomes of their sum

    @property
    def excess(self) -> float:
        return max(self.clipping.excess, self._gradients.excess)

    def sums(self, delivery: Delivery) -> list[Tensor]:
        self.types.check_sizes()
        if self.types.batch.decided and self._gradients.passes:
            raise GuaranteeError(
                f"something was decided by numbers taken out of batch {delivery.step} (if mask.all():,"
                " .item()), and ghost clipping runs the model on the whole batch, where that mixes examples."
                " Nothing was released. Decide by public numbers (apply a mask whether or not it is all"
                " ones; models of transformers take one of shape (rows, 1, queries, keys) as it is), or use"
                " grad_sample_mode='rows', in which each row decides for itself."
            )
        return self._gradients.sums(delivery)

    def discard_sums(self) -> None:
        self._gradients.forget()
        self.types.rest()

    def zero_grad(self) -> None:
        self._gradients.forget()

    forget = discard_sums

    def detach(self) -> None:
        self._gradients.tracer.detach()


def forward_allowing_empty(module: nn.Module, args: Any, kwargs: Any, *, batch_first: bool) -> Any:
    """Call the module; in training an empty batch runs as one row, of which nothing is left."""
    dimension = 0 if batch_first else 1
    if module.training and torch.is_grad_enabled() and _is_empty((args, kwargs), dimension):
        args, kwargs = tree_map(lambda value: _one_row(value, dimension), (args, kwargs))
        with torch.no_grad():
            output = module(*args, **kwargs)
        return tree_map(lambda value: _no_row(value, dimension), output)
    return module(*args, **kwargs)


def _is_empty(values: Any, dimension: int) -> bool:
    tensors = [t for t in tree_flatten(values)[0] if isinstance(t, Tensor) and t.dim() > dimension]
    return bool(tensors) and all(t.shape[dimension] == 0 for t in tensors)


def _one_row(value: Any, dimension: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() <= dimension:
        return value
    shape = list(value.shape)
    shape[dimension] = 1
    return value.new_zeros(shape)


def _no_row(value: Any, dimension: int) -> Any:
    """The part of an output that belongs to no row: it depends on no parameter, and can be differentiated."""
    if not isinstance(value, Tensor):
        return value
    found = value.detach()
    if found.dim() > dimension and found.shape[dimension] == 1:
        found = found.narrow(dimension, 0, 0)
    return found.requires_grad_() if found.is_floating_point() else found

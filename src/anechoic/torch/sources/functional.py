"""Per-example gradients of any layer, by differentiating its call again for each row alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from anechoic.errors import UnsupportedError
from anechoic.torch.local.stateless import called


class Again(nn.Module):
    """A layer whose hooks are left out: what is hooked on it comes before or after what is differentiated."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, arguments: Any) -> Any:
        args, kwargs = arguments
        return self.layer.forward(*args, **kwargs)


def row_gradients(
    layer: nn.Module,
    arguments: tuple[Any, Any],
    backprops: list[Tensor | None],
    *,
    rows: int,
    dimension: int,
    autocast: tuple[str, torch.dtype] | None,
) -> dict[nn.Parameter, Tensor]:
    """Gradients of <backprops, layer(*arguments)> row by row.

    Args:
        layer: in the state in which it was called.
        arguments: (args, kwargs) of the call.
        backprops: gradients of the tensors in its output, in their order; None where there is none.
        rows: of the call.
        dimension: the axis of the rows.
        autocast: device type and dtype under which it was called, if it was.

    Raises:
        UnsupportedError: if torch.func.vmap cannot run the layer; it names the remedy.
    """
    parameters = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    flat, spec = tree_flatten(arguments)
    batched = [i for i, value in enumerate(flat) if _has_rows(value, rows, dimension)]
    wrapped = Again(layer)
    kept = [i for i, backprop in enumerate(backprops) if backprop is not None]

    def loss(weights: dict[str, Tensor], row: list[Tensor], wanted: list[Tensor]) -> Tensor:
        filled = list(flat)
        for i, value in zip(batched, row, strict=True):
            filled[i] = value.unsqueeze(dimension)
        with torch.autocast(*autocast) if autocast else nullcontext():
            output = called(wrapped, weights, (tree_unflatten(filled, spec),))
        tensors = [value for value in tree_flatten(output)[0] if isinstance(value, Tensor)]
        parts = [(tensors[i] * w.unsqueeze(dimension)).sum() for i, w in zip(kept, wanted, strict=True)]
        return torch.stack([part.to(parts[0].dtype) for part in parts]).sum()

    own = {f"layer.{name}": p.detach() for name, p in parameters.items()}
    each = vmap(grad(loss), in_dims=(None, dimension, dimension))
    try:
        found = each(own, [flat[i].detach() for i in batched], [b for b in backprops if b is not None])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        raise UnsupportedError(
            f"the gradients of single examples of {type(layer).__name__} cannot be had from its call, as"
            " where it draws random numbers (dropout inside a module with parameters of its own) or reads the"
            " size of the batch: use grad_sample_mode='vmap', which runs the whole model row by row."
            f" (torch.func.vmap said: {error})"
        ) from error
    return {p: found[f"layer.{name}"] for name, p in parameters.items()}


def _has_rows(value: Any, rows: int, dimension: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > dimension and value.shape[dimension] == rows

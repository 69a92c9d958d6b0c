"""What a model holds of a batch, which every row would see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from anechoic.errors import DesynchronizedError
from anechoic.torch.row_types.call import tensors_among
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.row_types.labels import Mixed
from anechoic.torch.row_types.numbers import among
from anechoic.torch.structure import TORCHS_OWN

#: What cannot hold anything of it.
_PLAIN = frozenset({bool, int, float, str, type(None)})


def check_held(types: RowTypes, module: nn.Module) -> set[int]:
    """Refuse a model whose attributes, buffers or frozen weights hold something of a batch.

    Returns:
        Identities of the tensors in its attributes, for `mark_kept`.

    Raises:
        DesynchronizedError: naming the attribute.
    """

    def taken(tensor: Tensor) -> bool:
        return types.follows(tensor) or types.overwritten(tensor)

    seen: set[int] = set()
    for layer in module.modules():
        for name, value in _own(layer):
            tensors = tensors_among(value)
            seen.update(map(id, tensors))
            if among(value) or any(map(taken, tensors)):
                raise _refused(layer, name)
        for name, tensor in (*layer._buffers.items(), *layer._parameters.items()):
            if tensor is not None and taken(tensor):
                raise _refused(layer, name)
    return seen


def mark_kept(types: RowTypes, module: nn.Module, seen: set[int]) -> None:
    """What a model that runs row by row leaves in its attributes is of the batch: the loss may not use it.

    Args:
        seen: what `check_held` returned before it ran.
    """
    for layer in module.modules():
        for name, value in _own(layer):
            why = Mixed(f"{type(layer).__name__}.{name} kept it while rows ran one by one")
            for tensor in tensors_among(value):
                if id(tensor) not in seen:
                    types.mark(tensor, why)


def _own(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes of a layer that may hold something."""
    for name, value in vars(layer).items():
        if type(value) not in _PLAIN and name not in TORCHS_OWN:
            yield name, value


def _refused(layer: nn.Module, name: str) -> DesynchronizedError:
    return DesynchronizedError(
        f"{type(layer).__name__}.{name} of the model was made from the batch, or is a number that was taken"
        " out of one (.item()), so each row sees the others there. Nothing was released. Hand it over as an"
        " input, one row an example."
    )

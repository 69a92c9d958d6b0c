"""What attributes of a model hold of a batch, which every row would see."""

from __future__ import annotations

from torch import nn

from anechoic.errors import DesynchronizedError
from anechoic.torch.row_types.call import tensors_among
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.row_types.numbers import among

#: What cannot hold anything of it.
_PLAIN = frozenset({bool, int, float, str, type(None)})


def check_held(types: RowTypes, module: nn.Module) -> None:
    """Refuse a model whose attributes hold something of a batch.

    Raises:
        DesynchronizedError: naming the attribute.
    """
    for layer in module.modules():
        for name, value in vars(layer).items():
            if type(value) in _PLAIN or name[0] == "_":
                continue
            if among(value) or any(map(types.follows, tensors_among(value))):
                raise DesynchronizedError(
                    f"{type(layer).__name__}.{name} of the model was made from the batch, or is a number that"
                    " was taken out of one (.item()), so each row sees the others there. Nothing was"
                    " released. Hand it over as an input, one row an example."
                )

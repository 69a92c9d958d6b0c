"""What must not mix per-example gradients, and what no release covers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.torch.structure import TORCHS_OWN

logger = logging.getLogger("anechoic")

#: Layers whose output for one example depends on the others of the batch, unless in eval() mode.
MIXING = (nn.modules.batchnorm._BatchNorm,)
#: Values of one attribute that are looked at for what is not registered, and attributes that are named.
LOOKED_AT, NAMED = 1024, 5


def check_not_mixing(layers: Iterable[nn.Module]) -> None:
    """Refuse batch normalisation by the statistics of the batch, trainable or not: it mixes the examples.

    Raises:
        GuaranteeError: if one of the layers is in train() mode, or keeps no statistics to use in eval() mode.
    """
    found = [layer for layer in layers if isinstance(layer, MIXING)]
    if any(layer.running_mean is None and layer.running_var is None for layer in found):
        raise GuaranteeError(
            "a batch normalisation layer keeps no running statistics (track_running_stats=False), so it mixes"
            " the examples of a batch in eval() mode too, and clipping one example's gradient does not bound"
            " what it changes. Replace it: PrivacyEngine.get_compatible_module does."
        )
    if any(layer.training for layer in found):
        raise GuaranteeError(
            "a batch normalisation layer is in train() mode: it mixes the examples of a batch, so clipping"
            " one example's gradient does not bound what it changes. Keep it in eval() mode throughout, or"
            " replace it: PrivacyEngine.get_compatible_module does."
        )


def report_unregistered(module: nn.Module) -> None:
    """Warn, once, of layers and tensors in plain attributes that require a gradient and no release covers.

    Attributes of all layers are looked at, and the lists, tuples, dicts, sets and plain objects in them,
    three levels deep and up to `LOOKED_AT` values of one attribute. Tensors that were computed (a cache of a
    reparametrised weight) are no parameters.
    """
    known = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    found = [
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        for name, value in vars(layer).items()
        if name not in TORCHS_OWN and any(map(_trains, _held(value, known)))
    ]
    if found:
        logger.warning(
            "module holds layers or tensors that require a gradient and are not registered: %s. Nobody trains"
            " them here. Training them by another optimizer, or by hand, is outside of the guarantee: their"
            " gradients are neither clipped nor noisy. Register them (nn.ModuleList, nn.ParameterList,"
            " self.x = nn.Parameter(…)) and give them to the optimizer, or call requires_grad_(False).",
            ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else ""),
        )


def _held(value: Any, known: set[int]) -> Iterator[Any]:
    """Layers and tensors that are not `known`, in a plain attribute."""
    left, seen = deque([(value, 3)]), set(known)
    for _ in range(LOOKED_AT):
        if not left:
            return
        held, deep = left.popleft()
        if id(held) in seen or held is None or isinstance(held, (str, bytes, int, float, type)):
            continue
        seen.add(id(held))
        if isinstance(held, (Tensor, nn.Module)):
            yield held
        elif deep:
            inner: Iterable[Any] = ()
            if isinstance(held, Mapping):
                inner = held.values()
            elif isinstance(held, (list, tuple, Set, deque)):
                inner = held
            elif hasattr(held, "__dict__") and not callable(held):
                inner = vars(held).values()
            left += ((each, deep - 1) for each in islice(inner, LOOKED_AT - len(left)))


def _trains(held: Any) -> bool:
    parameters = held.parameters() if isinstance(held, nn.Module) else (held,)
    return any(p.requires_grad and p.is_leaf for p in parameters)

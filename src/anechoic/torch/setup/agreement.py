"""Compare, by digests, what must be the same on all ranks that begin one run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from anechoic.errors import MismatchError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.checkpoints.replay import environment
from anechoic.torch.generators import seeded
from anechoic.torch.keys import Key
from anechoic.torch.loading.fetching import Fetcher, tried
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.structure import PLAIN, bits

#: Bytes of a data set in memory that is compared as a whole; examples that are compared of any other.
_WHOLE, _EXAMPLES = 2**28, 16
#: Differences that a message names.
_NAMED = 4

_REMEDIES = {
    "weight": "Give every rank the same weights: torch.manual_seed(0) before the model is made, or"
    " for p in model.parameters(): torch.distributed.broadcast(p.data, 0).",
    "data": "Give every rank the whole data set, in the same order: without a DistributedSampler, a shuffled"
    " copy or a split of its own. Each rank finds its rows of a batch by itself.",
    "mechanism": "Plan once, and give every rank the same mechanism=.",
    "key": "Give the keys on rank 0 alone, or the same ones on every rank.",
}
_OTHERWISE = "Start every rank with the same script, arguments and software."


def facts_of(setup: Setup, mechanism: Mechanism, keys: Mapping[str, Key], **others: Any) -> dict[str, str]:
    """Return what this rank would begin with, by name.

    Args:
        setup: as asked for.
        mechanism: given or planned.
        keys: as given to the engine, by name.
        others: numbers and strings that must be the same too.
    """
    loader = setup.data_loader
    found = {"mechanism": mechanism.fingerprint, "optimizer": type(setup.optimizer).__name__}
    device = next(iter(setup.module.parameters())).device
    found |= {f"software {name}": str(value) for name, value in environment(device).items()}
    plain = {name: value for name, value in vars(setup).items() if type(value) in PLAIN}
    plain |= others | {"max_grad_norm": setup.max_grad_norm}  # several, where there are groups
    plain["unit_ids"] = "none" if setup.units is None else setup.units.digest
    found |= {f"argument {name}": repr(value) for name, value in plain.items()}
    for place, group in enumerate(setup.optimizer.param_groups):
        options = {name: value for name, value in group.items() if type(value) in PLAIN}
        found[f"optimizer group {place}"] = f"{len(group['params'])} parameters, {options}"
    layers = [f"{name} {type(layer).__name__}" for name, layer in setup.module.named_modules()]
    found["model"] = _digest([text.encode() for text in layers])
    for name, tensor in (*setup.module.named_parameters(), *setup.module.named_buffers()):
        how = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}"
        found[f"weight {name}"] = f"{how} {_digest([_octets(tensor)])}"
    found["data loader"] = f"batch_size={loader.batch_size}, drop_last={loader.drop_last}"
    found["data sampler"] = type(loader.sampler).__name__
    found["data length"] = str(setup.examples)
    found["data"] = _data(setup)
    for name, key in keys.items():
        found[f"key {name}"] = _digest([key]) if isinstance(key, bytes) else "none" if key is None else "made"
    return found


def check_agreement(every: list[dict[str, str]]) -> None:
    """Compare the facts of all ranks, on every rank.

    Raises:
        MismatchError: on all of them, naming what differs, and on which rank.
    """
    for rank, other in enumerate(every):
        names = [name for name in every[0].keys() | other.keys() if every[0].get(name) != other.get(name)]
        # a rank without keys takes those of rank 0
        names = [name for name in names if not (name.startswith("key ") and other.get(name) == "none")]
        if not names:
            continue
        names.sort(key=lambda name: (name.startswith("weight"), name))
        listed = "; ".join(
            f"{name} is {other.get(name, 'missing'):.60} there, and {every[0].get(name, 'missing'):.60} on"
            " rank 0"
            for name in names[:_NAMED]
        )
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        kinds = dict.fromkeys(_REMEDIES.get(name.split(" ")[0], _OTHERWISE) for name in names)
        raise MismatchError(
            f"rank {rank} would begin another run than rank 0: {listed}{more}. {' '.join(kinds)} Nothing was"
            " begun."
        )


def _digest(parts: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:16]


def _octets(tensor: Tensor) -> Any:
    return bits(tensor.detach().cpu()).numpy().data


def _data(setup: Setup) -> str:
    """Return a digest of the data set: whole where it is tensors in memory, else of some examples."""
    dataset, loader = setup.data_loader.dataset, setup.data_loader
    if type(dataset) is TensorDataset and "__getitems__" not in vars(dataset):
        tensors = list(dataset.tensors)
        if sum(t.numel() * t.element_size() for t in tensors) <= _WHOLE:
            return _digest(_parts_of(tensors))
    chosen = sorted({int(place) for place in np.linspace(0, setup.examples - 1, _EXAMPLES)})
    fetcher = Fetcher(dataset, loader.collate_fn, setup.batch_first)

    def digest() -> str:
        with seeded(bytes(32)):
            return _digest(_parts_of(fetcher.examples(chosen)))

    found: str = tried(loader, digest)
    return found


def _parts_of(examples: Any) -> list[Any]:
    parts: list[Any] = []
    for leaf in tree_leaves(examples):
        if isinstance(leaf, Tensor):
            parts += [f"{leaf.dtype} {tuple(leaf.shape)}".encode(), _octets(leaf)]
        elif isinstance(leaf, (np.ndarray, np.generic)):
            parts += [f"{leaf.dtype} {leaf.shape}".encode(), np.ascontiguousarray(leaf).tobytes()]
        else:
            parts.append((repr(leaf) if type(leaf) in PLAIN else type(leaf).__name__).encode())
    return parts


def unwrapped(module: Any) -> Any:
    """Return the module inside of torch's or Opacus's DistributedDataParallel: the engine adds sums up."""
    names = {cls.__name__ for cls in type(module).__mro__}
    if isinstance(module, DistributedDataParallel) or "DifferentiallyPrivateDistributedDataParallel" in names:
        inner: nn.Module = module.module
        return inner
    return module

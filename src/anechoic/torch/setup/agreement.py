"""Compare, by digests, what must be the same on all ranks that begin one run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anechoic.errors import MismatchError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.checkpoints.environment import environment
from anechoic.torch.generators import seeded
from anechoic.torch.keys import Key
from anechoic.torch.loading.fetching import Fetcher, tried
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.structure import PLAIN, bits

#: Examples of the data set that are compared.
_EXAMPLES = 64
_REMEDIES = {
    "weight": "Give every rank the same weights: torch.manual_seed(0) before the model is made, or"
    " for p in model.parameters(): torch.distributed.broadcast(p.data, 0).",
    "data": "Give every rank the whole data set, in the same order: each finds its rows of a batch by"
    " itself.",
    "mechanism": "Plan once, and give every rank the same mechanism=.",
    "key": "Give the keys on rank 0 alone, or the same ones on every rank.",
}
_OTHERWISE = "Start every rank with the same script, arguments and software."


def facts_of(setup: Setup, mechanism: Mechanism, keys: Mapping[str, Key], **others: Any) -> dict[str, str]:
    """Return what this rank would begin with, by name; `others` must be the same too."""
    loader, device = setup.data_loader, next(iter(setup.module.parameters())).device
    found: dict[str, Any] = {"mechanism": mechanism.fingerprint}
    found |= {f"software {name}": value for name, value in environment(device).items()}
    plain = {name: value for name, value in vars(setup).items() if type(value) in PLAIN}
    plain |= others | {"max_grad_norm": setup.max_grad_norm}  # several, where there are groups
    plain["unit_ids"] = "none" if setup.units is None else setup.units.digest
    found |= {f"argument {name}": repr(value) for name, value in plain.items()}
    found |= {"optimizer": type(setup.optimizer).__name__, "model": repr(setup.module)}
    for place, group in enumerate(setup.optimizer.param_groups):
        options = {name: value for name, value in group.items() if type(value) in PLAIN}
        found[f"optimizer group {place}"] = f"{len(group['params'])} parameters, {options}"
    for name, tensor in (*setup.module.named_parameters(), *setup.module.named_buffers()):
        found[f"weight {name}"] = f"{_digest(tensor)} {tensor.requires_grad}"  # of type and shape, too
    found["data loader"] = f"{loader.batch_size} {loader.drop_last} {type(loader.sampler).__name__}"
    found["data length"] = setup.examples
    found["data"] = _data(setup)
    for name, key in keys.items():
        found[f"key {name}"] = _digest(key) if isinstance(key, bytes) else "none" if key is None else "made"
    return {name: str(value) for name, value in found.items()}


def check_agreement(every: list[dict[str, str]]) -> None:
    """Compare the facts of all ranks, on every rank; refuse on all of them what differs on one."""
    for rank, other in enumerate(every):
        names = [name for name in every[0] | other if every[0].get(name) != other.get(name)]
        # a rank without keys takes those of rank 0
        names = [name for name in names if not (name.startswith("key ") and other.get(name) == "none")]
        if not names:
            continue
        listed = "; ".join(
            f"{name} is {other.get(name, 'missing'):.60}, not {every[0].get(name, 'missing'):.60}"
            for name in names[:4]
        )
        kinds = dict.fromkeys(_REMEDIES.get(name.split(" ")[0], _OTHERWISE) for name in names)
        raise MismatchError(
            f"rank {rank} would begin another run than rank 0: {listed}. {' '.join(kinds)} Nothing was begun."
        )


def _digest(content: Any) -> str:
    """Digest of the tensors, arrays and plain values in a structure; of other things by their type."""
    found = hashlib.sha256()
    for leaf in tree_leaves(content):
        head = f"{getattr(leaf, 'dtype', type(leaf))} {tuple(getattr(leaf, 'shape', ()))} "
        if isinstance(leaf, Tensor):
            part = bits(leaf.detach().cpu()).numpy().tobytes()
        elif isinstance(leaf, (np.ndarray, np.generic)):
            part = leaf.tobytes()
        else:
            part = repr(leaf).encode() if type(leaf) in PLAIN else b""
        found.update(f"{head}{len(part)} ".encode() + part)
    return found.hexdigest()[:16]


def _data(setup: Setup) -> str:
    """Return a digest of some examples of the data set."""
    loader = setup.data_loader
    chosen = sorted({int(place) for place in np.linspace(0, setup.examples - 1, _EXAMPLES)})
    fetcher = Fetcher(loader.dataset, loader.collate_fn, setup.batch_first)

    def digest() -> str:
        with seeded(bytes(32)):
            return _digest(fetcher.examples(chosen))

    return str(tried(loader, digest))


def unwrapped(module: Any) -> Any:
    """Return the module inside of torch's or Opacus's DistributedDataParallel: the engine adds sums up."""
    wraps = {"DistributedDataParallel", "DifferentiallyPrivateDistributedDataParallel"}
    return module.module if wraps & {cls.__name__ for cls in type(module).__mro__} else module

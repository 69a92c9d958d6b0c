"""How several ranks begin one run: what must be the same on all of them, and the keys of rank 0."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.checkpoints.replay import environment
from anechoic.torch.keys import Key, Keys, KeySource
from anechoic.torch.loading.fetching import Fetcher, tried
from anechoic.torch.noise_adder import Arithmetic
from anechoic.torch.randomness.generators import seeded
from anechoic.torch.ranks.cut import blocks_in, is_cut, layout_of
from anechoic.torch.ranks.group import Ranks
from anechoic.torch.setup.asked import Setup
from anechoic.torch.structure import PLAIN, bits

logger = logging.getLogger("anechoic")
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
    """What this rank would begin with, by name.

    Args:
        setup: as asked for.
        mechanism: given or planned.
        keys: as given to the engine, by name.
        others: numbers and strings that must be the same too.
    """
    groups, parameters = setup.optimizer.param_groups, next(iter(setup.module.parameters()))
    found = {f"software {name}": str(value) for name, value in environment(parameters.device).items()}
    found["code of anechoic"] = _code()
    found["mechanism"] = mechanism.fingerprint
    found |= {name: str(value) for name, value in others.items()}
    found |= {f"argument {name}": repr(value) for name, value in vars(setup).items() if type(value) in PLAIN}
    found["argument max_grad_norm"] = repr(setup.max_grad_norm)  # several, where there are groups
    found["argument unit_ids"] = "none" if setup.units is None else setup.units.digest
    found["optimizer"] = type(setup.optimizer).__name__
    for place, group in enumerate(groups):
        options = {name: value for name, value in group.items() if type(value) in PLAIN}
        found[f"optimizer group {place}"] = f"{len(group['params'])} parameters, {options}"
    layers = [f"{name} {type(layer).__name__}" for name, layer in setup.module.named_modules()]
    layers += [f"{name} is a block" for name, _ in blocks_in(setup.module)]
    found["model"] = _digest([text.encode() for text in layers])
    tensors = {**dict(setup.module.named_parameters()), **dict(setup.module.named_buffers())}
    for name, tensor in tensors.items():
        how = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}"
        # of what ranks have a part each, nothing but how it lies there can be compared
        what = layout_of(tensor) if is_cut(tensor) else _digest([_octets(tensor)])
        found[f"weight {name}"] = f"{how} {what}"
    loader = setup.data_loader
    found["data loader"] = f"batch_size={loader.batch_size}, drop_last={loader.drop_last}"
    found["data sampler"] = type(loader.sampler).__name__
    found["data length"] = str(setup.examples)
    found["data"] = _data(setup)
    for name, key in keys.items():
        found[f"key {name}"] = _digest([key]) if isinstance(key, bytes) else "none" if key is None else "made"
    return found


def check_agreement(ranks: Ranks, facts: dict[str, str]) -> None:
    """Compare the facts of all ranks, on every rank.

    Raises:
        MismatchError: on all of them, naming what differs, and on which rank.
    """
    every = ranks.objects(facts, "make_private")
    for rank, other in enumerate(every):
        names = [name for name in every[0].keys() | other.keys() if every[0].get(name) != other.get(name)]
        # a rank without keys takes those of rank 0
        names = [name for name in names if not (name.startswith("key ") and other.get(name) == "none")]
        if not names:
            continue
        names.sort(key=lambda name: (name.startswith("weight"), name))
        listed = "; ".join(
            f"{name} is {_short(other.get(name))} there, and {_short(every[0].get(name))} on rank 0"
            for name in names[:_NAMED]
        )
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        kinds = dict.fromkeys(_REMEDIES.get(name.split(" ")[0], _OTHERWISE) for name in names)
        raise MismatchError(
            f"rank {rank} would begin another run than rank 0: {listed}{more}. {' '.join(kinds)} Nothing was"
            " begun."
        )


def _short(value: str | None) -> str:
    return "missing" if value is None else value if len(value) <= 60 else f"{value[:57]}…"


def _digest(parts: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:16]


def _octets(tensor: Tensor) -> Any:
    return bits(tensor.detach().cpu()).numpy().data


def _code() -> str:
    """A digest of this library's own files, whatever version they say they are."""
    root = Path(__file__).resolve().parents[2]
    files = sorted(root.rglob("*.py"))
    return _digest(
        part for path in files for part in (str(path.relative_to(root)).encode(), path.read_bytes())
    )


def _data(setup: Setup) -> str:
    """A digest of the data set: whole where it is tensors in memory, else of some examples."""
    dataset, loader = setup.data_loader.dataset, setup.data_loader
    if type(dataset) is TensorDataset and "__getitems__" not in vars(dataset):
        tensors = list(dataset.tensors)
        if sum(t.numel() * t.element_size() for t in tensors) <= _WHOLE:
            return _digest(_parts_of(tensors))
    if not setup.examples:
        return "empty"
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


def plain(module: Any) -> Any:
    """The module inside of torch's DistributedDataParallel, or of Opacus's: the engine sums gradients up."""
    names = {cls.__name__ for cls in type(module).__mro__}
    if isinstance(module, DistributedDataParallel) or "DifferentiallyPrivateDistributedDataParallel" in names:
        logger.info("module is %s: the module inside is used.", type(module).__name__)
        inner: nn.Module = module.module
        return inner
    return module


def agreed_keys(
    ranks: Ranks,
    keys: KeySource,
    setup: Setup,
    mechanism: Mechanism,
    arithmetic: Arithmetic,
    how: Mapping[str, object],
) -> Keys:
    """The keys of rank 0 on every rank, once all ranks would begin the same run.

    Args:
        how: arguments of the engine that must be the same, by name; `chunk_rows` among them.

    Raises:
        MismatchError: on every rank, where they would not.
        UnsupportedError: where sums are no integers.
    """
    where = "make_private"
    with ranks.together(where):
        others = {"exact sums": arithmetic.exact, **{f"argument {name}": how[name] for name in how}}
        facts = facts_of(setup, mechanism, keys.given, **others)
    check_agreement(ranks, facts)
    if not arithmetic.exact:  # the same on all of them
        raise UnsupportedError(
            f"{ranks.count} ranks share a release by exact sums alone, and there are none:"
            f" {arithmetic.reason} A sum of floating-point numbers depends on who adds them up. Give"
            " exact_sums=True, or train in one process."
        )
    with ranks.together(where):
        own = keys.draw() if ranks.rank == 0 else None
    sent = None if own is None else (own.noise, own.sampling, own.given, own.by_caller)
    drawn = ranks.objects(sent, where)[0]
    logger.info("rank %d of %d: chunks of %d rows.", ranks.rank, ranks.count, how["chunk_rows"])
    return Keys(*drawn)

"""What each rank writes of a checkpoint by itself: a folder of torch.distributed.checkpoint.

A folder has a name that is used once. The file of the checkpoint, which is written last and put into place as
one, names the folder and the digests of its files; so a folder that is half written, stale or another
run's is never read. It holds past noise: nobody but its owner may read it.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anechoic.errors import CheckpointError
from anechoic.runs.files import sync_folder
from anechoic.torch.checkpoints.replay import plain
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.ranks.group import Alone

_NAMES = re.compile(r"slices-\d+-[0-9a-f]{16}")
_BLOCK = 2**22
#: All that the description of a folder is made of: reading it runs no other code.
_KNOWN = {
    "pathlib": {"Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
    "torch": {"Size", *(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


def prepare(ranks: Alone, place: Path, releases: int) -> str:
    """The name of a new folder at `place`, which rank 0 makes, and says to the others."""
    name = f"slices-{releases}-{secrets.token_hex(8)}"
    if ranks.rank == 0:
        (place / name).mkdir(mode=0o700)
    return name


def write(
    ranks: Alone,
    folder: Path,
    rows: Mapping[str, tuple[Tensor, int]],
    own: Mapping[str, Tensor] | None = None,
) -> None:
    """Write slices to `folder`, which is there and empty; all ranks do.

    Args:
        rows: this rank's slice of each vector that all have a slice of, and the length of the whole. Slices
            lie in the order of ranks and have one length, but the last ones, which may be shorter.
        own: whole tensors that this rank alone has.

    Raises:
        CheckpointError: on every rank, where one could not write.
        DesynchronizedError: if a rank is gone.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    def written(group: Any) -> None:
        every = {**_spread(rows, group), **(own or {})}
        save(every, storage_writer=FileSystemWriter(folder), process_group=group)

    _through(ranks, "save_checkpoint", f"{folder} cannot be written", written)


def read(
    ranks: Alone,
    folder: Path,
    rows: Mapping[str, tuple[Tensor, int]],
    own: Mapping[str, Tensor] | None = None,
) -> None:
    """Fill slices from `folder`, of which `check` found nothing amiss; all ranks do.

    Args:
        rows, own: as in `write`, whose number of ranks may have been another; filled in place. What is in
            `own` may be wanted by several ranks.

    Raises:
        CheckpointError, DesynchronizedError: as `write`.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    def filled(group: Any) -> None:
        every = {**_spread(rows, group), **(own or {})}
        with warnings.catch_warnings():  # that there is one process
            warnings.simplefilter("ignore", UserWarning)
            load(every, storage_reader=FileSystemReader(folder), process_group=group, no_dist=group is None)

    _through(ranks, "load_checkpoint", f"{folder} cannot be read", filled)


def seal(ranks: Alone, folder: Path) -> dict[str, str]:
    """The digest of each file that this rank takes, by name, once it is on disk for its owner alone."""
    files = sorted(path for path in folder.iterdir() if path.is_file())[ranks.rank :: ranks.count]
    for path in files:
        path.chmod(0o600)
    sync_folder(folder)
    return {path.name: _digest(path) for path in files}


def check(ranks: Alone, folder: Path, digests: Mapping[str, str]) -> None:
    """Refuse a folder that is not the one with these digests, of which each rank computes its part.

    Raises:
        CheckpointError: naming the file.
    """
    if not _NAMES.fullmatch(folder.name):
        raise CheckpointError(f"{folder.name!r} is not the name of a checkpoint's folder.")
    for name in sorted(digests)[ranks.rank :: ranks.count]:
        path = folder / name
        try:
            found = _digest(path)
        except OSError as error:
            raise CheckpointError(
                f"{path}, a part of the checkpoint, cannot be read ({error.strerror}): keep the folder beside"
                " its file, or resume from an older checkpoint."
            ) from error
        if found != digests[name]:
            raise CheckpointError(
                f"{path} is not the part that belongs to the checkpoint (its SHA-256 digest differs): resume"
                " from an older checkpoint, whose folder is whole."
            )
    _Reader(io.BytesIO((folder / ".metadata").read_bytes())).load()


def tidy(place: Path, keep: str) -> None:
    """Remove the folders of older checkpoints at `place`, and of those that were not finished."""
    for old in place.iterdir():
        if _NAMES.fullmatch(old.name) and old.name != keep and old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)  # what is left is tried again with the next one


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _KNOWN.get(module, ()):
            raise CheckpointError(
                f"the description of a checkpoint's folder holds {module}.{name}, which does not belong"
                " there: somebody else wrote it. Nothing was run."
            )
        return super().find_class(module, name)


def _spread(rows: Mapping[str, tuple[Tensor, int]], group: Any) -> dict[str, Tensor]:
    """Vectors of which each rank has a slice, as torch.distributed knows them."""
    if group is None:
        return {name: part for name, (part, _) in rows.items()}
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(group, "cpu")

    def spread(part: Tensor, length: int) -> Tensor:
        how: dict[str, Any] = {"run_check": False, "shape": torch.Size([length]), "stride": (1,)}
        return DTensor.from_local(part, mesh, [Shard(0)], **how)

    return {name: spread(part, length) for name, (part, length) in rows.items()}


def _through(ranks: Alone, where: str, what: str, work: Callable[[Any], None]) -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        ranks.through(where, work)
    except CheckpointException as error:  # which torch raises on every rank
        causes = "; ".join(f"rank {rank}: {cause[0]!r}" for rank, cause in error.failures.items())
        refused = CheckpointError(f"{what} ({causes}): nothing was changed.")
        refused.of_ranks = True  # type: ignore[attr-defined]
        raise refused from error


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def whole_state(
    optimizer: CorrelatedOptimizer, ranks: Alone, *, apart: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The whole state for the file of a checkpoint; all ranks ask for it.

    Args:
        apart: whether each rank writes its tensors by itself. The state then holds what they are like.

    Returns:
        The state, and the tensors that this rank writes.
    """
    tensors: dict[str, Tensor] = {}
    state = optimizer.kept()
    if optimizer.whole:
        return state, tensors
    where, own = "save_checkpoint", optimizer.own()
    with ranks.together(where):
        mine = plain("optimizer", {place: one for place, one in state["state"].items() if place in own})
    alike: dict[int, dict[str, Any]] = {}
    if apart:
        for place, one in mine.items():
            taken = {name: one.pop(name) for name, value in list(one.items()) if _large(value)}
            alike[place] = {
                name: [str(t.dtype).removeprefix("torch."), [*t.shape], [*t.stride()]]
                for name, t in taken.items()
            }
            tensors |= {_name(place, name): tensor for name, tensor in taken.items()}
    every = ranks.objects((mine, alike), where)
    state["state"] = {place: part[place] for part, _ in every for place in part}
    state["apart"] = {place: part[place] for _, part in every for place in part}
    return state, tensors


def own_part(saved: Mapping[str, Any], own: set[int]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `whole_state` returned, for a process with the parameters `own`; and tensors yet to be read."""
    state = {name: value for name, value in saved.items() if name != "apart"}
    state["state"] = {place: dict(one) for place, one in saved["state"].items() if place in own}
    tensors: dict[str, Tensor] = {}
    for place, named in saved.get("apart", {}).items():
        for name, (dtype, shape, stride) in named.items() if place in own else ():
            made = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype))
            state["state"][place][name] = tensors[_name(place, name)] = made
    return state, tensors


def _name(place: int, name: str) -> str:
    return f"optimizer.{place}.{name}"


def _large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0

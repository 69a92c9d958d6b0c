"""How `fully_shard` has cut a model up: which blocks there are, and which part of a tensor a rank has."""

from __future__ import annotations

import mmap
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anechoic.errors import UnsupportedError
from anechoic.torch.ranks.group import running_ranks
from anechoic.torch.structure import bits

if dist.is_available():
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor import Shard as Along
#: Bytes that a tensor begins at a multiple of, among those that are sent together.
_ALIGNED = 16
#: Bytes of a part from which on it is sent by itself.
_LARGE = 2**16
#: What memory begins with where weights are not here: no numbers, in every floating-point type.
_MARK = b"\xff" * 4096


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor._local_tensor if is_cut(tensor) else tensor  # type: ignore[attr-defined]


def is_cut(tensor: Any) -> bool:
    """Whether ranks have a part each of a tensor."""
    return dist.is_available() and isinstance(tensor, DTensor)


def blocks_in(module: nn.Module) -> list[tuple[str, Any]]:
    """The modules that `fully_shard` was called on, by name, outer ones first."""
    if not dist.is_available():
        return []
    return [(name, part) for name, part in module.named_modules() if isinstance(part, FSDPModule)]


def put_back(module: nn.Module) -> None:
    """Weights that torch's own hooks gathered, as in an evaluation, are parts again: the same parameters."""
    for _, part in blocks_in(module):
        part.reshard()


def layout_of(tensor: Any) -> str:
    """How a tensor lies on the ranks, in words that are the same on all of them."""
    return f"{tensor.placements} of {tensor.device_mesh.mesh.tolist()}" if is_cut(tensor) else "whole"


#: How a model must be cut up.
_RULE = (
    "One release is shared by models that torch.distributed.fsdp.fully_shard has cut up over one mesh of all"
    " ranks, along one axis of each parameter"
)


def check_cut(module: nn.Module) -> None:
    """Refuse models that are cut up otherwise than by `fully_shard` over all ranks.

    Raises:
        UnsupportedError: naming what it is, and the remedy.
    """
    kinds = {f"{cls.__module__}.{cls.__name__}" for part in module.modules() for cls in type(part).__mro__}
    if any(kind.endswith(".FullyShardedDataParallel") for kind in kinds):
        raise UnsupportedError(
            f"module is FullyShardedDataParallel, which flattens its parameters. {_RULE}: call"
            " fully_shard(block) for each block, and fully_shard(model)."
        )
    if any(kind.startswith("torch.distributed.pipelining") for kind in kinds):
        raise UnsupportedError(
            "module is a pipeline (torch.distributed.pipelining), so no rank sees the gradient of a row as a"
            f" whole. {_RULE}: put the layers together again, and call fully_shard on each."
        )
    put_back(module)
    inside = {id(p) for _, part in blocks_in(module) for p in part.parameters()}
    for name, part in blocks_in(module):
        policy = part._get_fsdp_state()._mp_policy
        if policy.param_dtype is not None or policy.output_dtype is not None:
            raise UnsupportedError(
                f"{name or 'module'} was given to fully_shard with {policy}, and rows are worked on in the"
                " type of the weights: leave mp_policy out, and load frozen weights as bfloat16, or use"
                " torch.autocast."
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_cut(tensor):
            _check_tensor(name, tensor, id(tensor) in inside)


def _check_tensor(name: str, tensor: Any, in_block: bool) -> None:
    mesh, placements = tensor.device_mesh, tensor.placements
    how = f"{name} lies as {placements} on a mesh of shape {tuple(mesh.shape)}"
    if mesh.ndim > 1 and any(isinstance(one, Replicate) for one in placements):
        raise UnsupportedError(
            f"{how}: hybrid sharding (HSDP). {_RULE}: give fully_shard a mesh of one dimension,"
            f" init_device_mesh('cpu', ({running_ranks()},))."
        )
    if not in_block or mesh.ndim > 1 or type(placements[0]) is not Along:
        raise UnsupportedError(
            f"{how}: tensor parallelism, where a rank has a part of every row. {_RULE}: leave"
            " parallelize_module and distribute_tensor out, and call fully_shard."
        )
    if mesh.mesh.tolist() != list(range(running_ranks())) or mesh.device_type != "cpu":
        raise UnsupportedError(
            f"{how}, of the ranks {mesh.mesh.tolist()} on {mesh.device_type!r}. {_RULE}, on CPUs:"
            f" init_device_mesh('cpu', ({running_ranks()},))."
        )
    own, cut = local(tensor), Slicing(tensor)
    if type(own) not in (Tensor, nn.Parameter) or list(own.shape) != cut.part_shape(mesh.get_rank()):
        raise UnsupportedError(
            f"{name} is a {type(own).__name__} of shape {tuple(own.shape)} on this rank, where"
            f" {tuple(cut.part_shape(mesh.get_rank()))} is expected. {_RULE}: use plain tensors."
        )


def part_of(p: Any, whole: Tensor) -> Tensor:
    """This rank's part of `whole`, which has the shape of `p`: all of it where p is whole."""
    if not is_cut(p):
        return whole
    slicing = Slicing(p)
    start, end = slicing.place(p.device_mesh.get_rank())
    return whole.narrow(slicing.axis, start, end - start)


def like(p: Any, part: Any) -> Any:
    """`part`, which this rank has of what has the shape of `p`, as torch knows it."""
    if part is None or not is_cut(p):
        return part
    return DTensor.from_local(
        part, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
    )


def gathered(tree: Any, ranks: Any, where: str) -> Any:
    """`tree` with whole tensors on rank 0, and nothing in their place on the others, one after the other."""

    def whole(leaf: Any) -> Any:
        if not is_cut(leaf):
            return leaf
        found, cut = local(leaf), CutTensor(leaf)
        if ranks.count > 1:
            sent = torch.zeros(cut.padded, dtype=torch.uint8)
            sent[: found.numel() * found.element_size()] = bits(found)
            cut.fill(list(ranks.joined(sent, where).view(ranks.count, -1)))
            found = cut.full.detach()
        return found if ranks.rank == 0 else None

    return tree_map(whole, tree)


def parts_like(now: Any, saved: Any) -> Any:
    """Whole tensors of `saved`, as this rank's parts where those of `now`, a tree of its form, are parts.

    What is missing on one side stays as it is: whoever loads it says so.
    """
    if isinstance(now, dict) and isinstance(saved, dict):
        return {key: parts_like(now.get(key), value) for key, value in saved.items()}
    if isinstance(saved, Tensor) and is_cut(now) and saved.shape == now.shape:
        return like(now, part_of(now, saved).clone())
    return saved


class Slicing:
    """How a tensor is cut up: slices of one length along an axis, the last ones shorter.

    Args:
        tensor: as fully_shard made it.

    Attributes:
        shape, axis: of the whole, and along which it is cut.
        ranks: how many have a part.
        bytes: of the whole.
    """

    def __init__(self, tensor: Any) -> None:
        self.shape: torch.Size = tensor.shape
        self.axis: int = tensor.placements[0].dim
        self.ranks: int = tensor.device_mesh.size()
        self.bytes: int = tensor.numel() * tensor.element_size()

    def place(self, rank: int) -> tuple[int, int]:
        """Where the part of a rank begins and ends."""
        size = self.shape[self.axis]
        each = -(-size // self.ranks)
        return min(rank * each, size), min((rank + 1) * each, size)

    def part_shape(self, rank: int) -> list[int]:
        """Of the part of a rank."""
        start, end = self.place(rank)
        return [end - start if axis == self.axis else size for axis, size in enumerate(self.shape)]

    def part_bytes(self, rank: int) -> int:
        """Of the part of a rank."""
        start, end = self.place(rank)
        return self.bytes // max(1, self.shape[self.axis]) * (end - start)

    @property
    def padded(self) -> int:
        """Bytes that a part takes among others."""
        return -(-self.part_bytes(0) // _ALIGNED) * _ALIGNED


class CutTensor(Slicing):
    """A tensor that ranks have a part each of, with memory for the whole, which is used for some time only.

    The memory is the operating system's own, which has it back at once: what torch frees stays with the
    process. While the whole is not here its first entries are no numbers: nobody takes it for weights.

    Attributes:
        full: the whole while it is here.
        here: whether it is.
    """

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor)
        self._tensor = tensor
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        self._memory = mmap.mmap(-1, max(1, self.bytes), **private)
        # two tensors with the same memory: autograd does not take what it keeps of the second for changed
        self._octets, shared = (torch.frombuffer(self._memory, dtype=torch.uint8)[: self.bytes] for _ in "12")
        whole = shared.view(tensor.dtype).view(self.shape)
        self.full = nn.Parameter(whole, requires_grad=tensor.requires_grad)
        self.empty()

    @property
    def own(self) -> Tensor:
        """This rank's part."""
        return local(self._tensor)

    @property
    def direct(self) -> bool:
        """Whether parts are sent right to where they belong, each by itself."""
        return self.axis == 0 and self.padded >= _LARGE

    def octets(self, rank: int) -> Tensor:
        """Where the part of a rank belongs, if the axis is the first."""
        start = sum(map(self.part_bytes, range(rank)))
        return self._octets[start : start + self.part_bytes(rank)]

    def fill(self, parts: list[Tensor]) -> None:
        """Put the parts of all ranks side by side, as bytes, where the whole is."""
        self.here = True
        whole = self._octets.view(self.full.dtype).view(self.shape)
        for rank, part in enumerate(parts):
            start, end = self.place(rank)
            if size := self.part_bytes(rank):
                own = part[:size].view(self.full.dtype).view(self.part_shape(rank))
                whole.narrow(self.axis, start, end - start).copy_(own)

    def empty(self) -> None:
        """Let go of the whole."""
        self.here = False
        if hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
        size = min(len(_MARK), self.bytes)
        self._memory[:size] = _MARK[:size]

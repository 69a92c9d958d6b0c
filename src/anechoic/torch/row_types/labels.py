"""Labels of tensors: how each depends on the rows of the batch in hand.

With what they are given by: the batch, operations as one run sees them, and where tensors lie in memory.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from anechoic.torch.structure import is_object, parts_of, tensors_in


@dataclass(frozen=True)
class RowAxis:
    """Row r of the batch is at r * inner … (r + 1) * inner - 1 along `axis`, and nowhere else."""

    axis: int
    inner: int = 1


@dataclass(frozen=True)
class Total:
    """A sum over rows of something of each row alone, times public numbers.

    Attributes:
        mean: whether it was divided by the number of rows.
    """

    mean: bool = False


@dataclass(frozen=True)
class One:
    """Depends on one row alone.

    Attributes:
        row: which one.
    """

    row: int


@dataclass(frozen=True)
class Picked:
    """Numbers of which each belongs to one row, as many as the data say.

    Attributes:
        by: the mask that picked them, as bytes; None where that is not known.
    """

    by: Any = None


@dataclass(frozen=True)
class Mixed:
    """Depends on rows in another way.

    Attributes:
        why: what was done, as a clause.
    """

    why: str


Label = RowAxis | Total | One | Picked | Mixed
TOTAL, MEAN = Total(), Total(mean=True)


class Batch:
    """What is known of the batch in hand.

    Attributes:
        rows: how many it has; 0 without one.
        decided: whether a number was taken out of a tensor that depends on rows, as decisions are.
        taken: how many numbers were taken out of such tensors.
        pulled: whether a number was taken out of one inside of a backward pass.
        sized: whether the script asked how many values it took by data (x[mask], nonzero()).
        hooked: whether the script may have hung code into a graph, where its nodes do not show it.
    """

    def __init__(self) -> None:
        self.start(0)
        self._sizes: dict[int, int] = {}

    def start(self, rows: int) -> None:
        """Another one."""
        self.rows = rows
        self.decided = self.pulled = self.sized = self.hooked = False
        self.taken = 0

    def counts_rows(self, size: float, *, once: bool = False) -> bool:
        """Whether a number of the script stands for the rows, or for a multiple of them unless `once`.

        What was the same in a batch of another size is a constant.
        """
        near = round(size)
        if near < 1 or abs(size - near) > 1e-6 * near:
            return False
        constant = self._sizes.setdefault(near, self.rows) != self.rows
        return not constant and (near == self.rows if once else near % self.rows == 0)


def delivered(part: Any, rows: int, dimension: int, *, inside: bool = False) -> list[tuple[Tensor, Label]]:
    """The tensors of a batch, each with its label: all depend on the data.

    A list of as many parts as rows has one for each of them.

    Args:
        rows: of the batch.
        dimension: of the rows, where a tensor has it.
        inside: whether `part` is one of a batch, and not the whole.
    """
    if isinstance(part, Tensor):
        return [(part, of_delivered(part, rows, dimension))]
    if not isinstance(part, (list, tuple)) or len(part) != rows:
        parts = vars(part).values() if is_object(part) else parts_of(part)
        return [pair for each in parts for pair in delivered(each, rows, dimension, inside=True)]
    own = [tensors_in(each) for each in part]
    by_rows = all(row_axis(t, rows, dimension) is not None for tensors in own for t in tensors)
    if not by_rows:
        return [(tensor, One(row)) for row, tensors in enumerate(own) for tensor in tensors]
    unclear = Mixed(f"a list of {rows} tensors with {rows} rows each was delivered")
    every = [tensor for tensors in own for tensor in tensors]
    return [(t, unclear if inside and rows > 1 else of_delivered(t, rows, dimension)) for t in every]


def of_delivered(tensor: Tensor, rows: int, dimension: int) -> Label:
    """The label of a tensor that the loader delivered."""
    first = row_axis(tensor, rows, dimension)
    if first is not None:
        return RowAxis(first)
    if rows in tensor.shape:
        return RowAxis(tensor.shape.index(rows))
    why = f"a tensor of shape {tuple(tensor.shape)} was delivered, without one row an example"
    return Mixed(f"{why}.{UNPACK}" if tensor.dim() else why)


def row_axis(tensor: Tensor, rows: int, dimension: int) -> int | None:
    """Where a tensor has as many entries as the batch has rows, first of all at `dimension`."""
    return next((a for a in (dimension, 0) if tensor.dim() > a and tensor.shape[a] == rows), None)


class Facts(NamedTuple):
    """What the schema of an operation says, once for all its calls.

    Attributes:
        packet: the operation, whatever its overload.
        names, defaults: of its arguments.
        written: names of those that it writes to.
        mutable: whether its schema says that it writes.
        pointwise, drawing, counting: whether it works entry by entry, draws at random, and returns as many
            values as the data say.
    """

    packet: Any
    names: list[str]
    defaults: dict[str, Any]
    written: tuple[str, ...]
    mutable: bool
    pointwise: bool
    drawing: bool
    counting: bool


@functools.cache
def facts_of(func: Any) -> Facts:
    """The facts of an operation."""
    packet, schema, tags = func.overloadpacket, func._schema, func.tags
    arguments = schema.arguments
    written = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return Facts(
        packet,
        [a.name for a in arguments],
        {a.name: a.default_value for a in arguments if a.has_default_value()},
        written or _UNSAID.get(packet, ()),
        schema.is_mutable,
        torch.Tag.pointwise in tags,
        torch.Tag.nondeterministic_seeded in tags,
        torch.Tag.dynamic_output_shape in tags,
    )


class Call(dict[str, Any]):
    """One operation on something of a batch, as one run sees it: its arguments by name, None for no argument.

    Args:
        batch: in which it is done.
        func, args, kwargs: of the operation.
        tensors: among the arguments.
        labels: of those that have one, by identity: one at least.

    Attributes:
        delivered, counted: whether any of them is made of what was delivered for certain, or has a length
            that the data decide.
        out, made: what it returned, and the tensors among that; once it is done.
    """

    delivered = counted = False
    out: Any
    made: list[Tensor]

    def __init__(
        self, batch: Batch, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], labels: dict[int, Label]
    ) -> None:
        facts = facts_of(func)
        super().__init__(facts.defaults, **dict(zip(facts.names, args, strict=False)), **kwargs)
        self.batch, self.rows = batch, batch.rows
        self.func, self.facts, self.args, self.kwargs = func, facts, args, kwargs
        self.packet = facts.packet
        self.tensors, self.labels = tensors, labels
        self.labelled = [(t, labels[id(t)]) for t in tensors if id(t) in labels]

    def __missing__(self, name: str) -> None:
        return None

    def label(self, value: Any) -> Label | None:
        return self.labels.get(id(value)) if isinstance(value, Tensor) else None

    @property
    def counts(self) -> bool:
        """Whether the data say how many values it returns: where indices are whole numbers they do not."""
        if self.packet is not torch.ops.aten.index:
            return self.facts.counting
        masks = (torch.bool, torch.uint8)
        return any(isinstance(t, Tensor) and t.dtype in masks for t in self["indices"])

    @property
    def written(self) -> list[Tensor]:
        """The tensors that it writes to."""
        names = self.facts.written
        if not names or self["training"] is False:
            return []
        return tensors_in([self[name] for name in names])

    def only(self, *names: str) -> RowAxis:
        """The label that the named arguments share; the others have none."""
        places = {id(self[name]) for name in names}
        found = {label for _, label in self.labelled}
        if len(found) != 1 or any(id(t) not in places for t, _ in self.labelled):
            raise NotApart(f"{self} takes rows beside rows in another place")
        label = found.pop()
        if not isinstance(label, RowAxis):
            raise NotApart(f"{self} of {words(label)}")
        return label

    def dims(self, tensor: Tensor, name: str = "dim") -> list[int] | None:
        """The axes that are named, counted from the first; None for all."""
        value = self[name]
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return None
        axes = [value] if isinstance(value, int) else list(value)
        return [axis % max(1, tensor.dim()) for axis in axes]

    def __str__(self) -> str:
        return str(self.packet.__name__).strip("_")


#: Makes labels of what a call returned.
Rule = Callable[[Call], Any]


class NotApart(Exception):
    """Rows are not kept apart, and why."""


#: For tensors with other rows than were drawn: sequence packers are the usual cause.
UNPACK = (
    " Packing puts several sequences into one row, and each needs its own: where a collator or trainer packs"
    " them (DataCollatorWithFlattening, packing=True), pad instead"
)
#: What to do about a mean over tokens of all rows.
EACH_ROW = (
    "give each row its own mean: for tokens take anechoic.torch.causal_lm_loss(logits, labels), or"
    " seq2seq_loss where labels are not shifted; by hand, with losses of reduction='none' and a mask, of"
    " shape (rows, tokens), ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()"
)


def words(label: Label) -> str:
    return {Total: "a total over rows", Picked: "values of some rows", One: "one row"}.get(
        type(label), "rows"
    )


def packets(names: str) -> frozenset[Any]:
    """torch's operations of these names, as far as it has them."""
    aten: Any = torch.ops.aten
    return frozenset(getattr(aten, name) for name in names.split() if hasattr(aten, name))


#: What operations write to though their schemas do not say so.
_UNSAID = dict.fromkeys(
    packets("native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_update_stats"),
    ("running_mean", "running_var"),
)


def lies(tensor: Tensor) -> tuple[Any, Any]:
    """(its storage, where its numbers are in memory): None for what it has none of its own of."""
    try:
        own = tensor.untyped_storage() if tensor.layout is torch.strided else None
        if own is None or not tensor.numel():
            return own, None
        return own, (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    except (RuntimeError, NotImplementedError):  # inside of torch.func
        return None, None


def place(tensor: Tensor) -> Any:
    """Where its numbers are in memory."""
    return lies(tensor)[1]


def tensors_alive() -> list[Tensor]:
    """All tensors that Python knows of."""
    kinds = _Kinds()  # there are some 10^5.6 objects, of some hundred types
    return [found for found in gc.get_objects() if kinds[type(found)]]


class _Kinds(dict[type, bool]):
    """Whether objects of a type are tensors."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = issubclass(kind, Tensor)
        return found


def storage(tensor: Tensor) -> int:
    """What tells the memory of a tensor from that of others that are there."""
    own = lies(tensor)[0]
    return id(tensor) if own is None else own._cdata


def storages(tensors: list[Tensor]) -> list[int | None]:
    """`storage` of each, in one call; None for those that have none of their own."""
    try:
        return [t.untyped_storage()._cdata if t.layout is torch.strided else None for t in tensors]
    except (RuntimeError, NotImplementedError):  # inside of torch.func
        return [None] * len(tensors)


class Memories:
    """Memory of tensors, for as long as it is there: a tensor is in it that lies in any of it."""

    def __init__(self) -> None:
        self.storages: dict[int, StorageWeakRef] = {}
        self.others: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # tensors without storage

    def add(self, tensor: Tensor, own: Any) -> StorageWeakRef | None:
        """Remember where a tensor lies, in its storage `own`; returns what tells whether that is gone."""
        if own is None:
            self.others[id(tensor)] = tensor
            return None
        found = self.storages.get(own._cdata)
        if found is None:
            found = self.storages[own._cdata] = StorageWeakRef(own)
        return found

    def holds(self, tensor: Tensor, own: Any) -> bool:
        """Whether a tensor lies in it, in the storage `own`."""
        return self.others.get(id(tensor)) is tensor if own is None else own._cdata in self.storages

    def take(self, *others: Memories) -> None:
        """What others hold; what is gone meanwhile is left out."""
        for other in others:
            self.storages |= other.storages
            self.others.update(other.others)
        self.storages = {key: kept for key, kept in self.storages.items() if not kept.expired()}


def frame(tensor: Tensor, writer: Tensor, label: Label) -> RowAxis | None:
    """The axis of a tensor's rows, where each holds in memory what was written for that row and no other."""
    if not isinstance(label, RowAxis) or label.inner != 1 or tensor.layout is not torch.strided:
        return None
    apart, rows = writer.stride(label.axis), writer.shape[label.axis]
    for axis in range(tensor.dim()):
        if tensor.stride(axis) != apart or tensor.shape[axis] != rows:
            continue
        starts = tensor.storage_offset(), writer.storage_offset()
        lengths = _extent(tensor, axis), _extent(writer, label.axis)
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        if max(ends) - min(starts) < apart:
            return RowAxis(axis)
    return None


def _extent(tensor: Tensor, left_out: int) -> int:
    """From the first entry of a row in memory to its last one."""
    axes = (axis for axis in range(tensor.dim()) if axis != left_out)
    return sum((tensor.shape[axis] - 1) * tensor.stride(axis) for axis in axes)

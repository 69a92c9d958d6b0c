"""Labels: a tensor that says which axis holds the rows of the batch, and passes it on, forward and backward.

The loader delivers such tensors, and so are the outputs of the model. Each operation gives its result a label
by a rule (`label_rules`). What must hold for the guarantee is that the gradient of the loss at row r of the
model's outputs depends on row r alone; its own label says so, whatever the loss is. So nothing is refused
before step(), and nothing but that gradient: a number that the script takes out of a tensor (`.item()`,
`.numpy()`) is the script's, and metrics may mix what they like.

A label is
    OnAxis(axis, inner)  entry (o * rows + r) * inner + i along `axis` is of row r
    OfRow(row)           depends on one row
    OfSome(rows)         a sum over some rows, as in the midst of a loop: OverRows() when all are in it
    OverRows(power)       a sum over rows of something of each alone, times rows**power
    Mixing(why)         depends on rows in another way, or by an operation without a rule
and a tensor without one is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anechoic.torch.structure import nodes

#: Losses of torch.nn.functional, each as (args, kwargs) -> (args, kwargs, what comes after): `label_layers`.
LOSSES: dict[Any, Any] = {}
_unseen: Any = torch._C.DisableTorchFunctionSubclass


class OnAxis(NamedTuple):
    """Rows lie along an axis; what the other labels say is at the head of this module."""

    axis: int
    inner: int = 1


class OfRow(NamedTuple):
    row: int


class OfSome(NamedTuple):
    rows: frozenset[int]


class OverRows(NamedTuple):
    power: int = 0


class Mixing(NamedTuple):
    why: str


Label = OnAxis | OfRow | OfSome | OverRows | Mixing | None


class LabelledBatch:
    """A delivered batch, until its step(): how many rows, and what backward() was called on.

    With `means` that is to be a mean over rows, else a sum. It must not reach `parameters` past the outputs
    of the model.

    Attributes:
        live: whether its tensors are followed still.
        outputs: of the model, where backward() ends.
        calls: of layers, which are noted here while backward() is `passing`, where it goes through the model.
        numbers: how often something was taken out of its tensors (`.item()`, `if`, `.numpy()`).
        roots: labels of what backward() was called on, as far as it reached an output.
        fault: what was wrong with a backward(), or "".
    """

    def __init__(self, rows: int, *, means: bool, parameters: list[Tensor]) -> None:
        self.rows, self.means, self.parameters = rows, means, parameters
        self.live = True
        self.outputs: list[LabelledTensor] = []
        self.calls: list[Any] = []
        self.passing, self.numbers = False, 0
        self.roots: list[Label] = []
        self.fault = ""

    def end(self) -> None:
        """Ask no rule any more: what is computed from its tensors is of an earlier batch."""
        self.live = False
        self.outputs, self.parameters, self.calls = [], [], []

    def begin(self, root: LabelledTensor, gradient: Any, options: dict[str, Any]) -> None:
        """Call backward() on a loss: from the number of rows, which the mean divides by, so that 1 is left.

        Pulled back from 1, every row's gradient would be rounded by the number of rows in the batch.
        """
        with _unseen():
            ends = [*self.outputs, *self.parameters]
            before, outputs, calls = _marks(ends), len(self.outputs), len(self.calls)
            mean = self.live and self.means and root.label == OverRows(-1)
            start = torch.full_like(root.raw, self.rows if mean else 1) if gradient is None else gradient
        self.passing = True
        try:
            torch.autograd.backward(
                root, start if root.dim() == 0 or gradient is not None else None, **options
            )
        except BaseException:
            del self.calls[calls:]
            raise
        finally:
            self.passing = False
        with _unseen():
            after = _marks(ends)
            # leaves that are neither the model's outputs nor its parameters
            own, others = set(map(id, self.parameters)), False
            for node in nodes([root.grad_fn]):
                leaf = getattr(node, "variable", None)
                others |= leaf is not None and type(leaf) is not LabelledTensor and id(leaf) not in own
        if after[:outputs] != before[:outputs] or len(self.calls) > calls:
            self.roots.append(root.label)
            if gradient is not None:
                self.fault = "backward() was given a gradient=, which may know other rows: call it without"
            elif others:
                self.fault = (
                    "the loss reaches a parameter outside of the private model, whose gradient is neither"
                    " clipped nor noisy. Make it a parameter of the module that make_private is given; or"
                    " call requires_grad_(False) where it is not to be trained"
                )
            elif after[outputs:] != before[outputs:]:
                self.fault = (
                    "the loss reaches a parameter past the outputs of the model (in ghost clipping, past the"
                    " call of its layer), as a penalty on weights does, and what it adds is dropped. Use"
                    " the optimizer's weight_decay; or put the term into the model's outputs, under"
                    " grad_sample_mode='rows'"
                )


def _marks(tensors: Any) -> list[tuple[int, int]]:
    """What the gradients of tensors are: they change where backward() adds to them."""
    return [(id(t.grad), t.grad._version) if t.grad is not None else (0, 0) for t in tensors]


class LabelledTensor(Tensor):
    """A tensor `raw` of the batch in hand, or computed from one; with requires_grad backward() ends at it."""

    raw: Tensor
    label: Label
    batch: LabelledBatch

    @staticmethod
    def __new__(
        cls: Any, raw: Tensor, label: Label, batch: LabelledBatch, requires_grad: bool = False
    ) -> Any:
        made: LabelledTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=raw.device,
            requires_grad=requires_grad,
        )
        made.raw, made.label, made.batch = raw, label, batch
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _unseen():
            if func in LOSSES:
                args, kwargs, finish = LOSSES[func](args, kwargs or {})
                out = func(*args, **kwargs)
                return out if finish is None else finish(out)
            out = func(*args, **(kwargs or {}))
            if MARKED:
                for given in (*args, *(kwargs or {}).values()):
                    if type(given) is Tensor and mark_of(given) is not None and not given.requires_grad:
                        given.__class__ = WrittenTensor  # by its own name, too, it is what was written
        # a plain tensor that was written to on the way (torch.zeros(…).scatter_(1, y, 1)) carries on here
        return _known(out) if MARKED and type(out) in (Tensor, WrittenTensor) else out

    # -- numbers of the script ------------------------------------------------------------------

    def backward(
        self, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """As of any tensor; at step() it is known what it was called on."""
        options = {"retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs}
        self.batch.begin(self, gradient, options)

    def __dlpack_device__(self) -> Any:
        return self.raw.__dlpack_device__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.raw)

    def __format__(self, spec: str) -> str:
        return format(self.raw, spec)

    def __deepcopy__(self, memo: Any) -> Any:
        return LabelledTensor(self.raw.clone(), self.label, self.batch)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.raw.__reduce_ex__(protocol)


def _taken(name: str) -> Any:
    """A method of the tensor inside that takes numbers out of it, which is counted."""

    def take(self: LabelledTensor, *args: Any, **kwargs: Any) -> Any:
        self.batch.numbers += 1
        return getattr(self.raw, name)(*args, **kwargs)

    return take


for _name in ("numpy", "tolist", "__array__", "__dlpack__"):
    setattr(LabelledTensor, _name, _taken(_name))


class WrittenTensor(Tensor):
    """A plain tensor into which rows were written: every operation takes it for what it holds."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = lambda given: _known(plain(given)) if type(given) is WrittenTensor else given  # noqa: E731
        args, kwargs = tree_map(known, (args, kwargs or {}))
        return LabelledTensor.__torch_function__(func, types, args, kwargs)


def plain(tensor: Tensor) -> Tensor:
    """The tensor without a label."""
    if type(tensor) is WrittenTensor:
        with _unseen():
            return tensor.as_subclass(Tensor)
    return tensor.raw if type(tensor) is LabelledTensor else tensor


# -- what was written to -------------------------------------------------------------------------

#: Marks of storages that are still there: without any, nobody looks for one.
MARKED: set[ref[MemoryMark]] = set()


@dataclass(frozen=True, eq=False)
class MemoryMark:
    """What was written into memory that other tensors may see."""

    label: Label
    batch: LabelledBatch
    stride: int  #: from a row to the next one in memory; 0 without an axis
    first: int  #: where something of row 0 is


def mark_of(tensor: Tensor) -> tuple[Label, LabelledBatch] | None:
    """What was written into the memory of a plain tensor, if anything was."""
    mark: MemoryMark | None = getattr(tensor.untyped_storage(), "anechoic_mark", None) if MARKED else None
    if mark is None:
        return None
    if not mark.stride or not mark.batch.live:
        return mark.label, mark.batch
    stride, rows = mark.stride, mark.batch.rows
    steps = list(zip(tensor.shape, tensor.stride(), strict=True))
    for axis, (size, step) in enumerate(steps):
        inner = stride // step if step else 0
        if inner and inner * step == stride and size == rows * inner:
            others = [pair for place, pair in enumerate(steps) if place != axis]
            within = sum((n - 1) * s for n, s in others if s < stride) + (inner - 1) * step
            begins = tensor.storage_offset() - mark.first // stride * stride
            apart = all(n == 1 or s < stride or s % (stride * rows) == 0 for n, s in others)
            if apart and begins >= 0 and begins + within < stride:  # no entry beyond its row
                return OnAxis(axis, inner), mark.batch
    return Mixing("a part of a tensor into which rows were written"), mark.batch


def label_of(tensor: Tensor) -> Label:
    """The label of a tensor now; what was written to its memory counts."""
    mark = mark_of(plain(tensor)) if MARKED else None
    return mark[0] if mark is not None else tensor.label if type(tensor) is LabelledTensor else None


def fault_of(gradient: Tensor | None, expected: Label, batch: LabelledBatch) -> str:
    """Why a gradient at the outputs of rows is not of single rows, or ""."""
    label = None if gradient is None else label_of(gradient)
    if label is None or label == expected or batch.rows <= 1:
        return ""
    return label.why if isinstance(label, Mixing) else "a number of all rows weighs each of them"


class _Labelling(torch.autograd.Function):
    """Label a plain tensor that has a graph, and pass gradients on to it."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, label: Label, batch: LabelledBatch) -> Tensor:
        return LabelledTensor(out.detach(), label, batch)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient, None, None


def _known(out: Tensor) -> Tensor:
    found = mark_of(out)
    make: Any = _Labelling.apply if out.requires_grad else LabelledTensor
    return out if found is None else make(out, *found)


def mark(inner: Tensor, label: Label, batch: LabelledBatch) -> None:
    """Keep with the memory of a tensor what was written into it."""
    storage: Any = inner.untyped_storage()
    made = MemoryMark(label, batch, 0, 0)
    if isinstance(label, OnAxis):
        stride = inner.stride(label.axis) * label.inner
        made = MemoryMark(label, batch, stride, int(inner.storage_offset()))
        if inner.shape[label.axis] != batch.rows * label.inner or not stride:
            made = MemoryMark(Mixing("a tensor into which rows were written several times"), batch, 0, 0)
    known: MemoryMark | None = getattr(storage, "anechoic_mark", None)
    if known and known.batch is batch and (known.stride, known.first) != (made.stride, made.first):
        made = MemoryMark(Mixing("a tensor into parts of which rows were written"), batch, 0, 0)
    storage.anechoic_mark = made
    MARKED.add(ref(made, MARKED.discard))

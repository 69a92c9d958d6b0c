"""Carry out operations on tensors with labels: on plain tensors, with a label by rule on what comes out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from anechoic.torch.labels import (
    MARKED,
    Label,
    LabelledBatch,
    LabelledTensor,
    Mixing,
    OfRow,
    OnAxis,
    OverRows,
    mark,
    mark_of,
    plain,
)

logger = logging.getLogger("anechoic")
Rule = Callable[["OpCall"], Any]
RULES: dict[str, Rule] = {}
#: Operations whose rules are those of entry by entry: of any, of one tensor, of sums and products.
BY_ENTRY = ("clamp", "clone", "add")
#: Operations on places, of which one row's are as much as all.
_PLACES = ("select_backward", "slice_backward", "cat", "stack")
#: What takes numbers out of tensors, or makes shapes of them.
_TAKING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
#: What is computed in the place of an operation, as a function of it and its arguments.
INSTEAD: dict[str, Callable[[Any, list[Any]], Any]] = {
    "_conj": lambda _, args: args[0].conj_physical(),  # bits of a view are unseen on the tensor outside
    "_neg_view": lambda _, args: args[0].neg(),
}
_EARLIER = Mixing(
    "numbers of an earlier batch, which are in no release of their own (a running mean, a queue)"
)


class Operation(NamedTuple):
    """What is known of an operation before it is called."""

    name: str
    rule: Rule
    in_place: bool
    writes: tuple[int, ...]
    by_entry: bool
    taking: bool
    arguments: dict[str, tuple[int, Any]]
    instead: Any
    turns: Any


_KNOWN: dict[Any, Operation] = {}


def operation(func: Any) -> Operation:
    """What is known of an overload of torch.ops.aten."""
    if (found := _KNOWN.get(func)) is None:
        schema = func._schema
        name = schema.name.rpartition("::")[2]
        own = schema.arguments
        writes = tuple(i for i, a in enumerate(own) if a.alias_info is not None and a.alias_info.is_write)
        in_place = name.endswith("_") and not name.endswith("__")
        base = name[:-1] if in_place and name not in RULES else name
        rule = RULES.get(base) or (RULES[BY_ENTRY[0]] if torch.Tag.pointwise in func.tags else _without_rule)
        arguments = {a.name: (i, a.default_value) for i, a in enumerate(own)}
        by_entry, taking = rule in map(RULES.get, BY_ENTRY), base in _TAKING
        turns = getattr(torch.ops.aten, base) if in_place and torch.Tag.inplace_view in func.tags else None
        if turns is not None:
            turns = getattr(turns, func._overloadname, None) or getattr(turns, "int", None)
        found = Operation(base, rule, in_place, writes, by_entry, taking, arguments, INSTEAD.get(name), turns)
        _KNOWN[func] = found
    return found


def follow(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Carry an operation out on plain tensors, and label what comes of it."""
    op, kwargs = _KNOWN.get(func) or operation(func), kwargs or {}
    if op.turns is not None:
        return _turned(func, op.turns, args, kwargs)
    call = OpCall()
    call.op = op
    call.labels, call.seen, call.batch = {}, [], None  # type: ignore[assignment]
    bare = []
    for value in args:  # most of what there is, without a call for each
        kind = type(value)
        if kind is LabelledTensor:
            inner = value.raw
            if MARKED or (call.batch is not None and call.batch is not value.batch):
                call.take(value)
            else:
                call.batch = value.batch
                if value.label is not None:
                    call.labels[id(inner)] = value.label
                    call.seen.append((inner, value.label))
            bare.append(inner)
        else:
            bare.append(call.take(value) if MARKED or kind in (list, tuple) else value)
    named = {name: call.take(value) for name, value in kwargs.items()} if kwargs else kwargs
    out = func(*bare, **named) if op.instead is None else op.instead(func, bare)
    call.args, call.kwargs, call.out = bare, named, out
    if op.taking and call.seen and not op.writes:
        call.batch.numbers += 1
    if op.writes:
        written(call, args)
        if op.in_place:
            return args[0]
    single = isinstance(out, Tensor)
    if not single and not isinstance(out, (tuple, list)):
        return out
    made, label, batch = [], call.label(), call.batch
    for place, tensor in enumerate((out,) if single else out):
        own = label(place, tensor) if callable(label) else label
        if own is not None and isinstance(tensor, Tensor):
            if type(own) is OnAxis and batch.rows > 1:
                whole = own.axis < tensor.dim() and tensor.shape[own.axis] % (batch.rows * own.inner) == 0
                if not whole:  # entries of all rows: else one was picked, or broadcast
                    own = call.mixed("its result does not have one entry a row")
            tensor = LabelledTensor(tensor, own, batch)
        made.append(tensor)
    return made[0] if single else type(out)(made)


def _turned(func: Any, view: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """x.unsqueeze_(1) and its like: the tensor becomes another view of the same numbers."""
    target, made = args[0], follow(None, view, (), args, kwargs)
    if type(target) is LabelledTensor:
        target.raw, target.label = plain(made), getattr(made, "label", None)
        with no_dispatch():  # its own shape
            func(*args, **kwargs)
        return target
    return func(*args, **kwargs)


class OpCall:
    """One call of an operation: its arguments without labels, and the labels."""

    __slots__ = ("args", "batch", "kwargs", "labels", "op", "out", "seen")
    args: Any
    kwargs: dict[str, Any]
    out: Any
    op: Operation
    labels: dict[int, Label]
    seen: list[tuple[Tensor, Label]]
    batch: LabelledBatch

    def take(self, value: Any) -> Any:
        """Arguments without labels, which are kept here."""
        if type(value) is LabelledTensor:
            inner, label, batch = value.raw, value.label, value.batch
            if (mark := mark_of(inner)) is not None:
                label, batch = mark
            self._meet(inner, label, batch)
            return inner
        if isinstance(value, Tensor):
            if (mark := mark_of(value)) is not None:
                self._meet(value, *mark)
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(self.take(part) for part in value)
        return value

    def _meet(self, inner: Tensor, label: Label, batch: LabelledBatch) -> None:
        if self.batch is None or (batch.live and not self.batch.live):
            if self.batch is not None:
                self.seen = [(t, _EARLIER) for t, _ in self.seen]
            self.batch = batch
        elif batch is not self.batch and self.batch.live:
            label = _EARLIER
        if label is not None:
            self.labels[id(inner)] = label
            self.seen.append((inner, label))

    # -- what a rule asks for -------------------------------------------------------------------

    @property
    def rows(self) -> int:
        return self.batch.rows

    def get(self, name: str) -> Any:
        """An argument by the name that it has in torch's schema."""
        place, default = self.op.arguments.get(name, (99, None))
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    def of(self, tensor: Any) -> Label:
        return self.labels.get(id(tensor))

    def mixed(self, why: str) -> Mixing:
        return Mixing(f"{self.op.name}: {why}")

    # -- results --------------------------------------------------------------------------------

    def label(self) -> Any:
        """The label of the results, or a function (place, tensor) -> label."""
        if self.op.rule is _public or not self.seen:
            return None
        if not self.batch.live:  # no rule is asked any more
            return _EARLIER
        first, alike = self.seen[0][1], True
        for _, label in self.seen:
            if isinstance(label, Mixing):
                return label
            alike = alike and label == first
        if alike and type(first) is OfRow and self.op.name not in _PLACES:
            return first  # whatever it does, it is of this row
        if alike and type(first) is OnAxis and self.op.by_entry and isinstance(self.out, Tensor):
            for tensor, _ in self.seen:
                if tensor.dim() != self.out.dim():
                    break
            else:
                return first  # entry by entry, of one shape
        return self.op.rule(self)


def written(call: OpCall, args: Any) -> None:
    """Label what an operation wrote into: the tensor, and its memory where others may see it otherwise."""
    made = call.label()
    pairs = [(args[place], call.args[place]) for place in call.op.writes if place < len(args)]
    lists = [zip(*pair, strict=True) if isinstance(pair[0], (list, tuple)) else [pair] for pair in pairs]
    for target, inner in [pair for each in lists for pair in each if isinstance(pair[0], Tensor)]:
        own = call.op.in_place or call.op.name == "rrelu_with_noise"  # its noise is drawn by entry
        label = made if own else Mixing(f"{call.op.name} writes into its arguments")
        if callable(label):
            label = label(0, inner)
        if type(target) is LabelledTensor:
            alone = call.op.by_entry and len(call.seen) == 1 and call.of(inner) is not None
            if target.label != label or (isinstance(label, Mixing) and not alone):
                target.label = label
                mark(inner, label, call.batch)
        elif label is not None:
            mark(inner, label, call.batch)


def rule(names: str, *, backward: bool = False) -> Callable[[Rule], Rule]:
    """Enter a rule for operations, by their names in torch.ops.aten, and for their `backward`."""

    def enter(found: Rule) -> Rule:
        for name in names.split():
            RULES[name] = found
            if backward:
                RULES.setdefault(f"{name}_backward", found)
        return found

    return enter


def axis_rule(names: str) -> Callable[[Callable[[OpCall, Tensor, OnAxis], Any]], Any]:
    """Enter a rule for operations on the axes of one tensor; what has no axis of rows keeps its label."""

    def enter(found: Callable[[OpCall, Tensor, OnAxis], Any]) -> Any:
        def own(c: OpCall) -> Any:
            tensor, label = c.seen[0]
            return found(c, tensor, label) if isinstance(label, OnAxis) else label

        return rule(names)(own)

    return enter


def _without_rule(c: OpCall) -> Label:
    return c.mixed("there is no rule for it, so nobody knows whether it keeps rows apart")


def place_of(dim: int, dims: int) -> int:
    return dim + dims if dim < 0 else dim


def first_of(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else next(o for o in out if isinstance(o, Tensor))


@rule(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty"
    " new_full new_empty_strided empty_strided is_same_size sym_size is_pinned"
)
def _public(c: OpCall) -> Label:
    return None


def aligned(c: OpCall, seen: Any = None, out: Tensor | None = None) -> Label:
    """Broadcasting: labels meet on one axis of the result, or they mix."""
    seen, made = c.seen if seen is None else seen, first_of(c.out) if out is None else out
    found: Label = None
    for tensor, label in seen:
        if isinstance(label, OnAxis):
            label = OnAxis(label.axis + made.dim() - tensor.dim(), label.inner)
        if found is None:
            found = label
        elif label is not None and label != found:
            if isinstance(found, OverRows) or isinstance(label, OverRows):
                if isinstance(found, OverRows) and isinstance(label, OverRows):
                    return c.mixed("a sum over rows beside a mean over them")
                return c.mixed("a number of all rows (a sum or a mean over them) meets single rows")
            shapes = " and ".join(str(tuple(t.shape)) for t, _ in seen)
            return c.mixed(
                f"rows meet rows on another axis, shapes {shapes}: squeeze() one, or [:, None] on the other"
            )
    return found


def _public_mean(func: Any, args: list[Any]) -> Any:
    """The mean of a cross entropy, by the number of targets, which is public.

    An ignored label, of which the default is one that nobody need have thought of, then counts as 0 in a mean
    over all targets, whether a batch has one or not; torch would divide by the number of the others.
    """
    outputs, targets, weight, reduction, ignored = args
    if reduction != 1:
        return func(*args)
    if weight is not None or ignored != -100:
        divided_by_all("cross_entropy")
    total, _ = func(outputs, targets, weight, 2, ignored)
    count = max(targets.numel(), 1)
    return total / count, torch.full_like(total, count)


@cache
def divided_by_all(name: str) -> None:
    """Say once that a mean is taken by a public number."""
    logger.warning(
        "F.%s with weights or ignore_index= under a mean divides by what other rows have. Here it is the mean"
        " over rows of each row's own mean over its targets that count.",
        name,
    )


INSTEAD |= dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _public_mean)
INSTEAD |= dict.fromkeys(  # of a mean: that of single entries, by their number, so that 1/N is not rounded
    ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "soft_margin_loss_backward"),
    lambda func, a: func(a[0] / a[1].numel(), *a[1:3], 0, *a[4:]) if a[3] == 1 else func(*a),
)
LabelledTensor.__torch_dispatch__ = classmethod(follow)  # type: ignore[assignment, method-assign]

"""Rules: what label the result of an operation of torch has, by the labels of what it was given.

A rule is about an operation's meaning, never about the values in its tensors, except for public indices.
Operations that torch tags as pointwise have one rule together; the others stand in tables by what they do to
axes. Whatever is in no table gives Mixed, by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction

from anechoic.torch.labels import (
    _MARKED,
    Axis,
    Batch,
    Label,
    Mixed,
    One,
    Rows,
    Some,
    Total,
    mark,
    mark_of,
)
from anechoic.torch.labels import (
    RULES as KNOWN,
)

Rule = Callable[["Call"], Any]
RULES: dict[str, Rule] = {}
_EARLIER = Mixed(
    "numbers of an earlier batch, which are in no release of their own (a running mean, a queue)"
)


class Operation(NamedTuple):
    """What is known of an operation before it is called."""

    name: str
    rule: Rule
    in_place: bool
    writes: tuple[int, ...]
    by_entry: bool
    arguments: dict[str, tuple[int, Any]]


_KNOWN: dict[Any, Operation] = {}


def operation(func: Any) -> Operation:
    """What is known of an overload of torch.ops.aten."""
    found = _KNOWN.get(func)
    if found is None:
        schema = func._schema
        name = schema.name.rpartition("::")[2]
        own = schema.arguments
        writes = tuple(i for i, a in enumerate(own) if a.alias_info is not None and a.alias_info.is_write)
        in_place = name.endswith("_") and not name.endswith("__")
        base = name[:-1] if in_place and name not in RULES else name
        rule = RULES.get(base) or (_pointwise if torch.Tag.pointwise in func.tags else _without_rule)
        arguments = {a.name: (i, a.default_value) for i, a in enumerate(own)}
        found = _KNOWN[func] = Operation(base, rule, in_place, writes, rule in _BY_ENTRY, arguments)
    return found


def follow(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry an operation out on plain tensors, and label what comes of it."""
    call = Call()
    op = call.op = _KNOWN.get(func) or operation(func)
    call.labels, call.seen, call.batch = {}, [], None  # type: ignore[assignment]
    plain = []
    for value in args:  # most of what there is, without a call for each
        kind = type(value)
        if kind is Rows:
            inner = value.raw
            if _MARKED or (call.batch is not None and call.batch is not value.batch):
                call.take(value)
            else:
                call.batch = value.batch
                if value.label is not None:
                    call.labels[id(inner)] = value.label
                    call.seen.append((inner, value.label))
            plain.append(inner)
        else:
            plain.append(call.take(value) if _MARKED or kind in (list, tuple) else value)
    named = {name: call.take(value) for name, value in kwargs.items()} if kwargs else kwargs
    out = func(*plain, **named) if op.rule is not _nll else _public_mean(func, plain)
    call.args, call.kwargs, call.out = plain, named, out
    if op.writes:
        return written(call, args)
    if isinstance(out, Tensor):
        label = call.label()
        if callable(label):
            label = label(0, out)
        return out if label is None else Rows(out, label, call.batch)
    return call.wrapped()


class Call:
    """One call of an operation: its arguments without labels, and the labels."""

    __slots__ = ("args", "batch", "kwargs", "labels", "op", "out", "seen")
    args: Any
    kwargs: dict[str, Any]
    out: Any
    op: Operation
    labels: dict[int, Label]
    seen: list[tuple[Tensor, Label]]
    batch: Batch

    def take(self, value: Any) -> Any:
        """Arguments without labels, which are kept here."""
        if type(value) is Rows:
            inner, label, batch = value.raw, value.label, value.batch
            mark = mark_of(inner)
            if mark is not None:
                label, batch = mark
            self._meet(inner, label, batch)
            return inner
        if isinstance(value, Tensor):
            mark = mark_of(value)
            if mark is not None:
                self._meet(value, *mark)
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(self.take(part) for part in value)
        return value

    def _meet(self, inner: Tensor, label: Label, batch: Batch) -> None:
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
        """The label of an argument."""
        return self.labels.get(id(tensor))

    def mixed(self, why: str) -> Mixed:
        return Mixed(f"{self.op.name}: {why}")

    # -- results --------------------------------------------------------------------------------

    def label(self) -> Any:
        """The label of the results, or a function (place, tensor) -> label."""
        if self.op.rule is _public or not self.seen:
            return None
        if not self.batch.live:  # no rule is asked any more
            return _EARLIER
        first = self.seen[0][1]
        for _, label in self.seen:
            if isinstance(label, Mixed):
                return label
        places = self.op.name in ("select_backward", "slice_backward", "cat", "stack")
        if type(first) is One and not places and all(label == first for _, label in self.seen):
            return first  # whatever it does, it is of this row
        return self.op.rule(self)

    def wrapped(self) -> Any:
        """The results with their labels."""
        out = self.out
        if isinstance(out, Tensor):
            out = [out]
        elif not isinstance(out, (tuple, list)):
            return out
        label = self.label()
        made = []
        for place, tensor in enumerate(out):
            own = label(place, tensor) if callable(label) else label
            labelled = own is not None and isinstance(tensor, Tensor)
            made.append(Rows(tensor, own, self.batch) if labelled else tensor)
        return made[0] if out is not self.out else type(out)(made)

    def targets(self, given: Any) -> list[tuple[Tensor, Tensor]]:
        """What is written to: as it was given, and without a label."""
        found: list[tuple[Tensor, Tensor]] = []
        for place in self.op.writes:
            if place < len(given):
                one, inner = given[place], self.args[place]
                pairs = zip(one, inner, strict=True) if isinstance(one, (list, tuple)) else [(one, inner)]
                found += [pair for pair in pairs if isinstance(pair[0], Tensor)]
        return found


def written(call: Call, args: Any) -> Any:
    """Label what an operation wrote into: the tensor, and its memory where others may see it otherwise."""
    made = call.label()
    for target, inner in call.targets(args):
        label = made if call.op.in_place else Mixed(f"{call.op.name} writes into its arguments")
        if callable(label):
            label = label(0, inner)
        if type(target) is Rows:
            alone = call.op.by_entry and len(call.seen) == 1 and call.of(inner) is not None
            if target.label != label or (isinstance(label, Mixed) and not alone):
                target.label = label
                mark(inner, label, call.batch)
        elif label is not None:
            mark(inner, label, call.batch)
    return args[0] if call.op.in_place else call.wrapped()


def rule(names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operations, by their names in torch.ops.aten."""

    def enter(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), found))
        return found

    return enter


def _without_rule(c: Call) -> Label:
    return c.mixed("there is no rule for it, so nobody knows whether it keeps rows apart")


def _place(dim: int, dims: int) -> int:
    return dim + dims if dim < 0 else dim


def _first(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else next(o for o in out if isinstance(o, Tensor))


@rule(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty"
    " new_full new_empty_strided empty_strided is_same_size sym_size is_pinned"
)
def _public(c: Call) -> Label:
    return None


# -- entry by entry ------------------------------------------------------------------------------


def aligned(c: Call, seen: Any = None, out: Tensor | None = None) -> Label:
    """Broadcasting: labels meet on one axis of the result, or they mix."""
    seen, made = c.seen if seen is None else seen, _first(c.out) if out is None else out
    found: Label = None
    for tensor, label in seen:
        if isinstance(label, Axis):
            label = Axis(label.axis + made.dim() - tensor.dim(), label.inner)
        if found is None:
            found = label
        elif label is not None and label != found:
            if isinstance(found, Total) or isinstance(label, Total):
                if isinstance(found, Total) and isinstance(label, Total):
                    return c.mixed("a sum over rows beside a mean over them")
                return c.mixed("a number of all rows (a sum or a mean over them) meets single rows")
            shapes = " and ".join(str(tuple(t.shape)) for t, _ in seen)
            return c.mixed(f"rows meet rows on another axis: shapes {shapes}")
    return found


@rule("clamp clamp_min clamp_max where native_dropout bernoulli normal poisson lerp angle")
def _pointwise(c: Call) -> Any:
    if any(isinstance(label, Total) for _, label in c.seen):
        return c.mixed("of a number of all rows, which is no sum over rows any more")
    found = aligned(c)
    size = _first(c.out).shape
    return found if isinstance(c.out, Tensor) else lambda _, o: found if o.shape == size else None


@rule(
    "clone detach alias _to_copy lift_fresh copy fill zero neg _conj real imag uniform random exponential"
    " log_normal cauchy geometric"
)
def _same(c: Call) -> Label:
    return aligned(c)


@rule("add sub rsub mul div")
def _linear(c: Call) -> Label:
    name, totals = c.op.name, [label for _, label in c.seen if isinstance(label, Total)]
    if name == "add" and len(c.seen) == 2 and all(type(label) in (One, Some) for _, label in c.seen):
        given: Any = [label for _, label in c.seen]
        one, two = (frozenset(label[:1]) if type(label) is One else label.rows for label in given)
        if not one & two:
            return Total() if len(one | two) == c.rows else Some(one | two)
    if not totals or len(totals) < len(c.seen):
        return aligned(c)
    one, other = c.args[0], c.args[1]
    left, right = c.of(one), c.of(other)
    if name in ("add", "sub", "rsub"):
        return aligned(c)
    if isinstance(left, Total) and isinstance(right, Total):
        return c.mixed("a product or quotient of two numbers of all rows, as of a mean over tokens")
    total = left if isinstance(left, Total) else right
    assert isinstance(total, Total)
    if name == "div" and right is not None:
        return c.mixed("by a number of all rows")
    if c.get("rounding_mode") is not None:
        return c.mixed("rounds a number of all rows")
    number = other if left is not None else one
    if isinstance(number, Tensor):
        number = number.item() if number.dim() == 0 else 0
    if number == c.rows and c.rows > 1:
        return Total(total.power + (1 if name == "mul" else -1))
    return total


_BY_ENTRY = (_pointwise, _same, _linear)

# -- axes ----------------------------------------------------------------------------------------


def viewed(c: Call, tensor: Tensor, label: Label, out: Tensor) -> Label:
    """The same entries in the same order, in another shape."""
    if not isinstance(label, Axis) or tuple(tensor.shape) == tuple(out.shape):
        return label
    stride = label.inner * math.prod(tensor.shape[label.axis + 1 :])
    after = out.numel()
    for axis, size in enumerate(out.shape):
        after //= max(size, 1)
        whole = after <= stride and stride % max(after, 1) == 0
        if whole and (after * size) % (stride * max(c.rows, 1)) == 0 and (size > 1 or c.rows <= 1):
            return Axis(axis, stride // max(after, 1))
    if not out.numel():
        return Axis(0)
    return c.mixed(f"from {tuple(tensor.shape)} to {tuple(out.shape)} takes rows to pieces")


@rule("view _unsafe_view reshape _reshape_alias squeeze unsqueeze flatten unflatten view_as")
def _views(c: Call) -> Label:
    return viewed(c, c.args[0], c.of(c.args[0]), c.out)


@rule("expand")
def _expand(c: Call) -> Label:
    tensor, label = c.seen[0]
    if not isinstance(label, Axis):
        return label
    axis = label.axis + c.out.dim() - tensor.dim()
    same = c.out.shape[axis] == tensor.shape[label.axis]
    return Axis(axis, label.inner) if same else c.mixed("over rows")


@rule("permute transpose t")
def _permute(c: Call) -> Label:
    tensor, label = c.seen[0]
    if not isinstance(label, Axis):
        return label
    order = list(range(tensor.dim()))
    if c.op.name == "permute":
        order = [_place(d, tensor.dim()) for d in c.args[1]]
    elif tensor.dim() > 1:
        one, two = (0, 1) if c.op.name == "t" else (_place(d, tensor.dim()) for d in c.args[1:3])
        order[one], order[two] = two, one
    return Axis(order.index(label.axis), label.inner)


@rule("view_as_real view_as_complex _reshape_copy view_as_real_copy")
def _leading(c: Call) -> Label:
    return c.seen[0][1]


@rule("select unbind")
def _select(c: Call) -> Any:
    tensor, label = c.seen[0]
    if not isinstance(label, Axis):
        return label
    dim = _place(c.get("dim"), tensor.dim())
    if dim != label.axis:
        return Axis(label.axis - (dim < label.axis), label.inner)
    if c.op.name == "unbind":
        return lambda place, _: One(place // label.inner % max(c.rows, 1))
    return One(_place(c.get("index"), tensor.shape[dim]) // label.inner % max(c.rows, 1))


@rule("slice split split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk")
def _slice(c: Call) -> Any:
    tensor, label = c.seen[0]
    dim = _place(c.get("dim") or 0, tensor.dim())
    if not isinstance(label, Axis) or dim != label.axis:
        return label
    size, start = tensor.shape[dim], 0
    if c.op.name == "slice":
        start, step = slice(c.get("start"), c.get("end")).indices(size)[0], c.get("step") or 1
        return _part(c, label, start, c.out.shape[dim] if step == 1 else -1, size)
    starts = []
    for part in c.out:
        starts.append(start)
        start += part.shape[dim]
    return lambda place, part: _part(c, label, starts[place], part.shape[dim], size)


def _part(c: Call, label: Axis, start: int, length: int, size: int) -> Label:
    """Some entries of the axis of the rows: all of them, of all rows some, or of one row."""
    if length == size:
        return label
    block = label.inner * c.rows
    if length >= 0 and start % block == 0 and length % block == 0:
        return label
    if 0 < length <= label.inner - start % label.inner:
        return One(start // label.inner % c.rows)
    return c.mixed("some of the rows are taken")


@rule("select_backward slice_backward")
def _put_back(c: Call) -> Label:
    sizes, dim = c.args[1], _place(c.args[2], len(c.args[1]))
    label = c.of(c.args[0])
    if isinstance(label, Axis):
        if c.op.name == "select_backward":
            return Axis(label.axis + (dim <= label.axis), label.inner)
        if dim != label.axis or sizes[dim] == c.args[0].shape[dim]:
            return label
        block, start = label.inner * c.rows, slice(c.args[3], c.args[4]).indices(sizes[dim])[0]
        return label if c.args[5] == 1 and start % block == 0 else c.mixed("some of the rows")
    if isinstance(label, One) and sizes[dim] % c.rows == 0:
        inner = sizes[dim] // c.rows
        start = _place(c.args[3], sizes[dim])
        length = 1 if c.op.name == "select_backward" else c.args[0].shape[dim]
        if start // inner == label.row == (start + length - 1) // inner:
            return Axis(dim, inner)
    return label if isinstance(label, Total) else c.mixed("some of the rows")


@rule("cat stack")
def _joined(c: Call) -> Label:
    parts = list(c.args[0])
    labels = [c.of(part) for part in parts]
    stack = c.op.name == "stack"
    dim = _place(c.get("dim") or 0, c.out.dim())
    if all(label == One(row) for row, label in enumerate(labels)) and len(labels) == c.rows:
        sizes = {1 if stack else part.shape[dim] for part in parts}
        if len(sizes) == 1:
            return Axis(dim, sizes.pop())
    found = {label for label in labels if label is not None}
    if len(found) > 1:
        return c.mixed("rows on different axes, or other rows, are put together")
    label = found.pop()
    if isinstance(label, One):
        return label
    if isinstance(label, Axis):
        if stack:
            return Axis(label.axis + (dim <= label.axis), label.inner)
        block = label.inner * c.rows
        if dim == label.axis and any(part.shape[dim] % block for part in parts):
            return c.mixed("something is put behind the rows")
    return label


@rule("repeat tile")
def _repeat(c: Call) -> Label:
    tensor, label = c.seen[0]
    return Axis(label.axis + c.out.dim() - tensor.dim(), label.inner) if isinstance(label, Axis) else label


def _dims(c: Call, dims: int, names: tuple[str, ...] = ("dim", "dims", "axis")) -> list[int]:
    given = next((d for name in names if (d := c.get(name)) is not None), None)
    if given is None or given == [] or given == ():
        return list(range(dims))
    return [_place(d, dims) for d in ([given] if isinstance(given, int) else given)]


@rule(
    "sum mean nansum amax amin max min argmax argmin logsumexp linalg_vector_norm norm var std var_mean"
    " prod any all median nanmedian mode kthvalue count_nonzero aminmax quantile std_mean"
)
def _reduced(c: Call) -> Any:
    tensor, label = c.args[0], c.of(c.args[0])
    name = c.op.name
    if len(c.seen) > 1:
        return _pointwise(c)  # max and min of two tensors
    if isinstance(label, Total):
        return label if name in ("sum", "mean") else c.mixed("of a number of all rows")
    if not isinstance(label, Axis):
        return label
    dims = _dims(c, tensor.dim())
    if label.axis in dims:
        if name in ("sum", "nansum", "mean", "count_nonzero"):
            return Total(-1 if name == "mean" else 0)
        return c.mixed("over the rows")
    kept = _first(c.out).dim() == tensor.dim()
    return Axis(label.axis - (0 if kept else sum(d < label.axis for d in dims)), label.inner)


@rule(
    "_softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin logcumsumexp sort topk argsort flip"
    " roll"
    " _softmax_backward_data _log_softmax_backward_data glu glu_backward renorm cummaxmin_backward"
    " _fft_r2c _fft_c2c _fft_c2r gather scatter scatter_add scatter_reduce index_fill _logcumsumexp"
)
def _along(c: Call) -> Any:
    """Within axes that the rows do not lie along."""
    names = ("dim", "dims", "dimension")
    tensor = c.args[0] if isinstance(c.args[0], Tensor) else c.seen[0][0]
    dims = _dims(c, tensor.dim(), names)
    place = c.op.name in ("gather", "scatter", "scatter_add", "scatter_reduce")
    found = aligned(c)
    if isinstance(found, Axis) and found.axis in dims:
        if place and c.op.name == "gather" and c.of(tensor) is None:
            return found  # places in a public table
        return c.mixed("along the rows")
    if isinstance(found, Total) and not place:
        return c.mixed("of numbers of all rows")
    return found


@rule("unfold unfold_backward")
def _unfold(c: Call) -> Label:
    label, dim = c.seen[0][1], c.args[1] if c.op.name == "unfold" else c.args[2]
    dims = c.args[0].dim() - (c.op.name != "unfold")
    if isinstance(label, Axis) and label.axis in (_place(dim, dims), dims):
        return c.mixed("along the rows")
    return label


@rule("diagonal tril triu diag_embed diagonal_backward")
def _matrices(c: Call) -> Label:
    label, tensor = c.seen[0][1], c.seen[0][0]
    if not isinstance(label, Axis):
        return label
    if c.op.name in ("diag_embed", "diagonal_backward"):
        return label if label.axis == 0 and tensor.dim() > 1 else c.mixed("the rows are an axis of it")
    own = [-2, -1] if c.op.name != "diagonal" else [c.get("dim1"), c.get("dim2")]
    own = [_place(d, tensor.dim()) for d in own]
    if label.axis in own:
        return c.mixed("the rows are an axis of it")
    return Axis(
        label.axis - (sum(d < label.axis for d in own) if c.op.name == "diagonal" else 0), label.inner
    )


# -- products ------------------------------------------------------------------------------------


@rule("mm bmm mv dot vdot _int_mm linalg_cross addmm baddbmm addmv addbmm")
def _product(c: Call) -> Label:
    """Sums of products over an axis k: (…, i, k) with (…, k, j)."""
    name = c.op.name
    left, right = c.args[-2:] if name.startswith(("add", "badd")) else c.args[:2]
    if name == "addbmm":
        return c.mixed("a sum over the rows")
    found = _contracted(c, left, right)
    if not name.startswith(("add", "badd")) or isinstance(found, Mixed):
        return found
    bias = c.of(c.args[0])
    if found is None or bias is None:
        shift = c.out.dim() - c.args[0].dim()
        return found or (Axis(bias.axis + shift, bias.inner) if isinstance(bias, Axis) else bias)
    return aligned(c, [(c.args[0], bias), (c.out, found)])


def _contracted(c: Call, left: Tensor, right: Tensor) -> Label:
    one, two = c.of(left), c.of(right)
    if isinstance(one, Total) or isinstance(two, Total):
        return (one or two) if one is None or two is None else c.mixed("a number of all rows meets rows")
    batch = max(left.dim(), right.dim()) - 2
    roles = []
    for label, tensor, own in ((one, left, "ik" if left.dim() > 1 else "k"), (two, right, "kj")):
        if isinstance(label, Axis):
            names = "b" * (tensor.dim() - len(own[: tensor.dim()])) + own[: tensor.dim()]
            roles.append((names[label.axis], label))
    if len({kind for kind, _ in roles}) > 1 or len({label.inner for _, label in roles}) > 1:
        return c.mixed("a product of rows with rows")
    if not roles:
        return one or two
    kind, label = roles[0]
    if kind == "k":
        return Total()
    if kind == "b":
        return label if len({label.axis for _, label in roles}) == 1 else c.mixed("rows meet other rows")
    if kind == "j":
        return Axis(c.out.dim() - 1, label.inner)
    return Axis(max(batch, 0), label.inner)


@rule("_cdist_forward _cdist_backward _euclidean_dist")
def _distances(c: Call) -> Label:
    one, two = (c.of(t) for t in (c.args[1:3] if c.op.name == "_cdist_backward" else c.args[:2]))
    apart = two is None or (two == one == Axis(0) and c.out.dim() > 2)
    return one if isinstance(one, Axis) and apart else c.mixed("distances between rows")


# -- layers: axis 0 is the batch ------------------------------------------------------------------


def _examples(c: Call, needs: int = 2) -> Label:
    """Rows on axis 0 of everything that has a label."""
    found = {label for _, label in c.seen}
    if len(found) == 1 and c.args[0].dim() >= needs:
        label = found.pop()
        if isinstance(label, Axis) and label.axis == 0:
            return label
    return c.mixed("the rows must be its first axis, the batch")


@rule(
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d"
    " _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool3d reflection_pad1d"
    " reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col col2im"
    " max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward"
    " avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward"
    " adaptive_max_pool2d_backward adaptive_max_pool3d_backward reflection_pad1d_backward"
    " reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward"
    " replication_pad2d_backward replication_pad3d_backward max_unpool2d max_unpool3d fractional_max_pool2d"
    " fractional_max_pool2d_backward"
    " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    " _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_fused_attention_overrideable _fused_sdp_choice multinomial"
)
def _layer(c: Call) -> Label:
    return _examples(c)


@rule(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"
    " upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d"
    " _upsample_bilinear2d_aa _upsample_bicubic2d_aa pixel_shuffle pixel_unshuffle grid_sampler_2d"
    " grid_sampler_3d affine_grid_generator channel_shuffle grid_sampler_2d_backward grid_sampler_3d_backward"
    " upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
    " upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward"
    " upsample_trilinear3d_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward"
    " _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward linalg_inv_ex _linalg_det"
    " _linalg_slogdet linalg_cholesky_ex linalg_lu_factor_ex linalg_qr _linalg_eigh _linalg_svd linalg_lu"
    " linalg_lu_solve linalg_matrix_exp linalg_solve_triangular _linalg_solve_ex cholesky_inverse"
)
def _images(c: Call) -> Label:
    return _examples(c, needs=3)


@rule("constant_pad_nd")
def _padded(c: Call) -> Label:
    tensor, label = c.seen[0]
    if not isinstance(label, Axis):
        return label
    before = tensor.dim() - 1 - label.axis
    own = c.args[1][2 * before : 2 * before + 2]
    return label if not any(own) else c.mixed("the axis of the rows is padded")


@rule("convolution")
def _convolution(c: Call) -> Label:
    if c.of(c.args[1]) is not None or c.args[0].dim() != c.args[1].dim():
        return c.mixed("with rows as its weights, or without an axis for the batch")
    return _examples(c, needs=3)


@rule("convolution_backward native_group_norm_backward native_layer_norm_backward")
def _layer_backward(c: Call) -> Any:
    """The gradient of the input is by rows; those of weights are sums over rows."""
    if c.op.name.startswith("native_layer"):
        found = aligned(c, [(t, c.of(t)) for t in c.args[:2]], c.args[1])
    else:
        found = _examples(c)
    return found if not isinstance(found, Axis) else lambda place, _: Total() if place else found


@rule("native_group_norm")
def _group_norm(c: Call) -> Label:
    return _examples(c) if c.of(c.args[0]) is not None else c.mixed("rows as its weights")


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(c: Call) -> Label:
    label = c.of(c.args[0])
    if not isinstance(label, Axis) or len(c.seen) > 1:
        return c.mixed("rows as its weights")
    return label if label.axis < c.args[0].dim() - len(c.args[1]) else c.mixed("over the rows")


@rule(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional"
    " _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm native_batch_norm_backward"
    " _native_batch_norm_legit_no_training batch_norm_backward"
)
def _batch_norm(c: Call) -> Any:
    back = "backward" in c.op.name
    tensor = c.args[1] if back else c.args[0]
    label = c.of(tensor) or c.of(c.args[0])
    train = c.get("train") if back else c.get("training")
    train = bool(train) if train is not None else "no_" not in c.op.name
    if not isinstance(label, Axis):
        return c.mixed("rows as its weights")
    if not train and label.axis != 1:
        return lambda place, o: label if not place else Total() if back else None
    if label.axis != 1:
        return Mixed("batch normalisation by the statistics of the batch")
    return lambda place, o: label if not place else Axis(0, label.inner)


@rule("embedding")
def _embedding(c: Call) -> Label:
    weight, places = c.of(c.args[0]), c.of(c.args[1])
    return places if weight is None else c.mixed("rows as its table")


@rule("embedding_dense_backward")
def _table(c: Call) -> Label:
    return Total()


# -- places ---------------------------------------------------------------------------------------


def _own_places(index: Tensor, rows: int) -> bool:
    """Whether a public index is row r's place for row r: that of a range over the rows."""
    flat = index.squeeze() if index.dim() else index
    return (
        flat.dim() == 1
        and len(flat) == rows
        and index.shape[0] == rows
        and flat.tolist() == list(range(rows))
    )


@rule("index _unsafe_index index_put _index_put_impl _unsafe_index_put")
def _index(c: Call) -> Label:
    tensor, given = c.args[0], list(c.args[1])
    puts = "put" in c.op.name
    label, value = c.of(tensor), c.of(c.args[2]) if puts else None
    used = [(i, t) for i, t in enumerate(given) if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for _, t in used):
        alone = len(used) == 1 and used[0][1].dim() == tensor.dim()
        if (puts and alone and value is None) or (puts and isinstance(value, Axis) and c.args[2].dim() == 0):
            return aligned(c, [(tensor, label), (used[0][1], c.of(used[0][1]))], tensor)  # masked_fill
        return c.mixed("what a mask picks has no row an example: multiply by the mask, or torch.where")
    places = [c.of(t) for _, t in used]
    shape = torch.broadcast_shapes(*(t.shape for _, t in used))
    together = used[-1][0] - used[0][0] == len(used) - 1
    start = used[0][0] if together else 0
    meeting = {Axis(l.axis + len(shape) - t.dim(), l.inner) for (_, t), l in zip(used, places, strict=True)
               if isinstance(l, Axis)}  # fmt: skip
    if len(meeting) > 1 or any(not isinstance(l, (Axis, type(None))) for l in places):
        return c.mixed("places of rows meet other rows")
    at = meeting.pop() if meeting else None
    if isinstance(label, (Total, One)) or isinstance(value, (Total, One)):
        return c.mixed("places in numbers of all rows") if label != value else label
    if label is None and not puts:
        return Axis(start + at.axis, at.inner) if at else None
    # axes of the tensor that no index takes away are behind, or before, those of the indices
    row = label.axis if isinstance(label, Axis) else None
    if puts and row is None:
        mine = [i for i, t in used if c.of(t) is None and _own_places(t, c.rows)]
        if isinstance(value, Axis) and not mine and at is None:
            axis = value.axis + (c.out.dim() - len(used) + len(shape)) - c.args[2].dim()
            row = (
                axis
                if axis < start
                else axis - len(shape) + len(used)
                if axis >= start + len(shape)
                else None
            )
        elif mine:
            row = mine[0]
        label = Axis(row) if row is not None else None
    if row is None or not isinstance(label, Axis):
        return c.mixed("rows are put to places of their own in a tensor that all rows share")
    inner = label.inner
    if row in [i for i, _ in used]:  # every row at its own place
        own = next(t for i, t in used if i == row)
        if inner != 1 or tensor.shape[row] != c.rows or c.of(own) is not None or not _own_places(own, c.rows):
            return c.mixed("rows are put in another order, or some are left out")
        own_axis = len(shape) - own.dim()
        if at not in (None, Axis(own_axis)) or (
            value is not None and value != Axis(value_axis(c, start + own_axis))
        ):
            return c.mixed("places of rows meet other rows")
        return Axis(row) if puts else Axis(start + own_axis)
    if at is not None:
        return c.mixed("places of rows in other rows")
    axis = row if row < start else row - len(used) + len(shape)
    if puts:
        same = value is None or value == Axis(value_axis(c, axis), inner)
        return label if same else c.mixed("rows meet other rows")
    return Axis(axis if together else row + len(shape) - sum(i < row for i, _ in used), inner)


def value_axis(c: Call, axis: int) -> int:
    """Where an axis of what is indexed is in the values that are put there."""
    used = [t for t in c.args[1] if t is not None]
    whole = c.args[0].dim() - len(used) + len(torch.broadcast_shapes(*(t.shape for t in used)))
    return axis - whole + c.args[2].dim()


@rule("index_select index_add index_copy")
def _chosen(c: Call) -> Label:
    tensor, index = c.args[0], c.get("index")
    label, places = c.of(tensor), c.of(index)
    dim = _place(c.get("dim"), tensor.dim())
    if label is None and c.op.name == "index_select":
        return Axis(dim, places.inner) if isinstance(places, Axis) else places
    found = aligned(c, [(t, l) for t, l in c.seen if t is not index])
    if places is None and isinstance(found, Axis) and found.axis != dim:
        return found
    return c.mixed("along the rows, or by places of rows")


# -- losses ---------------------------------------------------------------------------------------

_DIVISOR = (
    "the mean of a cross entropy divides by other rows' targets (class weights, ignored labels): write"
    " reduction='none', and then .mean() over rows"
)


def _loss(c: Call) -> Any:
    found, reduction = aligned(c, out=c.args[0] if c.args[0].dim() else None), c.get("reduction")
    axes = {(t.dim(), label) for t, label in c.seen if isinstance(label, Axis)}
    if len(axes) > 1 and isinstance(found, Axis):
        found = c.mixed("rows meet rows on another axis")
    if isinstance(found, Axis) and reduction:
        return Total(-1 if reduction == 1 else 0)
    return found


for _name in [
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
]:
    RULES[_name] = _loss
for _name in [
    "mse_loss_backward",
    "smooth_l1_loss_backward",
    "huber_loss_backward",
    "soft_margin_loss_backward",
    "binary_cross_entropy_backward",
    "log_sigmoid_forward",
    "log_sigmoid_backward",
    "rrelu_with_noise",
    "prelu",
    "threshold_backward",
    "native_dropout_backward",
    "_prelu_kernel",
    "_prelu_kernel_backward",
    "masked_fill",
    "rrelu_with_noise_backward",
    "_fused_dropout",
    "masked_scale",
    "elu_backward",
    "hardshrink_backward",
    "floor_divide",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "mish_backward",
    "hardswish",
    "softplus_backward",
    "softshrink_backward",
    "silu_backward",
    "gelu_backward",
    "remainder",
    "isclose",
]:
    RULES[_name] = _pointwise


def _without_classes(tensor: Tensor, label: Label) -> Label:
    """The label of a row's outputs by classes on axis 1, as one of its targets."""
    if isinstance(label, Axis) and tensor.dim() > 1:
        return None if label.axis == 1 else Axis(label.axis - (label.axis > 1), label.inner)
    return label


@rule("nll_loss_forward nll_loss2d_forward")
def _nll(c: Call) -> Any:
    outputs, targets, weight, reduction, ignored = c.args
    one, two = _without_classes(outputs, c.of(outputs)), c.of(targets)
    if (isinstance(one, Axis) and two not in (None, one)) or (one is None and c.of(outputs) is not None):
        return c.mixed("outputs and targets differ in their rows")
    found = one or two
    if not isinstance(found, Axis) or c.of(weight) is not None:
        return c.mixed("rows as its weights")
    if reduction == 1 and (weight is not None or ignored != -100):
        return Mixed(_DIVISOR)
    return lambda place, _: None if place else (found, Total(-1), Total())[reduction]


def _public_mean(func: Any, args: list[Any]) -> Any:
    """The mean of a cross entropy, by the number of targets, which is public.

    An ignored label, of which the default is one that nobody need have thought of, then counts as 0 in a mean
    over all targets, whether a batch has one or not; torch would divide by the number of the others. Where
    the script names a label to ignore, or weighs classes, the loss is refused for what it is.
    """
    outputs, targets, weight, reduction, ignored = args
    if reduction != 1 or weight is not None or ignored != -100:
        return func(*args)
    total, _ = func(outputs, targets, weight, 2, ignored)
    count = max(targets.numel(), 1)
    return total / count, torch.full_like(total, count)


@rule("nll_loss_backward nll_loss2d_backward")
def _nll_backward(c: Call) -> Label:
    # (grad_output, self, target, weight, reduction, ignore_index, total_weight), of which the last is public
    pulled, outputs, targets = c.args[0], c.args[1], c.args[2]
    given = [c.of(targets), _without_classes(outputs, c.of(outputs)), c.of(pulled)]
    found = {label for label in given if label is not None}
    if len(found) != 1 or not isinstance(label := found.pop(), Axis):
        return c.mixed("rows meet other rows")
    return Axis(label.axis + (label.axis >= 1), label.inner)


@rule(
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward"
    " multilabel_margin_loss_backward"
)
def _margin(c: Call) -> Any:
    found = _examples(c, needs=1)
    if isinstance(found, Axis) and "backward" not in c.op.name and (reduction := c.get("reduction")):
        return lambda place, _: found if place else Total(-1 if reduction == 1 else 0)
    return found


@rule("_ctc_loss _ctc_loss_backward")
def _ctc(c: Call) -> Any:
    back = "backward" in c.op.name
    tensors = [(t, c.of(t)) for t in c.args[:6] if isinstance(t, Tensor) and c.of(t) is not None]
    outputs = c.args[1] if back else c.args[0]
    if all(label == Axis(1 if t is outputs else 0) for t, label in tensors):
        return Axis(1) if back else Axis(0)
    return c.mixed("outputs need their rows on axis 1, targets on axis 0")


# -- losses under "mean" are those of "none", and the mean of them -----------------------------------


def _as_mean(signature: inspect.Signature, name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Call a loss for "none", and take the mean: pulled back, it is 1 for each row, and not 1/N rounded."""
    given = signature.bind(*args, **kwargs).arguments
    reduction = given.get("reduction", "mean")
    if given.get("size_average") is not None or given.get("reduce") is not None:
        reduction = _reduction.legacy_get_string(given.pop("size_average", None), given.pop("reduce", None))
        given["reduction"] = reduction
    weights = name in ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    if weights and (given.get("weight") is not None or given.get("ignore_index", -100) != -100):
        return (), given, None
    if reduction != "mean":
        return (), given, None
    given["reduction"] = "none"
    if name == "ctc_loss":
        lengths = given["target_lengths"]
        return (), given, lambda out: (out / torch.as_tensor(lengths).clamp(min=1)).mean()
    return (), given, torch.mean


def _losses() -> dict[Any, Any]:
    found = {}
    for name, function in vars(F).items():
        if not name.startswith("_") and inspect.isfunction(function):
            signature = inspect.signature(function)
            if "reduction" in signature.parameters and name not in ("linear_cross_entropy",):
                found[function] = partial(_as_mean, signature, name)
    return found


#: Functions of torch.nn.functional that reduce, each as (args, kwargs) -> (args, kwargs, what comes after).
KNOWN.losses, KNOWN.follow = _losses(), follow

"""Rules of labels for what is done entry by entry, to axes, and for products.

A rule is about an operation's meaning, never about the values in its tensors, except for public indices.
Operations that torch tags as pointwise have one rule together; the others stand in tables by what they do to
axes. Whatever is in no table gives Mixing, by name.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

from torch import Tensor

from anechoic.torch.label_calls import OpCall, aligned, axis_rule, first_of, place_of, rule
from anechoic.torch.labels import Label, Mixing, OfRow, OfSome, OnAxis, OverRows

# -- entry by entry ------------------------------------------------------------------------------


@rule("clamp clamp_min clamp_max where native_dropout bernoulli normal poisson lerp angle complex polar")
def _pointwise(c: OpCall) -> Any:
    if any(isinstance(label, OverRows) for _, label in c.seen):
        return c.mixed("of a number of all rows, which is no sum over rows any more")
    found = aligned(c)
    size = first_of(c.out).shape
    return found if isinstance(c.out, Tensor) else lambda _, o: found if o.shape == size else None


rule(
    "clone detach alias _to_copy lift_fresh copy fill zero neg _conj real imag uniform random exponential"
    " log_normal cauchy geometric"
)(aligned)


@rule("add sub rsub mul div")
def _linear(c: OpCall) -> Label:
    name, totals = c.op.name, [label for _, label in c.seen if isinstance(label, OverRows)]
    if name == "add" and len(c.seen) == 2 and all(type(label) in (OfRow, OfSome) for _, label in c.seen):
        given: Any = [label for _, label in c.seen]
        one, two = (frozenset(label[:1]) if type(label) is OfRow else label.rows for label in given)
        return OverRows() if len(one | two) == c.rows else OfSome(one | two)
    if not totals or len(totals) < len(c.seen):
        return aligned(c)
    one, other = c.args[0], c.args[1]
    left, right = c.of(one), c.of(other)
    if name in ("add", "sub", "rsub"):
        return aligned(c)
    if isinstance(left, OverRows) and isinstance(right, OverRows):
        return c.mixed("a product or quotient of two numbers of all rows, as of a mean over tokens")
    total = left if isinstance(left, OverRows) else right
    assert isinstance(total, OverRows)
    if name == "div" and right is not None:
        return c.mixed("by a number of all rows")
    if c.get("rounding_mode") is not None:
        return c.mixed("rounds a number of all rows")
    number = other if left is not None else one
    if isinstance(number, Tensor):
        number = number.item() if number.dim() == 0 else 0
    if number == c.rows and c.rows > 1:
        return OverRows(total.power + (1 if name == "mul" else -1))
    return total


# -- axes ----------------------------------------------------------------------------------------


@axis_rule("view _unsafe_view reshape _reshape_alias squeeze unsqueeze flatten unflatten view_as")
def _viewed(c: OpCall, tensor: Tensor, label: OnAxis) -> Label:
    """The same entries in the same order, in another shape."""
    out = c.out
    if tuple(tensor.shape) == tuple(out.shape):
        return label
    if not out.numel():
        same = tuple(out.shape[: label.axis + 1]) == tuple(tensor.shape[: label.axis + 1])
        return label if same else OnAxis(0)
    stride = label.inner * math.prod(tensor.shape[label.axis + 1 :])
    after = out.numel()
    for axis, size in enumerate(out.shape):
        after //= max(size, 1)
        whole = after <= stride and stride % max(after, 1) == 0
        if whole and (after * size) % (stride * max(c.rows, 1)) == 0 and (size > 1 or c.rows <= 1):
            return OnAxis(axis, stride // max(after, 1))
    return c.mixed(f"from {tuple(tensor.shape)} to {tuple(out.shape)} takes rows to pieces")


@axis_rule("expand repeat tile")
def _expand(c: OpCall, tensor: Tensor, label: OnAxis) -> Label:
    axis = label.axis + c.out.dim() - tensor.dim()
    same = c.op.name != "expand" or c.out.shape[axis] == tensor.shape[label.axis]
    return OnAxis(axis, label.inner) if same else c.mixed("over rows")


@axis_rule("permute transpose t")
def _permute(c: OpCall, tensor: Tensor, label: OnAxis) -> Label:
    order = list(range(tensor.dim()))
    if c.op.name == "permute":
        order = [place_of(d, tensor.dim()) for d in c.args[1]]
    elif tensor.dim() > 1:
        one, two = (0, 1) if c.op.name == "t" else (place_of(d, tensor.dim()) for d in c.args[1:3])
        order[one], order[two] = two, one
    return OnAxis(order.index(label.axis), label.inner)


axis_rule("view_as_real view_as_complex _reshape_copy view_as_real_copy")(lambda c, tensor, label: label)


@axis_rule("select unbind")
def _select(c: OpCall, tensor: Tensor, label: OnAxis) -> Any:
    dim = place_of(c.get("dim"), tensor.dim())
    if dim != label.axis:
        return OnAxis(label.axis - (dim < label.axis), label.inner)
    if c.op.name == "unbind":
        return lambda place, _: OfRow(place // label.inner % max(c.rows, 1))
    return OfRow(place_of(c.get("index"), tensor.shape[dim]) // label.inner % max(c.rows, 1))


@axis_rule("slice split split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk")
def _slice(c: OpCall, tensor: Tensor, label: OnAxis) -> Any:
    dim = place_of(c.get("dim") or 0, tensor.dim())
    if dim != label.axis:
        return label
    size = tensor.shape[dim]
    if c.op.name == "slice":
        start, step = slice(c.get("start"), c.get("end")).indices(size)[0], c.get("step") or 1
        return _part(c, label, start, c.out.shape[dim] if step == 1 else -1, size)
    starts = [0, *accumulate(part.shape[dim] for part in c.out)]
    return lambda place, part: _part(c, label, starts[place], part.shape[dim], size)


def _part(c: OpCall, label: OnAxis, start: int, length: int, size: int) -> Label:
    """Some entries of the axis of the rows: all of them, of all rows some, or of one row."""
    if length == size:
        return label
    block = label.inner * c.rows
    if length >= 0 and start % block == 0 and length % block == 0:
        return label
    if 0 < length <= label.inner - start % label.inner:
        return OfRow(start // label.inner % c.rows)
    return c.mixed("some of the rows are taken")


@rule("select_backward slice_backward")
def _put_back(c: OpCall) -> Label:
    sizes, dim = c.args[1], place_of(c.args[2], len(c.args[1]))
    label = c.of(c.args[0])
    if isinstance(label, OnAxis):
        if c.op.name == "select_backward":
            return OnAxis(label.axis + (dim <= label.axis), label.inner)
        if dim != label.axis or sizes[dim] == c.args[0].shape[dim]:
            return label
        block, start = label.inner * c.rows, slice(c.args[3], c.args[4]).indices(sizes[dim])[0]
        return label if c.args[5] == 1 and start % block == 0 else c.mixed("some of the rows")
    if isinstance(label, OfRow) and sizes[dim] % c.rows == 0:
        inner = sizes[dim] // c.rows
        start = place_of(c.args[3], sizes[dim])
        length = 1 if c.op.name == "select_backward" else c.args[0].shape[dim]
        if start // inner == label.row == (start + length - 1) // inner:
            return OnAxis(dim, inner)
    return label if isinstance(label, OverRows) else c.mixed("some of the rows")


@rule("cat stack")
def _joined(c: OpCall) -> Label:
    parts = list(c.args[0])
    labels = [c.of(part) for part in parts]
    stack = c.op.name == "stack"
    dim = place_of(c.get("dim") or 0, c.out.dim())
    if all(label == OfRow(row) for row, label in enumerate(labels)) and len(labels) == c.rows:
        sizes = {1 if stack else part.shape[dim] for part in parts}
        if len(sizes) == 1:
            return OnAxis(dim, sizes.pop())
    found = {label for label in labels if label is not None}
    if len(found) > 1:
        return c.mixed("rows on different axes, or other rows, are put together")
    label = found.pop()
    if isinstance(label, OfRow):
        return label
    if isinstance(label, OnAxis):
        if stack:
            return OnAxis(label.axis + (dim <= label.axis), label.inner)
        block = label.inner * c.rows
        if dim == label.axis and any(part.shape[dim] % block for part in parts):
            return c.mixed("something is put behind the rows")
    return label


def _dims(c: OpCall, dims: int, names: tuple[str, ...] = ("dim", "dims", "axis")) -> list[int]:
    given = next((d for name in names if (d := c.get(name)) is not None), None)
    if given is None or given == [] or given == ():
        return list(range(dims))
    return [place_of(d, dims) for d in ([given] if isinstance(given, int) else given)]


@rule(
    "sum mean nansum amax amin max min argmax argmin logsumexp linalg_vector_norm norm var std var_mean"
    " prod any all median nanmedian mode kthvalue count_nonzero aminmax quantile std_mean"
)
def _reduced(c: OpCall) -> Any:
    tensor, label = c.args[0], c.of(c.args[0])
    name = c.op.name
    if len(c.seen) > 1:
        return _pointwise(c)  # max and min of two tensors
    if isinstance(label, OverRows):
        return label if name in ("sum", "mean") else c.mixed("of a number of all rows")
    if not isinstance(label, OnAxis):
        return label
    dims = _dims(c, tensor.dim())
    if label.axis in dims:
        if name in ("sum", "nansum", "mean", "count_nonzero"):
            return OverRows(-1 if name == "mean" else 0)
        return c.mixed("over the rows")
    kept = first_of(c.out).dim() == tensor.dim()
    return OnAxis(label.axis - (0 if kept else sum(d < label.axis for d in dims)), label.inner)


@rule(
    "_softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin logcumsumexp sort topk argsort flip"
    " roll"
    " _softmax_backward_data _log_softmax_backward_data glu glu_backward cummaxmin_backward linalg_cross"
    " _fft_r2c _fft_c2c _fft_c2r gather scatter scatter_add scatter_reduce _logcumsumexp"
)
def _along(c: OpCall) -> Any:
    """Within axes that the rows do not lie along."""
    names = ("dim", "dims", "dimension")
    tensor = c.args[0] if isinstance(c.args[0], Tensor) else c.seen[0][0]
    dims = _dims(c, tensor.dim(), names)
    place = c.op.name in ("gather", "scatter", "scatter_add", "scatter_reduce")
    found = aligned(c)
    if isinstance(found, OnAxis) and found.axis in dims:
        if place and c.op.name == "gather" and c.of(tensor) is None:
            return found  # places in a public table
        return c.mixed("along the rows")
    if isinstance(found, OverRows) and not place:
        return c.mixed("of numbers of all rows")
    return found


@axis_rule("unfold unfold_backward")
def _unfold(c: OpCall, tensor: Tensor, label: OnAxis) -> Label:
    back = c.op.name != "unfold"
    dims = tensor.dim() - back
    along = label.axis in (place_of(c.args[1 + back], dims), dims)
    return c.mixed("along the rows") if along else label


@axis_rule("diagonal tril triu diag_embed diagonal_backward")
def _matrices(c: OpCall, tensor: Tensor, label: OnAxis) -> Label:
    given = [c.get("dim1"), c.get("dim2")] if "diag" in c.op.name else [-2, -1]
    own = [place_of(d, max(tensor.dim(), c.out.dim())) for d in given]
    larger = c.op.name in ("diag_embed", "diagonal_backward")
    if label.axis in own or (larger and (label.axis or tensor.dim() < 2)):
        return c.mixed("the rows are an axis of it")
    return OnAxis(label.axis - sum(d < label.axis for d in own) * (c.op.name == "diagonal"), label.inner)


# -- products ------------------------------------------------------------------------------------


@rule("mm bmm mv dot vdot _int_mm addmm baddbmm addmv addbmm")
def _product(c: OpCall) -> Label:
    """Sums of products over an axis k: (…, i, k) with (…, k, j), and what is added to them."""
    name, added = c.op.name, c.op.name.startswith(("add", "badd"))
    if name == "addbmm":
        return c.mixed("a sum over the rows")
    found = _contracted(c, *(c.args[-2:] if added else c.args[:2]))
    if not added or isinstance(found, Mixing):
        return found
    bias = c.of(c.args[0])
    if found is not None and bias is not None:
        return aligned(c, [(c.args[0], bias), (c.out, found)])
    return found or aligned(c, [(c.args[0], bias)])


def _contracted(c: OpCall, left: Tensor, right: Tensor) -> Label:
    one, two = c.of(left), c.of(right)
    if isinstance(one, OverRows) or isinstance(two, OverRows):
        return (one or two) if one is None or two is None else c.mixed("a number of all rows meets rows")
    roles = []
    for label, tensor, own in ((one, left, "ik" if left.dim() > 1 else "k"), (two, right, "kj")):
        if isinstance(label, OnAxis):
            names = "b" * (tensor.dim() - len(own[: tensor.dim()])) + own[: tensor.dim()]
            roles.append((names[label.axis], label))
    if len({kind for kind, _ in roles}) > 1 or len({label.inner for _, label in roles}) > 1:
        return c.mixed("a product of rows with rows")
    if not roles:
        return one or two
    kind, label = roles[0]
    if kind == "k":
        return OverRows()
    if kind == "b":
        return label if len({label.axis for _, label in roles}) == 1 else c.mixed("rows meet other rows")
    return OnAxis(c.out.dim() - 1 if kind == "j" else max(left.dim(), right.dim(), 2) - 2, label.inner)


@rule("_cdist_forward _cdist_backward _euclidean_dist")
def _distances(c: OpCall) -> Label:
    back = c.op.name == "_cdist_backward"
    one, two = (c.of(t) for t in c.args[int(back) :][:2])
    if isinstance(one, OnAxis) and one.axis == c.args[int(back)].dim() - 1:
        return c.mixed("over the rows")
    apart = two is None or (two == one == OnAxis(0) and c.out.dim() > 2)
    return one if isinstance(one, OnAxis) and apart else c.mixed("distances between rows")

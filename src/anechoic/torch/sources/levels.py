"""One vmap level: left after the forward pass, and entered again for the backward pass of the same rows.

torch.func.vmap runs a function from its beginning to its end, so a training loop, which computes its loss in
between, would need two forward passes. torch itself pauses and restores a level for autograd.Function
(torch._functorch.vmap.restore_vmap); this is the same: a batched tensor knows the number of its level only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import vmap as _vmap
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.structure import full_precision, mapped

_torch: Any = torch._C._functorch


class RowLevel:
    """Rows side by side, none of which sees another; each draws its own random numbers."""

    def __init__(self, rows: int) -> None:
        self.rows, self.number = rows, 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work on rows inside."""
        _vmap.lazy_load_decompositions()  # type: ignore[attr-defined]
        _torch._set_vmap_fallback_warning_enabled(False)  # no word about operations without a batching rule
        number = _torch._vmap_increment_nesting(self.rows, "different")
        try:
            if self.number not in (0, number):
                raise UnsupportedError(
                    "backward() runs inside of another transform of torch.func than the model did: call the"
                    " model and backward() side by side, outside of vmap and grad."
                )
            self.number = number
            yield
        finally:
            _torch._vmap_decrement_nesting()
            _torch._set_vmap_fallback_warning_enabled(True)

    def put(self, tensor: Tensor) -> Tensor:
        """One row of `tensor`, shape (rows, …), as the model sees it."""
        return _torch._add_batch_dim(tensor, 0, self.number)  # type: ignore[no-any-return]

    def taken(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """All rows, shape (rows, …), of what the model made of one."""
        return [_torch._remove_batch_dim(tensor, self.number, self.rows, 0) for tensor in tensors]

    def plain(self, tensor: Tensor) -> Tensor | None:
        """What each row has, shape (rows, …), below every transform; None where all rows share it."""
        place = None
        while _torch.is_functorch_wrapped_tensor(tensor):
            if _torch.is_batchedtensor(tensor):
                if _torch.maybe_get_level(tensor) != self.number:
                    raise UnsupportedError(
                        "a decision by a number of each row, inside of the model's own vmap."
                    )
                place = _torch.maybe_get_bdim(tensor)
            tensor = _torch.get_unwrapped(tensor)
        return None if place is None else tensor.detach().movedim(place, 0)


#: How a model takes a number out of a tensor, to decide something.
_READS: dict[Any, Any] = {
    Tensor.__bool__: bool,
    Tensor.is_nonzero: bool,
    torch.is_nonzero: bool,
    Tensor.item: None,
    Tensor.__int__: int,
    Tensor.__index__: int,
    Tensor.__float__: float,
}
#: What takes as many values as the data say, by places where a tensor is not zero.
_PLACES = frozenset({Tensor.nonzero, torch.nonzero, torch.argwhere, Tensor.argwhere})


class BranchFollower(TorchFunctionMode):
    """What a model decides by tensors is what one row decides; rows that decide otherwise are left out.

    So a model that decides something by its data (`if mask.all():`, `x[mask]`) runs on many rows at once,
    each of which gets what it would have got alone: those with other decisions are run once more. The first
    of the rows that are `left` decides; `kept` are those that decided as it did.
    """

    def __init__(self, level: RowLevel, left: list[bool]) -> None:
        super().__init__()
        self._level, self._leader, self.kept = level, left.index(True), list(left)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS and args and self._own(args[0]):
            kind, found = _READS[func], self._decided(args[0])
            if found.numel() != 1:
                raise UnsupportedError("a decision by several numbers of each row.")
            return found.item() if kind is None else kind(found.item())
        if func is Tensor.__contains__ and any(self._own(part) for part in args):
            return bool(self._decided((args[0] == args[1]).any()).item())  # as torch does, unseen
        if (func in _PLACES or (func is torch.where and len(args) == 1)) and args and self._picks(args[0]):
            return func(self._decided(args[0]), *args[1:], **kwargs)
        count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        if func is F.one_hot and self._own(args[0]) and count > 0:
            # torch's looks at the data, and so at all rows, whether they are classes
            return (args[0][..., None] == torch.arange(count, device=args[0].device)).long()
        if func in _MASKED and len(args) > 1:
            return func(args[0], self._masks(args[1]), *args[2:], **kwargs)
        return func(*args, **kwargs)

    def _own(self, value: Any) -> bool:
        """Whether each row has its own."""
        return (
            isinstance(value, Tensor)
            and _torch.is_functorch_wrapped_tensor(value)
            and self._level.plain(value) is not None
        )

    def _picks(self, value: Any) -> bool:
        """The same, on the CPU: an index that is out of range for rows left out ends a process on a GPU."""
        return self._own(value) and value.device.type == "cpu"

    def _decided(self, tensor: Tensor) -> Tensor:
        """What the first row has; rows that have something else are kept no longer."""
        every: Any = self._level.plain(tensor)
        flat = every.reshape(len(every), -1)
        first = flat[self._leader]
        same = ((flat == first) | ((flat != flat) & (first != first))).all(1).tolist()
        self.kept = [kept and alike for kept, alike in zip(self.kept, same, strict=True)]
        return every[self._leader]  # type: ignore[no-any-return]

    def _masks(self, index: Any) -> Any:
        """An index, in which masks are those of the first row."""
        if isinstance(index, tuple):
            return tuple(self._masks(part) for part in index)
        return self._decided(index) if self._picks(index) and index.dtype == torch.bool else index


class TorchPatches(TorchFunctionMode):
    """What torch.func cannot do with rows side by side, though it is work on single rows.

    requires_grad_() of what the model computes says nothing: gradients are wanted of the weights alone. Hooks
    ask for it so that checkpointed layers on frozen weights have a gradient (enable_input_require_grads() of
    transformers and peft). Attention that drops something has a backward pass of two types under autocast,
    which fails: it is given what autocast would, outside of it. So has, on a CPU, a normalisation whose
    weights are not of its input's type: it is done in that of its weights, in which torch adds up anyhow.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.requires_grad_ and _torch.is_functorch_wrapped_tensor(args[0]):
            return args[0]
        if func is F.scaled_dot_product_attention and torch.is_autocast_enabled(args[0].device.type):
            kind = torch.get_autocast_dtype(args[0].device.type)
            args, kwargs = mapped((args, kwargs), lambda t: t.to(kind) if is_continuous(t) else t)
            with full_precision(args[0].device.type):
                return func(*args, **kwargs)
        if func in _NORMALISING and args[0].device.type == "cpu":
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
            if weight is not None and weight.dtype != args[0].dtype:
                return func(args[0].to(weight.dtype), *args[1:], **kwargs).to(args[0].dtype)
        return func(*args, **kwargs)


#: Normalisations of one row: functions of (input, shape or groups, weight, …).
_NORMALISING = frozenset({F.layer_norm, F.group_norm})


#: What takes values by a mask, its second argument.
_MASKED = frozenset({Tensor.__getitem__, Tensor.__setitem__, Tensor.masked_select, torch.masked_select})


class Autocast:
    """Autocast, as it was at the call."""

    def __init__(self, device: str) -> None:
        self._device, self.enabled = device, torch.is_autocast_enabled(device)
        self._dtype = torch.get_autocast_dtype(device)

    def active(self) -> AbstractContextManager[Any]:
        """The same once more, without a cache, which would keep tensors of one transform for the next."""
        if not self.enabled:
            return full_precision(self._device)
        return torch.autocast(self._device, dtype=self._dtype, cache_enabled=False)


def only(kept: Tensor, tensor: Tensor, other: Tensor | None = None) -> Tensor:
    """A tensor of rows, with `other` (zeros) in the place of those that are not `kept`; the shape stays."""
    rows = kept.to(tensor.device).reshape(-1, *(1,) * (tensor.dim() - 1))
    return torch.where(rows, tensor, tensor.new_zeros(()) if other is None else other)


def is_batched(tensor: Tensor) -> bool:
    """Whether it belongs to rows of a level."""
    return bool(_torch.is_functorch_wrapped_tensor(tensor))


def is_continuous(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def check_not_packed(given: Any) -> None:
    """Refuse packed sequences among what the model is called with."""
    arguments, keywords = given
    for part in (*arguments, *keywords.values()):
        if type(part) is PackedSequence:
            raise UnsupportedError(
                "the model was called with a PackedSequence, which has no row for each example: pad, and mask"
                " what lies beyond each length."
            )


#: Layers whose output for one example depends on the others of the batch, unless in eval() mode.
MIXING = (nn.modules.batchnorm._BatchNorm,)
_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_not_mixing(layers: Iterable[nn.Module]) -> None:
    """Refuse batch normalisation by the statistics of the batch, trainable or not: it mixes the examples."""
    for layer in layers:
        if not isinstance(layer, MIXING):
            continue
        if layer.running_mean is None and layer.running_var is None:
            what, rest = "keeps no running statistics (track_running_stats=False): eval() does not help", ""
        elif layer.training:
            what, rest = "is in train() mode", "Keep it in eval() mode throughout, or replace it. "
        else:
            continue
        how = "as model = PrivacyEngine.get_compatible_module(model) does."
        if type(layer) not in _KNOWN:
            how = "by hand, with what else the layer does (an activation): no tool knows subclasses."
        raise GuaranteeError(
            f"a batch normalisation layer ({type(layer).__name__}) {what}. It mixes the examples of a batch,"
            f" and clipping one example's gradient does not bound what it changes. {rest}Put nn.GroupNorm in"
            f" its place before the optimizer is made, {how}"
        )

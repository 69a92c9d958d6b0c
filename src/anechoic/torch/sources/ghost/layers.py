"""The layers that ghost clipping knows, each with the gradients of its rows.

A layer is on the list by its exact class and options, because each is proved against autograd of single rows
in a test. Whatever is not on the list is refused.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anechoic.torch.sources.ghost.factored_gradients import (
    CachedGradients,
    MemoryAllowance,
    NormStrategy,
    OuterProducts,
    PlainGradients,
    RowGradients,
    Sizes,
    SparseGradients,
    cheapest,
)


class BackwardCall(NamedTuple):
    """One call of a layer in a backward pass: its input, and the gradient at its output.

    Both have shape (rows, …, *axes of one position): rows first, positions between.
    """

    layer: Any
    given: Tensor
    backprop: Tensor


Makers = dict[str, Callable[[], RowGradients]]


class LayerKind(ABC):
    """Class of layers that ghost clipping knows."""

    def fault(self, layer: Any) -> str:
        """Why the options of `layer` are not on the list, or ""."""
        return ""

    @abstractmethod
    def own(self, layer: Any, x: Tensor) -> int:
        """How many of the last axes of an input belong to one position: rows lie along one before them."""

    @abstractmethod
    def gradients(self, calls: list[BackwardCall], budget: MemoryAllowance) -> Makers:
        """Makers of the gradients of the rows with respect to each parameter, over all calls of one layer."""


def positions(tensor: Tensor) -> Tensor:
    """(rows, …, features) as (rows, positions, features)."""
    return tensor.reshape(len(tensor), math.prod(tensor.shape[1:-1]), tensor.shape[-1])


def joined(parts: list[Tensor], axis: int) -> Tensor:
    return torch.cat(parts, dim=axis) if len(parts) > 1 else parts[0]


def total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]


class _Linear(LayerKind):
    """y = x W' + b; with `across`, y = x W + b, as transformers' Conv1D has it."""

    def __init__(self, *, across: bool = False) -> None:
        self._across = across

    def own(self, layer: Any, x: Tensor) -> int:
        return 1

    def gradients(self, calls: list[BackwardCall], budget: MemoryAllowance) -> Makers:
        layer: Any = calls[0].layer
        inputs = [positions(call.given) for call in calls]
        backprops = [positions(call.backprop) for call in calls]

        def left(rows: slice) -> tuple[Tensor, Tensor]:
            return joined([part[rows] for part in inputs], 1), joined([part[rows] for part in backprops], 1)

        def wide(rows: slice) -> tuple[Tensor, Tensor]:
            x, a = left(rows)
            return x.double().unsqueeze(0), a.double().unsqueeze(0)

        def restore(made: Tensor) -> Tensor:
            return made[0].t() if self._across else made[0]

        features = layer.weight.shape if self._across else layer.weight.shape[::-1]
        sizes = Sizes(len(inputs[0]), sum(part.shape[1] for part in inputs), *features)

        def apart() -> RowGradients:
            return OuterProducts(wide, sizes, restore, budget)

        def weight() -> RowGradients:
            keeps = sizes.positions > 1 and cheapest(*sizes[1:4]) is NormStrategy.KEPT
            if keeps and CachedGradients.take(left, sizes, budget):
                return CachedGradients(left, sizes, restore, apart)
            return apart()

        def bias() -> RowGradients:
            return PlainGradients(total([part.sum(dim=1, dtype=torch.float64) for part in backprops]))

        return {"weight": weight, "bias": bias}


class _Convolution(LayerKind):
    def fault(self, layer: Any) -> str:
        if layer.padding_mode != "zeros":
            return f"padding_mode={layer.padding_mode!r} (only 'zeros')"
        return "" if not layer.transposed else "transposed=True"

    def own(self, layer: Any, x: Tensor) -> int:
        return layer.weight.dim() - 1

    def gradients(self, calls: list[BackwardCall], budget: MemoryAllowance) -> Makers:
        layer: Any = calls[0].layer
        groups = layer.groups
        outputs, per_group, *kernel = layer.weight.shape
        places = sum(math.prod(call.backprop.shape[1:]) // outputs for call in calls)
        features = per_group * math.prod(kernel)
        sizes = Sizes(len(calls[0].given), places, features, outputs // groups, groups)

        def make(rows: slice) -> tuple[Tensor, Tensor]:
            x = [_patches(layer, call.given[rows], call.backprop.shape[3:]) for call in calls]
            a = [_channels_last(call.backprop[rows], groups) for call in calls]
            return joined(x, 2), joined(a, 2)

        def restore(made: Tensor) -> Tensor:
            return made.reshape(outputs, *kernel, per_group).movedim(-1, 1)

        def bias() -> RowGradients:
            flat = [call.backprop.flatten(start_dim=3) for call in calls]
            return PlainGradients(total([part.sum(dim=(1, 3), dtype=torch.float64) for part in flat]))

        return {"weight": lambda: OuterProducts(make, sizes, restore, budget), "bias": bias}


def _channels_last(backprop: Tensor, groups: int) -> Tensor:
    """(rows, images, channels, *places) as (groups, rows, positions, channels of a group), float64."""
    rows, images, channels = backprop.shape[:3]
    moved = backprop.reshape(rows, images, groups, channels // groups, -1).permute(2, 0, 1, 4, 3)
    made = torch.empty(moved.shape, dtype=torch.float64, device=moved.device).copy_(moved)
    return made.reshape(groups, rows, -1, channels // groups)


def _patches(layer: Any, x: Tensor, places: Sequence[int]) -> Tensor:
    """What each place of the output saw: (groups, rows, positions, kernel * channels of a group), float64."""
    rows, images, channels = x.shape[:3]
    groups, kernel = layer.groups, layer.weight.shape[2:]
    wide = F.pad(x.flatten(0, 1), _padding(layer)).double().movedim(1, -1).contiguous()
    steps = wide.stride()
    seen = wide.as_strided(
        (groups, rows * images, *places, *kernel, channels // groups),
        (
            channels // groups,
            steps[0],
            *(s * stride for s, stride in zip(steps[1:-1], layer.stride, strict=True)),
            *(s * dilation for s, dilation in zip(steps[1:-1], layer.dilation, strict=True)),
            1,
        ),
    )
    features = math.prod(kernel) * (channels // groups)
    return seen.reshape(groups, rows, images * math.prod(places), features)


def _padding(layer: Any) -> list[int]:
    """Zeros before and after, last axis first, as F.pad takes them."""
    found: list[int] = []
    kernel = layer.weight.shape[2:]
    for axis in range(len(kernel) - 1, -1, -1):
        if layer.padding == "valid":
            found += [0, 0]
        elif layer.padding == "same":
            total = layer.dilation[axis] * (kernel[axis] - 1)
            found += [total // 2, total - total // 2]
        else:
            found += [layer.padding[axis]] * 2
    return found


class _Normalisation(LayerKind):
    """y = weight * x' + bias with x' = function(layer, x); with `channels` a weight is that of a channel."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], *, channels: bool) -> None:
        self._function, self._channels = function, channels

    def fault(self, layer: Any) -> str:
        return "track_running_stats=True" if getattr(layer, "track_running_stats", False) else ""

    def own(self, layer: Any, x: Tensor) -> int:
        return x.dim() - 1 if self._channels else layer.weight.dim()

    def gradients(self, calls: list[BackwardCall], budget: MemoryAllowance) -> Makers:
        return {
            "weight": lambda: PlainGradients(total([self._summed(c, self._normalised(c)) for c in calls])),
            "bias": lambda: PlainGradients(total([self._summed(c, None) for c in calls])),
        }

    def _normalised(self, call: BackwardCall) -> Tensor:
        x = call.given
        if not x.numel():
            return x
        images = x.flatten(0, 1) if self._channels else x
        return self._function(call.layer, images).reshape(x.shape)

    def _summed(self, call: BackwardCall, factor: Tensor | None) -> Tensor:
        """Backprops (times `factor`) summed over all axes but rows and those of the parameter."""
        shape = call.layer.weight.shape
        product = call.backprop if factor is None else call.backprop.double() * factor
        rows = len(product)
        if self._channels:
            by_channel = product.reshape(rows, product.shape[1], shape[0], math.prod(product.shape[3:]))
            return by_channel.sum((1, 3), dtype=torch.float64)
        split = product.reshape(rows, math.prod(product.shape[1:]) // shape.numel(), *shape)
        return split.sum(1, dtype=torch.float64)


def _own_rms_norm(layer: Any, x: Tensor) -> Tensor:
    """As transformers' models have it: in float32."""
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)).to(x.dtype)


class Embedding(LayerKind):
    """nn.Embedding: an example moves the lines of the table that it names, and no others."""

    def fault(self, layer: Any) -> str:
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(layer, name):
                return f"{name}={getattr(layer, name)!r}"
        return ""

    def own(self, layer: Any, x: Tensor) -> int:
        return 0

    def gradients(self, calls: list[BackwardCall], budget: MemoryAllowance) -> Makers:
        layer: Any = calls[0].layer

        def weight() -> RowGradients:
            rows = len(calls[0].given)
            lines = joined([call.given.reshape(rows, math.prod(call.given.shape[1:])) for call in calls], 1)
            values = joined([self._of_words(layer, call) for call in calls], 1)
            return SparseGradients(lines.long(), values, layer.weight.shape[0])

        return {"weight": weight}

    def _of_words(self, layer: Any, call: BackwardCall) -> Tensor:
        """What each word adds to its line: (rows, words, width)."""
        made = call.backprop
        if layer.padding_idx is not None:
            made = made.masked_fill((call.given == layer.padding_idx).unsqueeze(-1), 0)
        return positions(made)


class EmbeddingBag(Embedding):
    """nn.EmbeddingBag for bags of one length: an input of two axes, neither offsets nor weights."""

    def fault(self, layer: Any) -> str:
        return f"mode={layer.mode!r} (only 'sum' and 'mean')" if layer.mode == "max" else super().fault(layer)

    def own(self, layer: Any, x: Tensor) -> int:
        return 1

    def _of_words(self, layer: Any, call: BackwardCall) -> Tensor:
        words = call.given
        counts = torch.ones_like(words) if layer.padding_idx is None else words != layer.padding_idx
        shares = counts.double()
        if layer.mode == "mean":
            shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=1)
        made = call.backprop.double().unsqueeze(-2) * shares.unsqueeze(-1)
        # what is left out has no part in it, though the backprop be infinite
        return positions(made.masked_fill((shares == 0).unsqueeze(-1), 0))


_instance_norm = _Normalisation(lambda of, x: F.instance_norm(x, eps=of.eps), channels=True)
#: The allow-list. A subclass is another class, whose forward pass may be another.
KINDS: dict[type[nn.Module], LayerKind] = {
    nn.Linear: _Linear(),
    nn.Embedding: Embedding(),
    nn.EmbeddingBag: EmbeddingBag(),
    nn.LayerNorm: _Normalisation(
        lambda of, x: F.layer_norm(x, of.normalized_shape, eps=of.eps), channels=False
    ),
    nn.RMSNorm: _Normalisation(lambda of, x: F.rms_norm(x, of.normalized_shape, eps=of.eps), channels=False),
    nn.GroupNorm: _Normalisation(lambda of, x: F.group_norm(x, of.num_groups, eps=of.eps), channels=True),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _instance_norm),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _Convolution()),
}
#: Classes of other people's packages, which need not be installed, by module and name.
ELSEWHERE: dict[tuple[str, str], LayerKind] = {
    ("transformers.pytorch_utils", "Conv1D"): _Linear(across=True),
    ("opacus.layers.dp_rnn", "RNNLinear"): _Linear(),  # nn.Linear by another name, in DPRNN, DPGRU and DPLSTM
    **{
        (f"transformers.models.{model.lower()}.modeling_{model.lower()}", f"{model}RMSNorm"): (
            _Normalisation(_own_rms_norm, channels=False)
        )
        for model in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Phi3")
    },
}


def layer_kind(layer: type[nn.Module]) -> LayerKind | None:
    """What ghost clipping knows of a class of layers; None where it is not on the list."""
    kind = KINDS.get(layer)
    if kind is None and (kind := ELSEWHERE.get((layer.__module__, layer.__qualname__))) is not None:
        return kind if _defined(layer) else None
    return kind


def holds(layer: type[nn.Module]) -> bool:
    """Whether a class holds parameters of layers inside of it under second names: Opacus's recurrent ones."""
    names = ("DPRNN", "DPGRU", "DPLSTM")
    return layer.__module__ == "opacus.layers.dp_rnn" and layer.__qualname__ in names and _defined(layer)


def _defined(layer: type[nn.Module]) -> bool:
    return getattr(sys.modules.get(layer.__module__), layer.__qualname__, None) is layer


#: Two classes whose layers may share their weight.
SHARING = {nn.Embedding, nn.Linear}

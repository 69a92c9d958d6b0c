"""The layers that ghost clipping knows: each with its forward pass and the gradients of its rows.

A layer is on the list by its exact class and its exact options, because each is proved against autograd of
single rows in a test. Whatever is not on the list is refused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anechoic.torch.sources.ghost.cached_gradients import CachedGradients
from anechoic.torch.sources.ghost.factored_gradients import (
    LayerFactors,
    MemoryAllowance,
    OuterProducts,
    PlainGradients,
    RowGradients,
    SparseGradients,
)
from anechoic.torch.sources.ghost.layer_kind import (
    BackwardCall,
    LayerKind,
    Parameters,
    joined,
    per_row,
    positions,
    total,
)
from anechoic.torch.sources.ghost.norm_strategy import NormStrategy, cheapest


class _Linear(LayerKind):
    """y = x W' + b; with `across`, y = x W + b, as transformers' Conv1D has it."""

    def __init__(self, *, across: bool = False) -> None:
        self._across = across

    def leading(self, layer: Any) -> tuple[int, int]:
        return 2, 99

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        weight: Any = weights["weight"]
        return F.linear(x, weight.t() if self._across else weight, weights["bias"])

    def gradients(
        self, calls: list[BackwardCall], budget: MemoryAllowance
    ) -> dict[str, Callable[[], RowGradients]]:
        layer: Any = calls[0].layer
        inputs = [positions(call.given) for call in calls]
        backprops = [positions(call.backprop) for call in calls]

        def make(rows: slice) -> tuple[Tensor, Tensor]:
            x = joined([part[rows] for part in inputs], 1)
            a = joined([part[rows] for part in backprops], 1)
            return x.double().unsqueeze(0), a.double().unsqueeze(0)

        def left(rows: slice) -> tuple[Tensor, Tensor]:
            return joined([part[rows] for part in inputs], 1), joined([part[rows] for part in backprops], 1)

        def as_left(row: int) -> tuple[Tensor, Tensor]:
            return joined([part[row] for part in inputs], 0), joined([part[row] for part in backprops], 0)

        def restore(made: Tensor) -> Tensor:
            return made[0].t() if self._across else made[0]

        rows, places = len(inputs[0]), sum(part.shape[1] for part in inputs)
        wide, high = layer.weight.shape if self._across else layer.weight.shape[::-1]

        def apart() -> RowGradients:
            factors = LayerFactors(
                make, as_left=as_left, rows=rows, groups=1, positions=places, inputs=wide, outputs=high
            )
            return OuterProducts(factors, restore, budget)

        def weight() -> RowGradients:
            sizes = (rows, places, wide, high)
            keeps = places > 1 and cheapest(places, wide, high) is NormStrategy.KEPT
            if keeps and CachedGradients.take(left, sizes, budget):
                return CachedGradients(left, sizes, restore, budget, apart)
            return apart()

        def bias() -> RowGradients:
            return PlainGradients(total([part.sum(dim=1, dtype=torch.float64) for part in backprops]))

        return {"weight": weight, "bias": bias}


class _Convolution(LayerKind):
    def __init__(self, axes: int, function: Callable[..., Tensor]) -> None:
        self._axes, self._function = axes, function

    def fault(self, layer: Any) -> str:
        if layer.padding_mode != "zeros":
            return f"padding_mode={layer.padding_mode!r} (only 'zeros')"
        return "" if not layer.transposed else "transposed=True"

    def options(self, layer: Any) -> tuple[Any, ...]:
        return layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode

    def leading(self, layer: Any) -> tuple[int, int]:
        return self._axes + 2, self._axes + 2

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        return self._function(
            x, weights["weight"], weights["bias"], layer.stride, layer.padding, layer.dilation, layer.groups
        )

    def gradients(
        self, calls: list[BackwardCall], budget: MemoryAllowance
    ) -> dict[str, Callable[[], RowGradients]]:
        layer: Any = calls[0].layer
        groups = layer.groups
        outputs, per_group, *kernel = layer.weight.shape
        places = [math.prod(call.backprop.shape[2:]) for call in calls]
        features = per_group * math.prod(kernel)

        def make(rows: slice) -> tuple[Tensor, Tensor]:
            x = [_patches(layer, call.given[rows], call.backprop.shape[2:]) for call in calls]
            a = [_channels_last(call.backprop[rows], groups) for call in calls]
            return joined(x, 2), joined(a, 2)

        def weight() -> RowGradients:
            factors = LayerFactors(
                make,
                rows=len(calls[0].given),
                groups=groups,
                positions=sum(places),
                inputs=features,
                outputs=outputs // groups,
            )
            return OuterProducts(factors, restore, budget)

        def restore(made: Tensor) -> Tensor:
            split = made.reshape(outputs, *kernel, per_group)
            return split.movedim(-1, 1)

        def bias() -> RowGradients:
            flat = [call.backprop.flatten(start_dim=2) for call in calls]
            return PlainGradients(total([part.sum(dim=2, dtype=torch.float64) for part in flat]))

        return {"weight": weight, "bias": bias}


def _channels_last(backprop: Tensor, groups: int) -> Tensor:
    """(rows, channels, *places) as (groups, rows, places, channels of a group), float64."""
    split = backprop.reshape(len(backprop), groups, backprop.shape[1] // groups, -1)
    moved = split.permute(1, 0, 3, 2)
    return torch.empty(moved.shape, dtype=torch.float64, device=moved.device).copy_(moved)


def _patches(layer: Any, x: Tensor, places: Sequence[int]) -> Tensor:
    """What each place of the output saw: (groups, rows, places, kernel * channels of a group), float64."""
    rows, channels = x.shape[:2]
    groups, kernel = layer.groups, layer.weight.shape[2:]
    wide = F.pad(x, _padding(layer)).double().movedim(1, -1).contiguous()
    steps = wide.stride()
    seen = wide.as_strided(
        (groups, rows, *places, *kernel, channels // groups),
        (
            channels // groups,
            steps[0],
            *(s * stride for s, stride in zip(steps[1:-1], layer.stride, strict=True)),
            *(s * dilation for s, dilation in zip(steps[1:-1], layer.dilation, strict=True)),
            1,
        ),
    )
    return seen.reshape(groups, rows, math.prod(places), -1)


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
    """Layers whose weight and bias stand at the end: y = weight * x' + bias, x' a function of the row's x."""

    def __init__(
        self,
        function: Callable[[Any, Tensor, Tensor | None, Tensor | None], Tensor],
        axes: Callable[[Any], tuple[int, int]],
        *,
        channels_first: bool,
    ) -> None:
        self._function, self._axes, self._channels_first = function, axes, channels_first
        self.time_first = not channels_first

    def fault(self, layer: Any) -> str:
        return "track_running_stats=True" if getattr(layer, "track_running_stats", False) else ""

    def leading(self, layer: Any) -> tuple[int, int]:
        return self._axes(layer)

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        if x.numel() == 0:
            return x.clone()  # torch refuses to normalise the rows of an empty batch
        return self._function(layer, x, weights["weight"], weights.get("bias"))

    def gradients(
        self, calls: list[BackwardCall], budget: MemoryAllowance
    ) -> dict[str, Callable[[], RowGradients]]:
        def weight() -> RowGradients:
            return PlainGradients(total([self._summed(call, self._normalised(call)) for call in calls]))

        def bias() -> RowGradients:
            return PlainGradients(total([self._summed(call, None) for call in calls]))

        return {"weight": weight, "bias": bias}

    def _normalised(self, call: BackwardCall) -> Tensor:
        return self._function(call.layer, call.given, None, None) if call.given.numel() else call.given

    def _summed(self, call: BackwardCall, factor: Tensor | None) -> Tensor:
        """Backprops (times `factor`) summed over all axes but rows and those of the parameter."""
        layer: Any = call.layer
        shape = layer.weight.shape
        product = call.backprop if factor is None else call.backprop.double() * factor
        rows = len(product)
        if self._channels_first:
            return product.reshape(rows, shape[0], per_row(product) // shape[0]).sum(2, dtype=torch.float64)
        split = product.reshape(rows, per_row(product) // shape.numel(), *shape)
        return split.sum(1, dtype=torch.float64)


def _layer_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


def _rms_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.rms_norm(x, layer.normalized_shape, weight, layer.eps)


def _own_rms_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """As transformers' models have it: in float32, then times the weight."""
    wide = x.to(torch.float32)
    made = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)).to(x.dtype)
    return made if weight is None else weight * made


def _group_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.group_norm(x, layer.num_groups, weight, bias, layer.eps)


def _instance_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.instance_norm(x, None, None, weight, bias, True, 0.0, layer.eps)


def _last_axes(layer: Any) -> tuple[int, int]:
    return len(layer.normalized_shape) + 1, 99


class Embedding(LayerKind):
    """nn.Embedding: an example moves the lines of the table that it names, and no others."""

    def fault(self, layer: Any) -> str:
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(layer, name):
                return f"{name}={getattr(layer, name)!r}"
        return ""

    def leading(self, layer: Any) -> tuple[int, int]:
        return 1, 99

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        return F.embedding(x, weights["weight"], layer.padding_idx)  # type: ignore[arg-type]

    def gradients(
        self, calls: list[BackwardCall], budget: MemoryAllowance
    ) -> dict[str, Callable[[], RowGradients]]:
        layer: Any = calls[0].layer

        def weight() -> RowGradients:
            rows = len(calls[0].given)
            lines = joined([call.given.reshape(rows, per_row(call.given)) for call in calls], 1)
            values = joined([positions(call.backprop) for call in calls], 1)
            if layer.padding_idx is not None:
                values = values.masked_fill((lines == layer.padding_idx).unsqueeze(-1), 0)
            return SparseGradients(lines.long(), values, layer.weight.shape[0])

        return {"weight": weight}


class EmbeddingBag(Embedding):
    """nn.EmbeddingBag for bags of one length: an input of two axes, neither offsets nor weights."""

    def fault(self, layer: Any) -> str:
        return f"mode={layer.mode!r} (only 'sum' and 'mean')" if layer.mode == "max" else super().fault(layer)

    def options(self, layer: Any) -> tuple[Any, ...]:
        return layer.mode, layer.padding_idx

    def leading(self, layer: Any) -> tuple[int, int]:
        return 2, 2

    def forward(self, layer: Any, x: Tensor, weights: Parameters) -> Tensor:
        table: Any = weights["weight"]
        return F.embedding_bag(x, table, mode=layer.mode, padding_idx=layer.padding_idx)

    def gradients(
        self, calls: list[BackwardCall], budget: MemoryAllowance
    ) -> dict[str, Callable[[], RowGradients]]:
        layer: Any = calls[0].layer

        def weight() -> RowGradients:
            lines = joined([call.given for call in calls], 1)
            values = joined([self._of_words(layer, call) for call in calls], 1)
            return SparseGradients(lines.long(), values, layer.weight.shape[0])

        return {"weight": weight}

    @staticmethod
    def _of_words(layer: Any, call: BackwardCall) -> Tensor:
        """What each word adds to its line: (rows, words, width)."""
        words = call.given
        counts = torch.ones_like(words) if layer.padding_idx is None else words != layer.padding_idx
        shares = counts.double()
        if layer.mode == "mean":
            shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1)
        made = call.backprop.double().unsqueeze(1) * shares.unsqueeze(2)
        # what is left out has no part in it, though the backprop be infinite
        return made.masked_fill((shares == 0).unsqueeze(2), 0)


_INSTANCE = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
_CONVOLUTIONS = {nn.Conv1d: (1, F.conv1d), nn.Conv2d: (2, F.conv2d), nn.Conv3d: (3, F.conv3d)}

#: The allow-list. A subclass is another class, whose forward pass may be another.
KINDS: dict[type[nn.Module], LayerKind] = {
    nn.Linear: _Linear(),
    nn.Embedding: Embedding(),
    nn.EmbeddingBag: EmbeddingBag(),
    nn.LayerNorm: _Normalisation(_layer_norm, _last_axes, channels_first=False),
    nn.RMSNorm: _Normalisation(_rms_norm, _last_axes, channels_first=False),
    nn.GroupNorm: _Normalisation(_group_norm, lambda layer: (2, 99), channels_first=True),
    **{
        cls: _Normalisation(
            _instance_norm, partial(lambda axes, layer: (axes, axes), axes), channels_first=True
        )
        for cls, axes in _INSTANCE.items()
    },
    **{cls: _Convolution(axes, function) for cls, (axes, function) in _CONVOLUTIONS.items()},
}
_OWN_RMS = _Normalisation(_own_rms_norm, lambda layer: (2, 99), channels_first=False)
#: Classes of other people's packages, which need not be installed, by module and name.
ELSEWHERE: dict[tuple[str, str], LayerKind] = {
    ("transformers.pytorch_utils", "Conv1D"): _Linear(across=True),
    ("opacus.layers.dp_rnn", "RNNLinear"): _Linear(),  # nn.Linear by another name, in DPRNN, DPGRU and DPLSTM
    **{
        (f"transformers.models.{model.lower()}.modeling_{model.lower()}", f"{model}RMSNorm"): _OWN_RMS
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

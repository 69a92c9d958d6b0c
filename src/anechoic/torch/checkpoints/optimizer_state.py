"""The optimizer's state where each rank has that of some parameters: from its ranks, and for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.checkpoints.replay import plain
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.ranks.group import Alone


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
            alike[place] = {name: _alike(tensor) for name, tensor in taken.items()}
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


def _alike(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())]

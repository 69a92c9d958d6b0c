"""The graph of a ghost-clipped loss: which parameters it reaches, and through which calls of layers.

Norms are measured by hooks on calls of layers, the clipped gradient by autograd: a parameter that the loss
reaches in another way would be in the second and not in the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from anechoic.errors import DesynchronizedError

_CALL = "anechoic.ghost"  # key in the metadata of an autograd node: which call of a hooked layer made it
USES = (
    "Use each parameter by calling its layer alone (no F.linear(x, layer.weight), no penalty on weights in"
    " the loss: use weight_decay), or use grad_sample_mode='hooks'"
)


class _Call:
    """One call of a hooked layer, as marked on the autograd nodes that it made."""

    def __init__(self, layer: nn.Module, exits: Iterable[Any]) -> None:
        self.parameters = {id(p) for p in layer.parameters()}
        self.exits = {id(node) for node in exits}  # valid as long as the call's nodes live


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _tensors(part)] if isinstance(value, (tuple, list)) else []


def _grad_nodes(value: Any) -> list[Any]:
    return [t.grad_fn for t in _tensors(value) if t.grad_fn is not None]


def mark_call(layer: nn.Module, inputs: Any, output: Any) -> dict[int, int]:
    """Mark the nodes between the inputs and the output of a layer's call as made by it.

    Returns:
        How many edges lead from them to each parameter, by its id.
    """
    entries = set(_grad_nodes(inputs))
    exits = [node for node in _grad_nodes(output) if node not in entries]
    call = _Call(layer, exits)
    call_nodes, seen = list(exits), set(exits) | entries
    edges: dict[int, int] = {}
    while call_nodes:
        node = call_nodes.pop()
        if node.metadata.setdefault(_CALL, call) is not call:
            raise DesynchronizedError(
                f"a call of {type(layer).__name__} used a tensor that another layer made and that is none of"
                " its arguments: the norms of its gradients would leave it out. Pass it as the argument, or"
                " use grad_sample_mode='hooks'."
            )
        for following, _ in node.next_functions:
            if following is None:
                continue
            if hasattr(following, "variable"):
                key = id(following.variable)
                edges[key] = edges.get(key, 0) + 1
            elif following not in seen:
                seen.add(following)
                call_nodes.append(following)
    return edges


def check_graph(loss: Tensor, module: nn.Module) -> None:
    """Refuse a loss that depends on a parameter in another way than by calls of hooked layers.

    Raises:
        DesynchronizedError: naming the parameter, or the node.
    """
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    reached: dict[int, set[_Call]] = {key: set() for key in names}
    stray: set[str] = set()
    start: list[Any] = [] if loss.grad_fn is None else [loss.grad_fn]
    seen, left = set(start), list(start)
    while left:
        node = left.pop()
        if "CheckpointFunction" in node.name():
            raise DesynchronizedError(
                "the loss passes through gradient checkpointing, which hides what is inside from the check"
                " of ghost clipping: leave it out, or use grad_sample_mode='hooks'."
            )
        call = node.metadata.get(_CALL)
        for following, _ in node.next_functions:
            if following is None:
                continue
            if hasattr(following, "variable"):
                key = id(following.variable)
                if key not in names:
                    continue
                if call is None or key not in call.parameters:
                    stray.add(names[key])
                else:
                    reached[key].add(call)
                continue
            other = following.metadata.get(_CALL)
            if other is not None and other is not call and id(following) not in other.exits:
                stray.update(names[key] for key in other.parameters if key in names)
            if following not in seen:
                seen.add(following)
                left.append(following)
    if stray:
        raise DesynchronizedError(
            f"the loss depends on {sorted(stray)} other than through the output of a layer that was called in"
            f" train() mode with the hooks on: that part would not be clipped. {USES}."
        )
    for p in module.parameters():
        calls = getattr(p, "_forward_counter", 0)
        if p.requires_grad and len(reached[id(p)]) != calls:
            raise DesynchronizedError(
                f"the loss depends on {len(reached[id(p)])} of {calls} calls of the layer that holds"
                f" {names[id(p)]!r}: let one forward pass precede each backward pass, and let the loss depend"
                " on all of it; after an interrupted pass call optimizer.abandon_batch()."
            )

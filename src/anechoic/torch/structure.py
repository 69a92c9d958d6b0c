"""Arguments and outputs of a model: tensors in lists, tuples, dicts, dataclasses, and their subclasses.

And what several rooms of a step need: bits of a tensor, no autocast, no Ctrl-C in the midst of a release.
"""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

#: Types whose values are what they are: no number of a batch, and nothing that holds one.
PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """A copy of `value` with `function` applied to every tensor in it, in a fixed order.

    Classes are kept: named tuples, dicts of other classes, dataclasses, the outputs of Hugging Face's models.
    What is no such container is taken over as it is.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return function(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return {key: mapped(part, function) for key, part in value.items()} if value else {}
    if kind in (list, tuple):
        return kind([function(p) if isinstance(p, Tensor) else mapped(p, function) for p in value])
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for key, part in value.items():
            made[key] = mapped(part, function)
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(mapped(part, function) for part in value))
    if isinstance(value, (list, tuple)):
        return kind(mapped(part, function) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, mapped(getattr(value, field.name), function))
        return made
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of `value`, in the order of `mapped`."""
    found: list[Tensor] = []
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, (list, tuple)):
            todo += part[::-1]
        elif type(part) in PLAIN:
            continue
        elif isinstance(part, Mapping):
            todo += [*part.values()][::-1]
        elif is_dataclass(part) and not isinstance(part, type):
            todo += [getattr(part, field.name) for field in fields(part)][::-1]
    return found


def filled(value: Any, tensors: list[Any]) -> Any:
    """`value` with its tensors replaced, in the order of `tensors_in`."""
    given = iter(tensors)
    return mapped(value, lambda _: next(given))


def nodes(roots: Iterable[Any]) -> set[Any]:
    """The nodes of a graph of autograd from `roots` on."""
    seen, todo = set(), [*roots]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            for before, _ in node.next_functions:
                todo.append(before)
    return seen


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in one axis."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def word_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Sums over the words of tensors: others where one was changed by a mistake."""
    found = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        size = flat.numel() * flat.element_size()
        kind = torch.uint8 if size % 4 else torch.int32 if size % 8 else torch.int64
        flat = flat.clone() if flat.data_ptr() % 8 else flat
        found.append(int(flat.view(kind).sum(dtype=torch.int64)))
    return found


def full_precision(device: str) -> AbstractContextManager[Any]:
    """No autocast inside."""
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep SIGINT back while the block runs, and hand it on afterwards.

    Only in the main thread, where Python handles signals, and only where a Python function handles SIGINT.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])

"""One vmap level: left after the forward pass, and entered again for the backward pass of the same rows.

torch.func.vmap runs a function from its beginning to its end, so a training loop, which computes its loss in
between, would need two forward passes. torch itself pauses and restores a level for autograd.Function
(torch._functorch.vmap.restore_vmap); this is the same: a batched tensor knows the number of its level only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import vmap as _vmap
from torch.overrides import TorchFunctionMode

from anechoic.errors import UnsupportedError

_torch: Any = torch._C._functorch


class RowLevel:
    """Rows side by side, none of which sees another.

    Args:
        rows: how many, at least one.
        draws: whether random numbers may be drawn inside, one set a row.
    """

    def __init__(self, rows: int, *, draws: bool) -> None:
        self.rows, self._randomness = rows, "different" if draws else "error"
        self.number = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work on rows inside.

        Raises:
            UnsupportedError: if other transforms of torch.func run than when it was entered first.
        """
        _vmap.lazy_load_decompositions()  # type: ignore[attr-defined]
        number = _torch._vmap_increment_nesting(self.rows, self._randomness)
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

    def put(self, tensor: Tensor) -> Tensor:
        """One row of `tensor`, shape (rows, …), as the model sees it."""
        return _torch._add_batch_dim(tensor, 0, self.number)  # type: ignore[no-any-return]

    def taken(self, tensor: Tensor) -> Tensor:
        """All rows, shape (rows, …), of what the model made of one."""
        return _torch._remove_batch_dim(tensor, self.number, self.rows, 0)  # type: ignore[no-any-return]

    def numbers(self, tensor: Tensor) -> list[Any] | None:
        """One number a row, where `tensor` is one number of each row; None where all rows share it."""
        own = False
        while _torch.is_functorch_wrapped_tensor(tensor):
            if _torch.is_batchedtensor(tensor):
                if _torch.maybe_get_level(tensor) != self.number:
                    raise UnsupportedError(
                        "a decision by a number of each row, inside of the model's own vmap."
                    )
                own = True
            tensor = _torch.get_unwrapped(tensor)
        if not own:
            return None
        if tensor.numel() != self.rows:
            raise UnsupportedError("a decision by several numbers of each row.")
        found: Any = tensor.tolist()
        while found and isinstance(found[0], list):
            found = [value for part in found for value in part]
        return list(found)


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


class Decisions(TorchFunctionMode):
    """Numbers that a model takes out of tensors are those of one row; rows that have others are left out.

    So a model that decides something by its data (`if mask.all():`) runs on many rows at once, each of which
    gets what it would have got alone: those with other decisions are run once more.

    Args:
        level: of the rows.
        left: which rows are still to be run, one at least; the first of them decides.

    Attributes:
        kept: those of them that decided as the first one did.
    """

    def __init__(self, level: RowLevel, left: list[bool]) -> None:
        super().__init__()
        self._level, self._leader, self.kept = level, left.index(True), list(left)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and args and _torch.is_functorch_wrapped_tensor(args[0]):
            numbers = self._level.numbers(args[0])
            if numbers is not None:
                value = numbers[self._leader]
                same = (n == value or (n != n and value != value) for n in numbers)
                self.kept = [kept and alike for kept, alike in zip(self.kept, same, strict=True)]
                kind = _READS[func]
                return value if kind is None else kind(value)
        return func(*args, **(kwargs or {}))

"""The batch in hand: how many rows it has, and where they are in what was delivered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from anechoic.torch.row_types.labels import Label, Mixed, One, RowAxis
from anechoic.torch.row_types.numbers import taken
from anechoic.torch.structure import is_object, parts_of, tensors_in


class Batch:
    """What is known of the batch in hand.

    Attributes:
        rows: how many it has; 0 without one.
        decided: whether a number was taken out of a tensor that depends on rows, as decisions are.
        taken: how many numbers were taken out of such tensors.
        pulled: whether a number was taken out of one inside of a backward pass.
        sized: whether the script asked how many values it took by data (x[mask], nonzero()).
    """

    def __init__(self) -> None:
        self.start(0)
        self._sizes: dict[int, int] = {}

    def start(self, rows: int) -> None:
        """Another one."""
        self.rows = rows
        self.decided = self.pulled = self.sized = False
        self.taken = 0

    def counts_rows(self, size: float, *, once: bool = False) -> bool:
        """Whether a number of the script stands for the rows, or for a multiple of them unless `once`.

        What was the same in a batch of another size is a constant.
        """
        near = round(size)
        if near < 1 or abs(size - near) > 1e-6 * near:
            return False
        constant = self._sizes.setdefault(near, self.rows) != self.rows
        return not constant and (near == self.rows if once else near % self.rows == 0)


def delivered(
    part: Any, rows: int, dimension: int, *, inside: bool = False
) -> Iterator[tuple[Tensor, Label]]:
    """The tensors of a batch, each with its label: all depend on the data.

    A list of as many parts as rows has one for each of them.

    Args:
        rows: of the batch.
        dimension: of the rows, where a tensor has it.
        inside: whether `part` is one of a batch, and not the whole.
    """
    if isinstance(part, Tensor):
        yield part, of_delivered(part, rows, dimension)
    elif isinstance(part, (list, tuple)) and len(part) == rows:
        own = [tensors_in(each) for each in part]
        by_rows = all(row_axis(t, rows, dimension) is not None for tensors in own for t in tensors)
        unclear = Mixed(f"a list of {rows} tensors with {rows} rows each was delivered")
        for row, tensors in enumerate(own):
            for tensor in tensors:
                of_each = unclear if inside and rows > 1 else of_delivered(tensor, rows, dimension)
                yield tensor, of_each if by_rows else One(row)
    else:
        for each in vars(part).values() if is_object(part) else parts_of(part):
            yield from delivered(each, rows, dimension, inside=True)


def with_numbers(content: Any, rows: int) -> Any:
    """A batch whose numbers remember that they came with it, and where there is one for each row, whose."""
    kind = type(content)
    if kind in (int, float):
        return taken(content)
    if kind in (list, tuple):
        own = len(content) == rows and all(type(value) in (int, float) for value in content)
        made: Any = kind(
            taken(part, row) if own else with_numbers(part, rows) for row, part in enumerate(content)
        )
        return made if any(a is not b for a, b in zip(made, content, strict=True)) else content
    if kind is dict:
        made = {key: with_numbers(part, rows) for key, part in content.items()}
        return made if any(made[key] is not content[key] for key in made) else content
    if is_object(content):
        for name, part in vars(content).items():
            if type(part) in _HOLDING:
                vars(content)[name] = with_numbers(part, rows)
    return content


_HOLDING = frozenset({int, float, list, tuple, dict})


def of_delivered(tensor: Tensor, rows: int, dimension: int) -> Label:
    """The label of a tensor that the loader delivered."""
    first = row_axis(tensor, rows, dimension)
    if first is not None:
        return RowAxis(first)
    if rows in tensor.shape:
        return RowAxis(tensor.shape.index(rows))
    return Mixed(f"a tensor of shape {tuple(tensor.shape)} was delivered, without one row an example")


def row_axis(tensor: Tensor, rows: int, dimension: int) -> int | None:
    """Where a tensor has as many entries as the batch has rows, first of all at `dimension`."""
    return next((a for a in (dimension, 0) if tensor.dim() > a and tensor.shape[a] == rows), None)

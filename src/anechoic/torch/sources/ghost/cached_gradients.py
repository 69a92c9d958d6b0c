"""Row gradients that are computed once, in the precision of their factors, and cached until summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from anechoic.torch.sources.ghost.factored_gradients import MemoryAllowance, RowGradients, rounding
from anechoic.torch.structure import full_precision

#: Numbers that are converted to float64 at a time: half a megabyte, which stays in the cache.
WIDE = 2**16
#: Numbers of factors and gradients that one product of several rows makes or reads, about.
TOGETHER = 2**18
#: Rows of one product, at most.
MOST = 8


class CachedGradients(RowGradients):
    """Cached gradients a' x of the weight of a linear layer, shape (rows, outputs, inputs).

    What is measured is what is summed: the numbers as they were rounded. A product is always of as many rows,
    the last ones zero, so that a row's numbers come out of the same kernel however many others there are.

    Args:
        left: factors of some rows as the backward pass left them: (rows, positions, inputs) and (rows,
            positions, outputs).
        sizes: rows, positions, inputs, outputs.
        restore: brings (1, outputs, inputs) into the parameter's shape.
        budget: which the gradients were taken from.
        otherwise: the same gradients, not kept.
    """

    def __init__(
        self,
        left: Callable[[slice], tuple[Tensor, Tensor]],
        sizes: tuple[int, int, int, int],
        restore: Callable[[Tensor], Tensor],
        budget: MemoryAllowance,
        otherwise: Callable[[], RowGradients],
    ) -> None:
        self._left, self._restore, self._budget, self._otherwise = left, restore, budget, otherwise
        self._rows, self._positions, self._inputs, self._outputs = sizes
        self._gradients: Tensor | None = None

    @staticmethod
    def take(
        left: Callable[[slice], tuple[Tensor, Tensor]],
        sizes: tuple[int, int, int, int],
        budget: MemoryAllowance,
    ) -> bool:
        """Whether the budget has room for them; it is then taken."""
        return budget.take(_size(left, sizes))

    def to_share(self) -> RowGradients:
        """Not kept: what a shared weight's norm is made of has to be exact products."""
        sizes = (self._rows, self._positions, self._inputs, self._outputs)
        self._budget.give_back(_size(self._left, sizes))
        return self._otherwise()

    def squared_norms(self) -> Tensor:
        found = self._made()
        squares = [part.double().square().sum(dim=1) for part in found.split(self._step(), dim=1)]
        return torch.stack(squares).sum(dim=0) * (1 + rounding(found.shape[1]))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        found = self._made()
        total = torch.cat([factors @ part.double() for part in found.split(self._step(), dim=1)])
        return self._restore(total.reshape(1, self._outputs, self._inputs))

    def _step(self) -> int:
        return max(1, WIDE // max(1, self._rows))

    def _made(self) -> Tensor:
        """Shape (rows, outputs * inputs)."""
        if self._gradients is None:
            made = None
            for rows, part in self._products():
                if made is None:
                    made = part.new_empty(self._rows, part.shape[1])
                made[rows] = part[: rows.stop - rows.start]
            x, a = self._left(slice(0, 0))
            empty = x.new_zeros(0, self._outputs * self._inputs, dtype=_width(x, a))
            self._gradients = empty if made is None else made
        return self._gradients

    def _products(self) -> Iterator[tuple[slice, Tensor]]:
        each = self._positions * (self._inputs + self._outputs) + self._inputs * self._outputs
        together = max(1, min(MOST, TOGETHER // each))
        for start in range(0, self._rows, together):
            rows = slice(start, min(start + together, self._rows))
            x, a = self._left(rows)
            x, a = (part.to(_width(x, a)) for part in (x, a))
            if missing := together - len(x):
                x, a = (torch.cat([p, p.new_zeros(missing, *p.shape[1:])]) for p in (x, a))
            with full_precision(x.device.type):
                yield rows, (a.transpose(1, 2) @ x).reshape(together, -1)


def _size(left: Callable[[slice], tuple[Tensor, Tensor]], sizes: tuple[int, int, int, int]) -> int:
    """Bytes of the gradients."""
    rows, _, inputs, outputs = sizes
    return _width(*left(slice(0, 1))).itemsize * rows * inputs * outputs


def _width(x: Tensor, a: Tensor) -> torch.dtype:
    """The precision of both, at least float32."""
    return torch.promote_types(torch.promote_types(x.dtype, a.dtype), torch.float32)

"""Row gradients that are computed once, in the precision of their factors, and cached until summed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anechoic.torch.sources.ghost.factored_gradients import MemoryAllowance, RowGradients, Sizes, rounding

#: Numbers that are converted to float64 at a time: half a megabyte, which stays in the cache.
WIDE = 2**16
#: Numbers of factors and gradients that one product of several rows makes or reads, about.
TOGETHER = 2**18
#: Rows of one product, at most.
MOST = 8

Factors = Callable[[slice], tuple[Tensor, Tensor]]


class CachedGradients(RowGradients):
    """Cached gradients a' x of the weight of a linear layer, shape (rows, outputs * inputs).

    What is measured is what is summed: the numbers as they were rounded. A product is always of as many rows,
    the last ones zero, so that a row's numbers come out of the same kernel however many others there are.

    Args:
        left: factors of some rows as the backward pass left them: (rows, positions, inputs) and (rows,
            positions, outputs).
        sizes, restore: as of `OuterProducts`, with one group.
        otherwise: the same gradients, not kept.
    """

    def __init__(
        self,
        left: Factors,
        sizes: Sizes,
        restore: Callable[[Tensor], Tensor],
        otherwise: Callable[[], RowGradients],
    ) -> None:
        self._left, self._sizes, self._restore, self._otherwise = left, sizes, restore, otherwise
        self._gradients: Tensor | None = None

    @staticmethod
    def take(left: Factors, sizes: Sizes, budget: MemoryAllowance) -> bool:
        """Whether the budget has room for them; it is then taken."""
        return budget.take(_width(*left(slice(0, 1))).itemsize * sizes.rows * sizes.inputs * sizes.outputs)

    def to_share(self) -> RowGradients:
        """Not kept: what a shared weight's norm is made of has to be exact products."""
        return self._otherwise()

    def squared_norms(self) -> Tensor:
        found = self._made()
        squares = [part.double().square().sum(dim=1) for part in found.split(self._step(), dim=1)]
        return torch.stack(squares).sum(dim=0) * (1 + rounding(found.shape[1]))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        parts = self._made().split(self._step(), dim=1)
        total = torch.cat([factors @ part.double() for part in parts])
        return self._restore(total.reshape(1, self._sizes.outputs, self._sizes.inputs))

    def _step(self) -> int:
        return max(1, WIDE // max(1, self._sizes.rows))

    def _made(self) -> Tensor:
        if self._gradients is None:
            count, positions, inputs, outputs, _ = self._sizes
            together = max(1, min(MOST, TOGETHER // (positions * (inputs + outputs) + inputs * outputs)))
            dtype = _width(*self._left(slice(0, 0)))
            made = self._left(slice(0, 0))[0].new_empty(count, outputs * inputs, dtype=dtype)
            for start in range(0, count, together):
                x, a = (part.to(dtype) for part in self._left(slice(start, start + together)))
                here = len(x)
                if here < together:
                    x, a = (torch.cat([p, p.new_zeros(together - here, *p.shape[1:])]) for p in (x, a))
                made[start : start + here] = (a.transpose(1, 2) @ x).reshape(together, -1)[:here]
            self._gradients = made
        return self._gradients


def _width(x: Tensor, a: Tensor) -> torch.dtype:
    """The precision of both, at least float32."""
    return torch.promote_types(torch.promote_types(x.dtype, a.dtype), torch.float32)

"""Gradients of single rows, as factors: upper bounds of their norms, and sums of multiples of them.

The gradient of row i with respect to one parameter is held as outer products of layer inputs and backprops
(`OuterProducts`), the gradient itself (`PlainGradients`), or its few lines that are not zero
(`SparseGradients`). All arithmetic is float64. How far rounding can carry a norm or a sum off the true one
is derived in docs/proofs/clipping.md#ghost-clipping; the constants here are those of the page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

#: Unit roundoff of float64.
UNIT = 2.0**-53
#: Part of its amplitude (the norm if nothing cancelled) that counts into a row's norm, where its products are
#: summed together with those of other rows: what cancels within a row is then at most 1/MARGIN times what it
#: may contribute.
MARGIN = 2.0**-17
#: Products that are summed up in one piece, at most; sums of pieces follow.
DEPTH = 2**12
#: Bytes of float64 copies made at a time.
PIECE = 2**25
#: Bytes of gradients of single rows that one backward pass may keep.
KEPT = 2**27


def rounding(terms: int) -> float:
    """Relative error of a float64 sum of `terms` products in any order, with a factor 2 to spare."""
    return 2.0 * (terms + 8) * UNIT


class MemoryAllowance:
    """Bytes that are left for gradients that are kept between norms and sums."""

    def __init__(self, left: int = KEPT) -> None:
        self.left = left

    def take(self, amount: int) -> bool:
        """Reserve `amount` bytes, if so many are left."""
        taken = amount <= self.left
        self.left -= amount * taken
        return taken


class RowGradients(ABC):
    """Gradients of the rows of a batch with respect to one parameter."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squares of upper bounds of the 2-norm of each row's gradient, shape (rows,), float64."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum of the rows' gradients times `factors` (rows,) >= 0, in the parameter's shape, float64."""

    def to_share(self) -> RowGradients:
        """The same, in a form of which the norm of a shared weight can be made."""
        return self


class PlainGradients(RowGradients):
    """The gradients themselves: shape (rows, *parameter), of any float dtype."""

    def __init__(self, gradients: Tensor) -> None:
        self._gradients = gradients.double()

    def squared_norms(self) -> Tensor:
        flat = self._gradients.reshape(len(self._gradients), -1)
        return flat.square().sum(dim=1) * (1 + rounding(flat.shape[1]))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        flat = self._gradients.reshape(len(self._gradients), -1)
        return (factors @ flat).reshape(self._gradients.shape[1:])


class SparseGradients(RowGradients):
    """Gradients that are zero but for some lines: those of an embedding's weight.

    Args:
        lines: index of the line of each position, shape (rows, positions), in [0, count).
        values: what the position adds to its line, shape (rows, positions, width).
        count: lines of the parameter.
    """

    def __init__(self, lines: Tensor, values: Tensor, count: int) -> None:
        self.lines, self.values = lines, values
        self._shape = (count, values.shape[-1])
        self._rows, self._positions = lines.shape
        ids = torch.arange(self._rows, device=lines.device).unsqueeze(1) * count + lines
        self._ids, places = torch.unique(ids, return_inverse=True)
        flat = values.reshape(-1, values.shape[-1]).double()
        # a word that a row holds several times has one gradient: the sum
        self._sums = flat.new_zeros(len(self._ids), flat.shape[1]).index_add_(0, places.reshape(-1), flat)

    def squared_norms(self) -> Tensor:
        squares = self._sums.square().sum(dim=1)
        total = squares.new_zeros(self._rows).index_add_(0, self._ids // self._shape[0], squares)
        return total * (1 + rounding(self._positions + self._shape[1]))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        scaled = self._sums * factors[self._ids // self._shape[0]].unsqueeze(1)
        return scaled.new_zeros(self._shape).index_add_(0, self._ids % self._shape[0], scaled)


class Sizes(NamedTuple):
    """Numbers of rows, positions, features of inputs and of outputs, and groups of a convolution."""

    rows: int
    positions: int
    inputs: int
    outputs: int
    groups: int = 1


class NormStrategy(Enum):
    """Three ways to the norms and sums of a layer's rows.

    With T positions, I inputs and O outputs, the gradient of a row is a' x, a matrix of O by I numbers:

    * *products*: the norm from the products of positions, T by T, and the sum from the factors again;
    * *entries*: the norm from the gradient, which is made, measured and dropped, the sum from the factors;
    * *kept*: the gradient is made once, in the precision of its factors, and kept until it is summed.

    So few positions want products, and thin matrices (adapters of low rank) entries. What is kept takes
    memory, of which there is a budget.
    """

    PRODUCTS = "products"
    ENTRIES = "entries"
    KEPT = "kept"


#: In products of float32 (`python benchmarks/ghost_ways.py` fits these): a product in float64; one of a' x in
#: float64, whose factors stand the wrong way round for it; a number of a gradient that is made, written,
#: measured and read again; and a product of positions, of which two are read, multiplied and added up.
DOUBLE, ACROSS, ENTRY, PAIR = 2.0, 4.0, 50.0, 16.0


def cost(way: NormStrategy, positions: int, inputs: int, outputs: int) -> float:
    """Return the cost of norm and sum of a row, in products of float32; all sizes are >= 1."""
    entries = inputs * outputs
    made = positions * entries
    if way is NormStrategy.KEPT:
        return made + ENTRY * entries
    if way is NormStrategy.ENTRIES:
        return (ACROSS + DOUBLE) * made + ENTRY * entries
    return positions**2 * (DOUBLE * (inputs + outputs) + PAIR) + DOUBLE * made


def cheapest(
    positions: int, inputs: int, outputs: int, among: tuple[NormStrategy, ...] = tuple(NormStrategy)
) -> NormStrategy:
    """Choose the way of least cost; of equal ones the first of `among`."""
    return min(among, key=lambda way: cost(way, positions, inputs, outputs))


class OuterProducts(RowGradients):
    """Sums over positions of outer products: gradients of the weight of a linear layer or a convolution.

    Norms come from the gradient itself where that is cheaper, else from the two Gram matrices:
    |sum_t a_t x_t'|^2 = sum_ts <x_t, x_s> <a_t, a_s>. Rows are treated together in pieces of `PIECE` bytes.

    Args:
        factors: inputs x and backprops a of some rows, each (groups, rows, positions, features), float64.
        sizes: of them.
        restore: brings (groups, outputs, inputs) into the parameter's shape.
        budget: gives memory for what is used twice.
        way: to the norms, by entries or products; None for the cheaper one.
    """

    def __init__(
        self,
        factors: Callable[[slice], tuple[Tensor, Tensor]],
        sizes: Sizes,
        restore: Callable[[Tensor], Tensor],
        budget: MemoryAllowance,
        way: NormStrategy | None = None,
    ) -> None:
        self._factors, self._restore, self.sizes = factors, restore, sizes
        way = way or cheapest(*sizes[1:4], (NormStrategy.ENTRIES, NormStrategy.PRODUCTS))
        self._single = sizes.positions == 1
        self._whole = way is NormStrategy.ENTRIES and not self._single
        many = sizes.rows * sizes.groups
        self._keeps = self._whole and budget.take(8 * many * sizes.inputs * sizes.outputs)
        both = many * sizes.positions * (sizes.inputs + sizes.outputs)
        self._reuses = not (self._keeps or self._single) and budget.take(8 * both)
        self._kept: list[Tensor] = []
        self._pieces: list[tuple[slice, Tensor, Tensor]] = []

    def squared_norms(self) -> Tensor:
        self._kept, self._pieces = [], []
        found = [self._norms(x, a) for _, x, a in self.pieces(first=True)]
        return torch.cat(found).square() if found else torch.zeros(0, dtype=torch.float64)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        _, _, inputs, outputs, groups = self.sizes
        if self._keeps:
            flat = self._kept[0] if len(self._kept) == 1 else torch.cat(self._kept)
            return self._restore((factors @ flat).reshape(groups, outputs, inputs))
        total: Tensor | None = None
        for rows, x, a in self.pieces():
            scaled = (a * factors[rows].reshape(-1, 1, 1)).reshape(groups, -1, outputs)
            part = scaled.transpose(1, 2) @ x.reshape(groups, -1, inputs)
            total = part if total is None else total.add_(part)
        return self._restore(factors.new_zeros(groups, outputs, inputs) if total is None else total)

    def _norms(self, x: Tensor, a: Tensor) -> Tensor:
        """Upper bounds of the norms of the rows of a piece."""
        _, positions, inputs, outputs, groups = self.sizes
        if self._single:
            squared = (_lengths(x) * _lengths(a)).squeeze(-1).square().sum(dim=0)
            return squared.sqrt() * (1 + rounding(inputs + outputs + groups))
        if self._whole:
            gradients = (a.transpose(-1, -2) @ x).transpose(0, 1).reshape(x.shape[1], -1)
            norms = gradients.square().sum(dim=1).sqrt() * (1 + rounding(gradients.shape[1]))
            if self._keeps:
                self._kept.append(gradients)
                return norms
            return norms + (rounding(positions) + MARGIN) * self.amplitudes(x, a)
        products = (x @ x.transpose(-1, -2)).mul_(a @ a.transpose(-1, -2))
        squared = products.sum(dim=-1).sum(dim=-1).sum(dim=0)
        amplitudes = self.amplitudes(x, a)
        lost = rounding(inputs + outputs + 2 * positions + groups) * amplitudes.square()
        return (squared.clamp_(min=0) + lost).sqrt() * (1 + rounding(0)) + MARGIN * amplitudes

    @staticmethod
    def amplitudes(x: Tensor, a: Tensor) -> Tensor:
        """What the norm would be if nothing cancelled: sum_t |x_t| |a_t|, over groups in squares."""
        return (_lengths(x) * _lengths(a)).sum(dim=-1).square().sum(dim=0).sqrt()

    def _piece(self) -> int:
        """Rows that are treated at once."""
        _, positions, inputs, outputs, groups = self.sizes
        entries = positions * (inputs + outputs)
        if not self._single:
            entries += inputs * outputs if self._whole else 2 * positions**2
        by_memory = PIECE // (8 * max(groups * entries, 1))
        by_depth = DEPTH // max(positions, 1)
        return max(1, by_memory if self._single else min(by_memory, by_depth))

    def pieces(self, *, first: bool = False) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The factors of some rows after the others: (rows, x, a)."""
        if self._reuses and not first:
            yield from self._pieces
            return
        piece = self._piece()
        for start in range(0, self.sizes.rows, piece):
            rows = slice(start, min(start + piece, self.sizes.rows))
            x, a = self._factors(rows)
            if self._reuses:
                self._pieces.append((rows, x, a))
            yield rows, x, a


class TiedGradients(RowGradients):
    """A weight that an embedding and a linear layer share: the sum of both gradients.

    |E + L|^2 = |E|^2 + |L|^2 + 2 <E, L>, where <E, L> = sum_ts a_s[word t] <b_t, x_s>.

    Args:
        words: gradients E of the embedding, with b_t for each position.
        outer: gradients L of the linear layer, with x_s and a_s for each position.
    """

    def __init__(self, words: SparseGradients, outer: OuterProducts) -> None:
        self._words, self._outer = words, outer

    def squared_norms(self) -> Tensor:
        both = self._words.squared_norms() + self._outer.squared_norms()
        products, amplitudes, of_lines = (torch.zeros_like(both) for _ in range(3))
        for rows, x, a in self._outer.pieces():
            lines, values = self._words.lines[rows], self._words.values[rows].double()
            of_words = a[0].gather(2, lines.unsqueeze(1).expand(-1, a.shape[2], -1))
            products[rows] += ((x[0] @ values.transpose(1, 2)) * of_words).sum(dim=2).sum(dim=1)
            amplitudes[rows] += self._outer.amplitudes(x, a)
            of_lines[rows] = _lengths(values).sum(dim=1)
        width = self._outer.sizes.inputs + self._outer.sizes.positions + self._words.values.shape[1]
        lost = rounding(width) * amplitudes * of_lines
        amplitudes += of_lines
        squared = (both + 2 * (products + lost)).clamp_(min=0) * (1 + rounding(0))
        # what cancels between the two must stay small too
        return (squared.sqrt() + MARGIN * amplitudes).square()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self._words.weighted_sum(factors) + self._outer.weighted_sum(factors)


def shared(one: RowGradients, other: RowGradients) -> RowGradients:
    """Gradients of a parameter that two layers share: an embedding and a linear layer."""
    words, outer = (one, other.to_share()) if isinstance(one, SparseGradients) else (other, one.to_share())
    if not isinstance(words, SparseGradients) or not isinstance(outer, OuterProducts):
        raise TypeError("only an embedding and a linear layer can share their weight.")
    return TiedGradients(words, outer)


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1)


def norms(gradients: list[RowGradients]) -> Tensor:
    """Upper bounds of the norms of the rows' gradients over all parameters together, shape (rows,)."""
    total = torch.stack([part.squared_norms() for part in gradients]).sum(dim=0)
    # squares below 2**-1022 vanish: 2**-500 is more than all of them together
    return total.sqrt() * (1 + rounding(len(gradients))) + 2.0**-500


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

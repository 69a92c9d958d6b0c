"""Gradients of single rows, as factors: upper bounds of their norms, and sums of multiples of them.

The gradient of row i with respect to one parameter is held as outer products of layer inputs and backprops
(`OuterProducts`), the gradient itself (`PlainGradients`), or its few lines that are not zero
(`SparseGradients`). All arithmetic is float64. How far rounding can carry a norm or a sum off the true one
is derived in docs/proofs/ghost-clipping.md; the constants here are those of the page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from anechoic.torch.sources.ghost import blocks
from anechoic.torch.sources.ghost.norm_strategy import NormStrategy, cheapest

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
    """Memory allowance for gradients that are kept between norms and sums.

    Args:
        left: bytes.
    """

    def __init__(self, left: int = KEPT) -> None:
        self.left = left

    def take(self, amount: int) -> bool:
        """Reserve `amount` bytes, if so many are left."""
        taken = amount <= self.left
        self.left -= amount if taken else 0
        return taken

    def give_back(self, amount: int) -> None:
        """Give bytes back that were reserved and not used."""
        self.left += amount


class RowGradients(ABC):
    """Gradients of the rows of a batch with respect to one parameter."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squares of upper bounds of the 2-norm of each row's gradient, shape (rows,), float64."""

    @property
    def terms(self) -> int:
        """Products in the longest chain of additions of `weighted_sum` that can cancel within a row, or 0."""
        return 0

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum of the rows' gradients times `factors`, in the parameter's shape, float64.

        Args:
            factors: shape (rows,), float64, >= 0.
        """

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


class LayerFactors:
    """Inputs and backprops of one layer in the form (groups, rows, positions, features), float64, by pieces.

    Args:
        make: the two factors of some rows, in that form.
        rows, groups, positions: their numbers.
        inputs, outputs: features of the first factor and of the second.
        as_left: the factors of one row as the backward pass left them, (positions, inputs) and (positions,
            outputs), for rows that are too large to be converted at once; None where there is no such form.
    """

    def __init__(
        self,
        make: Callable[[slice], tuple[Tensor, Tensor]],
        *,
        as_left: Callable[[int], tuple[Tensor, Tensor]] | None = None,
        rows: int,
        groups: int,
        positions: int,
        inputs: int,
        outputs: int,
    ) -> None:
        self.make, self.as_left = make, as_left
        self.rows, self.groups, self.positions = rows, groups, positions
        self.inputs, self.outputs = inputs, outputs


class OuterProducts(RowGradients):
    """Sums over positions of outer products: gradients of the weight of a linear layer or a convolution.

    Norms come from the gradient itself where that is cheaper (`ways`), else from the two Gram matrices:
    |sum_t a_t x_t'|^2 = sum_ts <x_t, x_s> <a_t, a_s>.

    Rows are treated together in pieces of `PIECE` bytes. A single row of a linear layer that takes more is
    treated in blocks (`blocks`), by either way.

    Args:
        factors: inputs x and backprops a.
        restore: brings (groups, outputs, inputs) into the parameter's shape.
        budget: gives memory for what is used twice.
        way: to the norms, by entries or products; None for the cheaper one.
    """

    def __init__(
        self,
        factors: LayerFactors,
        restore: Callable[[Tensor], Tensor],
        budget: MemoryAllowance,
        way: NormStrategy | None = None,
    ) -> None:
        f = self._factors = factors
        self._restore = restore
        way = way or cheapest(f.positions, f.inputs, f.outputs, (NormStrategy.ENTRIES, NormStrategy.PRODUCTS))
        self._single = f.positions == 1
        self._whole = way is NormStrategy.ENTRIES and not self._single
        each = f.positions * (f.inputs + f.outputs)
        each += f.inputs * f.outputs if self._whole else 2 * f.positions**2
        self._in_blocks = f.as_left is not None and not self._single and 8 * each > PIECE
        entries = f.rows * f.groups * f.inputs * f.outputs
        self._keeps = self._whole and not self._in_blocks and budget.take(8 * entries)
        both = f.rows * f.groups * f.positions * (f.inputs + f.outputs)
        self._reuses = not (self._keeps or self._single or self._in_blocks) and budget.take(8 * both)
        self._kept: list[Tensor] = []
        self._pieces: list[tuple[slice, Tensor, Tensor]] = []

    @property
    def width(self) -> int:
        """Inputs and positions."""
        return self._factors.inputs + self._factors.positions

    @property
    def terms(self) -> int:
        if self._keeps or self._single:
            return 0
        if self._in_blocks:  # the entries of one row are made first, and then added to those of the others
            return self._factors.rows + self._factors.positions
        pieces = -(-self._factors.rows // self._piece())
        return max(self._piece() * self._factors.positions, 1) + pieces

    def squared_norms(self) -> Tensor:
        self._kept, self._pieces = [], []
        if self._in_blocks:
            return self._norms_in_blocks().square()
        found = [self._norms(x, a) for _, x, a in self._each(first=True)]
        return torch.cat(found).square() if found else torch.zeros(0, dtype=torch.float64)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        f = self._factors
        if self._keeps:
            flat = self._kept[0] if len(self._kept) == 1 else torch.cat(self._kept)
            return self._restore((factors @ flat).reshape(f.groups, f.outputs, f.inputs))
        total: Tensor | None = None
        if self._in_blocks:
            total = factors.new_zeros(f.groups, f.outputs, f.inputs)
            for row, (x, a) in enumerate(self._rows()):
                blocks.add(total[0], x, a, factors[row])
        for rows, x, a in () if self._in_blocks else self.pieces():
            scaled = (a * factors[rows].reshape(-1, 1, 1)).reshape(f.groups, -1, f.outputs)
            part = scaled.transpose(1, 2) @ x.reshape(f.groups, -1, f.inputs)
            total = part if total is None else total.add_(part)
        return self._restore(factors.new_zeros(f.groups, f.outputs, f.inputs) if total is None else total)

    def _norms(self, x: Tensor, a: Tensor) -> Tensor:
        """Upper bounds of the norms of the rows of a piece."""
        f = self._factors
        if self._single:
            squared = (_lengths(x) * _lengths(a)).squeeze(-1).square().sum(dim=0)
            return squared.sqrt() * (1 + rounding(f.inputs + f.outputs + f.groups))
        if self._whole:
            gradients = (a.transpose(-1, -2) @ x).transpose(0, 1).reshape(x.shape[1], -1)
            norms = gradients.square().sum(dim=1).sqrt() * (1 + rounding(gradients.shape[1]))
            if self._keeps:
                self._kept.append(gradients)
                return norms
            amplitudes = self.amplitudes(x, a)
            return norms + (rounding(f.positions) + MARGIN) * amplitudes
        products = (x @ x.transpose(-1, -2)).mul_(a @ a.transpose(-1, -2))
        squared = products.sum(dim=-1).sum(dim=-1).sum(dim=0)
        amplitudes = self.amplitudes(x, a)
        lost = rounding(f.inputs + f.outputs + 2 * f.positions + f.groups) * amplitudes.square()
        return (squared.clamp_(min=0) + lost).sqrt() * (1 + rounding(0)) + MARGIN * amplitudes

    def _rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Factors of one row after the other, as they were left."""
        f = self._factors
        if f.as_left is not None:
            yield from (f.as_left(row) for row in range(f.rows))

    def _norms_in_blocks(self) -> Tensor:
        """Upper bounds of the norms, as in `_norms`."""
        f = self._factors
        found = []
        for x, a in self._rows():
            parts = blocks.by_positions(x, a)
            amplitude = torch.stack([(_lengths(some) * _lengths(other)).sum() for some, other in parts]).sum()
            if self._whole:
                length = blocks.by_entries(x, a).sqrt() * (1 + rounding(f.inputs * f.outputs))
                found.append(length + (rounding(f.positions) + MARGIN) * amplitude)
                continue
            lost = rounding(f.inputs + f.outputs + 2 * f.positions) * amplitude.square()
            squared = blocks.by_products(x, a).clamp_(min=0) + lost
            found.append(squared.sqrt() * (1 + rounding(0)) + MARGIN * amplitude)
        return torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The factors of some rows after the other, or of some positions of a row: (rows, x, a)."""
        if not self._in_blocks:
            yield from self._each(first=False)
            return
        for row, (x, a) in enumerate(self._rows()):
            for some, other in blocks.by_positions(x, a):
                yield slice(row, row + 1), some[None, None], other[None, None]

    @staticmethod
    def amplitudes(x: Tensor, a: Tensor) -> Tensor:
        """What the norm would be if nothing cancelled: sum_t |x_t| |a_t|, over groups in squares."""
        return (_lengths(x) * _lengths(a)).sum(dim=-1).square().sum(dim=0).sqrt()

    def _piece(self) -> int:
        """Rows that are treated at once."""
        f = self._factors
        entries = f.positions * (f.inputs + f.outputs)
        if not self._single:
            entries += f.inputs * f.outputs if self._whole else 2 * f.positions**2
        by_memory = PIECE // (8 * max(f.groups * entries, 1))
        by_depth = DEPTH // max(f.positions, 1)
        return max(1, by_memory if self._single else min(by_memory, by_depth))

    def _each(self, *, first: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        if self._reuses and not first:
            yield from self._pieces
            return
        piece = self._piece()
        for start in range(0, self._factors.rows, piece):
            rows = slice(start, min(start + piece, self._factors.rows))
            x, a = self._factors.make(rows)
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

    @property
    def terms(self) -> int:
        return max(self._outer.terms, len(self._words.lines))

    def squared_norms(self) -> Tensor:
        both = self._words.squared_norms() + self._outer.squared_norms()
        products, amplitudes, of_lines = (torch.zeros_like(both) for _ in range(3))
        for rows, x, a in self._outer.pieces():
            lines, values = self._words.lines[rows], self._words.values[rows].double()
            of_words = a[0].gather(2, lines.unsqueeze(1).expand(-1, a.shape[2], -1))
            products[rows] += ((x[0] @ values.transpose(1, 2)) * of_words).sum(dim=2).sum(dim=1)
            amplitudes[rows] += self._outer.amplitudes(x, a)
            of_lines[rows] = _lengths(values).sum(dim=1)
        lost = rounding(self._outer.width + self._words.values.shape[1]) * amplitudes * of_lines
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


def excess(rows: int, terms: int) -> float:
    """By how much, relative to the clip norm, rounding can add to what one row moves a sum by.

    Args:
        rows: summed up together.
        terms: the largest `OuterProducts.terms` of the parameters.
    """
    kept = rows * rounding(rows)
    mixed = rows * rounding(terms) / MARGIN if terms else 0.0
    return 2 * (kept + mixed)

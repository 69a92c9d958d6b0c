"""A lower bound for prefix sums under several participations whose cost does not grow with n.

The bound is that of `lower_bounds.dual` with weights p that are constant on cells of m steps, and patterns
of cells: c_1 < c_2 < … stands for the m patterns of the steps u of these cells, u < m, with one matrix R_c
for all u. Where cells are apart as steps are to be, these are allowed. Then W = (sum_c v_c R_c) (x) I, whose
nuclear norm is that of strings (`lower_bounds.strings`), and the bound is ||E^½ A L||_* / sqrt(m sum_c v_c).
It is ascended in v, R and, for the max loss, p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, singledispatch
from itertools import combinations

import numpy as np
import scipy
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.algebra.threads import on_one_thread
from anechoic.lower_bounds.strings import nuclear_norm, slopes
from anechoic.participation import MinSep
from anechoic.participation.base import Participation

LARGEST = 64  # cells up to which the bound is cheap
ROUNDS = 100  # of L-BFGS, for few cells
WORK = 3.2e6  # rounds times cells cubed, at most
PARTS, PARTS_OF_MAX = 5, 8  # cells to a separation, at most; for the max loss, where more of them tell more
WASTE = 1.01  # of a separation that is no multiple of the cells
NUMBERS = 2**16  # in the factors of all patterns
# To begin with, the best of these: blends of correlations with the identity, growths of the weights of the
# steps from one separation to the next, and logarithms of the shares of patterns that are not regular.
BLENDS, GROWTHS, OTHERS = (0.3, 0.6, 0.9, 0.98), (1.05, 1.4, 2.0, 3.0), (0.0, -3.0)
RIDGE = 3e-5  # of the trace of R, as patterns of one cell, so that R is definite, and its inverse exact
STILL = 1e-5  # relative growth in a round below which the ascent ends


def cells_bound(n: int, participation: Participation, *, free: bool) -> float | None:
    """No factorisation of prefix sums has a smaller RMS loss (hence max loss); None where it is not cheap.

    Args:
        n: steps.
        participation: with more than one participation.
        free: let the weights of the steps differ from cell to cell: a bound for the max loss alone.

    References:
        Monograph, Problem 4.6, whose dual this is; the theorem is in `lower_bounds.dual`.
    """
    size, patterns = cell_patterns(participation, n, PARTS_OF_MAX if free else PARTS)
    count = -(-n // size)
    if not 1 < count <= LARGEST:
        return None
    return _ascended(n, size, tuple(map(tuple, patterns.tolist())), free)


@lru_cache(maxsize=256)
@on_one_thread
def _ascended(n: int, size: int, patterns: tuple[tuple[int, ...], ...], free: bool) -> float:
    """Optimisers ask again and again for one setting."""
    count = -(-n // size)
    return _Cells(n, size, np.array(patterns, dtype=np.intp), free).ascended(
        min(ROUNDS, int(WORK / count**3))
    )


@singledispatch
def cell_patterns(participation: Participation, n: int, most: int) -> tuple[int, NDArray[np.intp]]:
    """Steps of a cell, and patterns of cells, shape (count, longest); at most `most` cells to a separation.

    One cell for each cycle of the least period that the schema allows, unless it knows better.

    Raises:
        UnsupportedError: if no period is known.
    """
    period = participation.contained_period(n)
    return period, np.arange(-(-n // period))[None, :]


@cell_patterns.register
def _(participation: MinSep, n: int, most: int) -> tuple[int, NDArray[np.intp]]:
    """All patterns of the cells that part a separation, as many as a few seconds allow."""
    separation, count = participation.separation, participation.max_participations_in(n)
    for parts in range(min(most, separation), 0, -1):
        size = -(-separation // parts)
        cells = -(-n // size)
        apart = -(-separation // size)
        longest = min(count, -(-cells // apart))
        free = cells - (apart - 1) * (longest - 1)  # cells, but for those that must be empty
        small = cells <= LARGEST and math.comb(free, longest) * longest**2 <= NUMBERS
        covered = free - longest >= apart - 1  # every cell is part of a longest pattern
        if small and covered and size * apart <= WASTE * separation:
            chosen = np.array(list(combinations(range(free), longest)), dtype=np.intp)
            return size, chosen + (apart - 1) * np.arange(longest)
    return cell_patterns.dispatch(Participation)(participation, n, most)


class _Cells:
    """Minus the logarithm of the bound, and its gradient, in log v, factors of R_c, and log p."""

    def __init__(self, n: int, size: int, patterns: NDArray[np.intp], free: bool) -> None:
        self._size, self._patterns, self._free = size, patterns, free
        self._count = -(-n // size)
        self._rest = n - (self._count - 1) * size
        self._steps = np.append(np.full(self._count - 1, float(size)), self._rest)
        k = patterns.shape[1]
        self._apart = int(np.diff(patterns, axis=1).min())
        self._lower = np.tril(np.ones((k, k), dtype=bool))
        self._highest, self._at = -math.inf, np.zeros(0)

    def ascended(self, rounds: int) -> float:
        """The bound at the best point of L-BFGS, rounded down."""
        reached: list[float] = []

        def callback(x: Array) -> None:
            reached.append(self._highest)
            if len(reached) > 10 and reached[-1] < reached[-11] + 10 * STILL:
                raise StopIteration

        for x in self._starts():
            self(x)
        options = {"maxiter": max(1, rounds), "maxfun": 2 * max(1, rounds), "maxcor": 20}
        scipy.optimize.minimize(
            self, self._at, jac=True, method="L-BFGS-B", callback=callback, options=options
        )
        _, _, _, r, mass = self._unpacked(self._at)
        norm = nuclear_norm(r, mass, self._rest, self._size - self._rest)
        return norm / math.sqrt(self._size) * (1 - 1e-9)

    def __call__(self, x: Array) -> tuple[float, Array]:
        shares, unit, lengths, r, mass = self._unpacked(x)
        found = slopes(r, mass, self._rest, self._size - self._rest)
        value = math.log(found.value)
        if value > self._highest:
            self._highest, self._at = value, x.copy()
        by_block = found.by_r[self._patterns[:, :, None], self._patterns[:, None, :]] / (1 + RIDGE)
        by_share = np.einsum("cij,cik,cjk->c", by_block, unit, unit)
        by_unit = 2 * shares[:, None, None] * (by_block @ unit)
        by_raw = (by_unit - (by_unit * unit).sum(axis=2, keepdims=True) * unit) / lengths
        parts = [shares * (by_share - shares @ by_share), by_raw[:, self._lower].ravel()]
        if self._free:
            p, by_p = mass * self._steps, found.by_mass / self._steps
            parts.append(p * (by_p - p @ by_p))
        return -value, -np.concatenate(parts) / found.value

    def _starts(self) -> Iterator[Array]:
        """Correlations of the columns of diag(p)^½ A, mixed with the identity, and shares of the patterns."""
        k = self._patterns.shape[1]
        ages = self._count - self._patterns
        products = np.sqrt(
            np.minimum(ages[:, :, None], ages[:, None, :]) / np.maximum(ages[:, :, None], ages[:, None, :])
        )
        gaps = np.diff(self._patterns, axis=1)
        odd = (gaps > self._apart).any(axis=1)
        lags = np.arange(self._count) / self._apart
        for blend in BLENDS:
            factors = np.linalg.cholesky(blend * products + (1 - blend) * np.eye(k))
            for other in OTHERS if odd.any() else OTHERS[:1]:
                x = np.concatenate([other * odd, factors[:, self._lower].ravel()])
                if not self._free:
                    yield x
                    continue
                for growth in GROWTHS:
                    yield np.append(x, math.log(growth) * lags)

    def _unpacked(self, x: Array) -> tuple[Array, Array, Array, Array, Array]:
        """v, unit factors of R_c, lengths of their rows before, R of sum v = 1, and the mass of cells."""
        count, k = self._patterns.shape
        middle = count * (1 + k * (k + 1) // 2)
        shares = np.exp(x[:count] - x[:count].max())
        shares /= shares.sum()
        raw = np.zeros((count, k, k))
        raw[:, self._lower] = x[count:middle].reshape(count, -1)
        lengths = np.sqrt(np.square(raw).sum(axis=2, keepdims=True))
        unit = raw / lengths
        r = np.zeros((self._count, self._count))
        blocks = shares[:, None, None] * (unit @ unit.transpose(0, 2, 1))
        np.add.at(r, (self._patterns[:, :, None], self._patterns[:, None, :]), blocks)
        # patterns of one cell each: their v count too
        r = (r + RIDGE / self._count * np.eye(self._count)) / (1 + RIDGE)
        p = self._steps.copy()
        if self._free:
            p = np.exp(x[middle:] - x[middle:].max())
        return shares, unit, lengths, r, p / p.sum() / self._steps

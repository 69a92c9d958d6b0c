"""Online k-means: noisy sums and counts of cells, whose centres move when the stream has doubled."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import Array, finite_array, fraction, positive_float, positive_int
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import (
    Integers,
    Records,
    Statistic,
    both,
    in_ball,
    integer_rows,
    read_vectors,
    row_sums,
)

#: Standard deviations of noise that a cell's count must exceed for its centre to move.
_ENOUGH = 3.0


class OnlineKMeans(Statistic):
    """k centres of vectors that are clipped to 2-norm `bound` around `centre`.

    Epochs double: 1, 2, 4, … steps. In an epoch the cells are fixed, those of the centres as they were at
    the end of the epoch before; a record adds (1, u), u = (x - centre) / bound, to the sums of its cell, and
    0 to all others: norm at most sqrt(2). The value is the mean of each cell in this epoch so far, shape
    (k, d), so that it is least certain where an epoch begins; a centre stays where it was as long as its
    noisy count is not above 3 standard deviations of the noise. This is a step of Lloyd's algorithm an
    epoch, plainly. On the records of the epoch the value costs at most `excess_cost` more than the centres
    that the epoch began with. Beside the best k centres nothing is guaranteed, as the reduction of Dupre la
    Tour, Henzinger and Saulpic (2024) does: see docs/proofs/streaming.md.

    The sums of an epoch are differences of two running sums, whose noise is known as well. Standard errors
    are linearised at the estimate.

    Args:
        k: centres, >= 1.
        bound: > 0.
        dimension: d, >= 1.
        centre: shape (d,), public; the origin by default.
        initial: shape (k, d), public centres to begin with; None for fixed ones inside the bound.
        column: of the batch.

    Raises:
        ValueError: for an argument out of range or of another shape.
    """

    name = "centres"
    bound = float(np.sqrt(2.0))
    adaptive = True
    spread = float(np.sqrt(2.0))

    def __init__(
        self,
        k: int,
        bound: float,
        dimension: int,
        centre: ArrayLike | None = None,
        initial: ArrayLike | None = None,
        column: str | None = None,
    ) -> None:
        self._k, self._d = positive_int("k", k), positive_int("dimension", dimension)
        self._radius = positive_float("bound", bound, remedy="It limits the norm of a vector.")
        self._centre = finite_array("centre", np.zeros(self._d) if centre is None else centre, length=self._d)
        if initial is None:
            self._initial, _ = in_ball(np.random.default_rng(0).normal(0, 0.5 / self._d**0.5, (k, self._d)))
        else:
            given = finite_array("initial", initial, ndim=2, length=self._k)
            if given.shape[1] != self._d:
                raise ValueError(f"initial has shape {given.shape}; (k, dimension)={k, dimension} is needed.")
            self._initial, _ = in_ball(given, self._centre, self._radius)
        self.dimension, self.column = self._k * (self._d + 1), column
        self._cells = self._initial
        self._base: Array = np.zeros(self.dimension)
        self.begin = 0

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"centre[{i},{j}]" for i in range(self._k) for j in range(self._d))

    def fresh(self) -> OnlineKMeans:
        return self.beginning_at(self._initial)

    def beginning_at(self, cells: ArrayLike) -> OnlineKMeans:
        """The same with these first centres, in units of the bound as `describe` gives them."""
        made = copy.copy(self)
        made._initial = made._cells = np.asarray(cells, dtype=np.float64)
        made._base, made.begin = np.zeros(self.dimension), 0
        return made

    def read(self, batch: Any) -> Records:
        return read_vectors(batch, self._d, self._centre, self._radius)

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        chosen = both(records.usable, kept)
        values = records.values if chosen is None else records.values[chosen]
        inside, _ = in_ball(values, self._centre, self._radius)
        rows = integer_rows(np.concatenate([np.ones((len(inside), 1)), inside], axis=1), self.bound, unit)
        # each record by itself, entry by entry: a product of matrices rounds by how many there are
        distances = [row_sums(np.square(inside - cell)) for cell in self._cells]
        nearest = np.argmin(distances, axis=0)
        return np.concatenate([rows[nearest == j].sum(axis=0, dtype=np.int64) for j in range(self._k)])

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        means, error = self._means(totals, deviation)
        value = self._centre + self._radius * means
        error = self._radius * error
        return Estimate(value, error, value - z * error, value + z * error, totals - self._base)

    def learn(self, step: int, totals: Array, deviation: float) -> None:
        if not (step + 2) & (step + 1):  # steps 0, 2, 6, 14, … end an epoch
            self._cells, _ = self._means(totals, deviation)
            self._base, self.begin = totals.copy(), step + 1

    def _means(self, totals: Array, deviation: float) -> tuple[Array, Array]:
        """Of the cells, in units of the bound, and their standard errors."""
        sums = (totals - self._base).reshape(self._k, self._d + 1)
        counts = sums[:, :1]
        enough = counts > _ENOUGH * deviation
        inside, _ = in_ball(sums[:, 1:] / np.where(enough, counts, 1.0))
        means = np.where(enough, inside, self._cells)
        spread = deviation * np.sqrt(1 + np.square(means))
        return means, np.where(enough, spread / np.where(enough, counts, 1.0), 2.0)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "k-means",
            "bound": self._radius,
            "centre": self._centre.tolist(),
            "initial": self._initial.tolist(),
            "column": self.column,
        }


def excess_cost(counts: ArrayLike, deviation: float, dimension: int, failure: float = 0.05) -> float:
    """How much more the released centres may cost than those that the epoch began with, in bounds squared.

    The cost is the sum, over the records of the epoch so far, of the squared distance from the clipped record
    to the nearest centre.

    Guarantee: the difference of both costs is below this with probability 1 - failure over the noise of one
    release. It depends on what is released alone, so that it costs no privacy.

    Args:
        counts: noisy counts of the cells, as in the first column of `raw` of the estimate, shape (k,).
        deviation: standard deviation of their noise, > 0.
        dimension: d, >= 1.
        failure: in (0, 1).
    """
    noisy = finite_array("counts", counts)
    s, beta = positive_float("deviation", deviation), fraction("failure", failure)
    tail = s * np.sqrt(2 * np.log(3 * len(noisy) / beta))
    reach = s * np.sqrt(positive_int("dimension", dimension)) + 2 * tail
    moved = noisy[noisy > _ENOUGH * s]
    return float(np.sum(reach**2 * (1 + tail / moved) / moved))

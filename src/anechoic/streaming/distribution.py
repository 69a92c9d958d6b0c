"""Distribution functions and quantiles: noise correlated over the buckets as well as over time.

A record in bucket j adds column j of a matrix D to the step, and the noise of the step is correlated over
time by C, independently in each entry. Undone, D^-1 correlates that noise over the buckets. Together this is
the Kronecker product of C and D, and as the columns of D have norm at most 1, its sensitivity is that of C:
see docs/proofs/streams.md. Errors multiply too, so that each of the two is chosen by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.optimize import isotonic_regression

from anechoic import optimize, workloads
from anechoic._validate import Array, finite_array
from anechoic.streaming.columns import Integers
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import Records, Statistic, counted, masks_and, numbers

#: Most buckets: the matrix over which noise is correlated is dense.
MOST_BUCKETS = 1024
#: Entries of D are multiples of 1 / FINE, so that sums of its columns are exact.
FINE = 2**14


class Distribution(Statistic):
    """A cumulative distribution function in counts: how many records lie below each edge.

    The value is the isotonic regression of the noisy cumulative counts, cut at 0: the distribution function
    does not fall, begins at 0 below the first edge and ends at the number of records. `raw` holds the
    cumulative counts as released, unbiased; low and high are theirs.

    Args:
        edges: increasing, in public units, given in advance. Numbers below the first count in the first
            bucket, those from the last on in the last one; infinite ones too. NaN is left out.
        column: of the batch.

    Raises:
        ValueError: unless edges increase; for more than 1,024 buckets.
    """

    name = "distribution"
    bound = 1.0
    quantum = FINE

    def __init__(self, edges: ArrayLike, column: str | None = None) -> None:
        self.edges = finite_array("edges", edges)
        if len(self.edges) < 2 or not (np.diff(self.edges) > 0).all():
            raise ValueError(
                f"edges={np.array2string(self.edges, threshold=6)} must be at least two increasing numbers,"
                " chosen without looking at the data."
            )
        self.column = column
        self.dimension = len(self.edges) - 1
        if self.dimension > MOST_BUCKETS:
            raise ValueError(
                f"edges make {self.dimension} buckets: give at most {MOST_BUCKETS:,}, wider ones."
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the edges that records lie below; the last holds those beyond it too."""
        return (*(f"below {edge!r}".removesuffix(".0") for edge in self.edges[1:-1].tolist()), "all")

    @cached_property
    def _fine(self) -> Integers:
        """Return D in multiples of 1 / FINE; rounded towards zero, which makes its columns no longer."""
        return np.trunc(range_encoder(self.dimension) * FINE).astype(np.int64)

    @cached_property
    def decoder(self) -> Array:
        """Return A D^-1, shape (E, E): cumulative counts from the noisy sums of encoded records.

        By columns from the last one on, entry by entry: a routine of LAPACK, or a product by BLAS, has other
        last digits on another processor, and so would a release.
        """
        matrix = self._fine / FINE
        found = np.tril(np.ones(matrix.shape))
        for j in range(self.dimension - 1, -1, -1):
            found[j:, j] /= matrix[j, j]
            found[j:, :j] -= found[j:, j, None] * matrix[j, :j]
        return found

    def read(self, batch: Any) -> Records:
        values = numbers(batch)
        usable = ~np.isnan(values)
        places = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, self.dimension - 1)
        beyond = usable & ((values < self.edges[0]) | (values >= self.edges[-1]))
        remarks = {"not a number": counted(~usable), "beyond the edges": counted(beyond)}
        return Records(len(values), places, usable, remarks)

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        counts = np.bincount(records.values[masks_and(records.usable, kept)], minlength=self.dimension)
        return np.asarray((self._fine * counts).sum(axis=1, dtype=np.int64)) * (unit // FINE)

    def each(self, records: Records, unit: int) -> Any:
        usable = True if records.usable is None else records.usable[:, None]
        return sparse.csr_array(np.where(usable, self._fine.T[records.values], 0) * (unit // FINE))

    @property
    def encoding(self) -> bytes:
        return self._fine.astype("<i8").tobytes()

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        counts, errors = self._cumulative(totals, deviation)
        value = monotone(counts, errors)
        low, high = np.maximum(counts - z * errors, 0.0), np.maximum(counts + z * errors, 0.0)
        return Estimate(value, errors, low, high, counts)

    def _cumulative(self, totals: Array, deviation: float) -> tuple[Array, Array]:
        """Return cumulative counts and their standard errors."""
        return (self.decoder * totals).sum(axis=1), deviation * self._row_norms

    @cached_property
    def _row_norms(self) -> Array:
        return np.asarray(np.sqrt(np.square(self.decoder).sum(axis=1)))

    def describe(self) -> dict[str, Any]:
        return {"kind": "distribution", "edges": self.edges.tolist(), "column": self.column}


class Quantiles(Distribution):
    """Quantiles of the records, from their noisy distribution function.

    The value is interpolated within a bucket. An interval goes from one edge to another: it holds the bucket
    of the quantile, with at least the level for which `z` is made. The error has no normal law: read the
    interval, `standard_error` is NaN. Where an interval holds all buckets nothing is known yet, and the value
    is the middle between the first and the last edge.

    Args:
        edges, column: as for `Distribution`.
        probabilities: strictly between 0 and 1; shape (k,).

    Raises:
        ValueError: as `Distribution`, or for a probability outside (0, 1).
    """

    name = "quantiles"

    def __init__(
        self,
        edges: ArrayLike,
        probabilities: Sequence[float] = (0.25, 0.5, 0.75),
        column: str | None = None,
    ) -> None:
        super().__init__(edges, column)
        self.probabilities = finite_array("probabilities", probabilities)
        if not ((self.probabilities > 0) & (self.probabilities < 1)).all():
            raise ValueError(f"probabilities={probabilities!r} must lie strictly between 0 and 1.")

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the probabilities in percent."""
        return tuple(f"{(Decimal(repr(float(p))) * 100).normalize():f}%" for p in self.probabilities)

    @property
    def contrasts(self) -> int:
        return self.dimension * len(self.probabilities)

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        raw, errors = self._cumulative(totals, deviation)
        counts = np.concatenate([[0.0], monotone(raw, errors)])
        value = np.empty(len(self.probabilities))
        low, high = np.empty_like(value), np.empty_like(value)
        for i, p in enumerate(self.probabilities):
            value[i] = np.interp(p * counts[-1], counts, self.edges) if counts[-1] > 0 else self._middle
            low[i], high[i] = self._interval(float(p), raw, deviation, z)
        unknown = (low == self.edges[0]) & (high == self.edges[-1])
        value = np.where(unknown, self._middle, np.clip(value, low, high))
        return Estimate(value, np.full_like(value, np.nan), low, high, raw)

    def _interval(self, p: float, raw: Array, deviation: float, z: float) -> tuple[float, float]:
        """Return edges around all buckets whose right end may be the first with at least p of the records."""
        excess = raw - p * raw[-1]
        spread = z * deviation * self._contrast_norms(p)
        may_reach = np.flatnonzero(excess + spread >= 0)
        may_lack = np.flatnonzero(excess - spread < 0)
        first = int(may_reach[0]) if len(may_reach) else self.dimension - 1
        last = int(may_lack[-1]) + 1 if len(may_lack) else 0
        last = min(max(last, first), self.dimension - 1)
        return float(self.edges[first]), float(self.edges[last + 1])

    def _contrast_norms(self, p: float) -> Array:
        """Return the norms of the rows of A D^-1 less p times the last."""
        return np.asarray(np.sqrt(np.square(self.decoder - p * self.decoder[-1]).sum(axis=1)))

    @property
    def _middle(self) -> float:
        return float(self.edges[0] + self.edges[-1]) / 2

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "quantiles", "probabilities": self.probabilities.tolist()}


def monotone(counts: Array, errors: Array) -> Array:
    """Return the nearest non-decreasing sequence that is >= 0, in the metric of inverse squared errors."""
    found = isotonic_regression(counts, weights=1.0 / np.square(errors)).x
    return np.asarray(np.maximum(found, 0.0))


@cache
def range_encoder(buckets: int) -> Array:
    """Return the triangular D with columns of norm at most 1 and the least error of ranges; shape (E, E).

    All E (E + 1) / 2 ranges have the Gram matrix A^T ((E + 1) I - 1 1^T) A. The best D for its triangular
    root is found with a certificate by `optimize.dense`.
    """
    ones = np.tril(np.ones((buckets, buckets)))
    if buckets == 1:
        return ones
    gram = ones.T @ ((buckets + 1) * np.eye(buckets) - 1) @ ones
    # the root that is lower triangular: Cholesky from the last row up
    root = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T
    found = optimize.dense(workloads.from_dense(root), loss="rms").strategy.to_dense()
    found = found / np.sqrt(np.square(found).sum(axis=0).max()) * (1 - 2.0**-40)
    found.setflags(write=False)  # all distributions of that many buckets share it
    return np.asarray(found)

"""Records that come late: counted when they come, and published figures of their own steps revised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from anechoic._validate import Array, positive_int
from anechoic.streaming.published import Published
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import (
    Integers,
    Records,
    Statistic,
    counted,
    linear_estimate,
    one_each,
    quantile,
)
from anechoic.streaming.sums import Histogram


class Late(Statistic):
    """How many records, of which some come up to so many steps after the step that they belong to.

    A record is handed over in the step in which it comes, with its lag: how many steps ago its own step was.
    What is released are the number of records that came, and that of each lag; `revised` makes of them the
    figure of any step, as it is known by now. Its value as a statistic is the number of all that came.

    A record adds 1 to the number of all and 1 to that of its lag: its vector has norm sqrt(2), whatever its
    lag, and it counts in one step, that in which it comes. So participation, ledger and guarantee are those
    of any statistic; and what a late record changes is what is released from then on.

    Args:
        steps: L >= 1, the longest lag that counts. Records of longer lags, and of none in 0 … L, are left
            out.
        column: of the batch, with the lags.

    Raises:
        ValueError: if steps is below 1.
    """

    name = "late"
    bound = math.sqrt(2.0)
    wants_numbers = False
    contrasts = 1

    def __init__(self, steps: int, column: str | None = None) -> None:
        self.steps, self.column = positive_int("steps", steps), column
        self._lags = Histogram(range(self.steps + 1), column)
        self.dimension = self.steps + 2

    def read(self, batch: Any) -> Records:
        read = self._lags.read(batch)
        return Records(read.count, read.values, read.usable, {"of no such lag": counted(read.values < 0)})

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        lags = self._lags.total(records, kept, unit)
        return np.concatenate([[lags.sum(dtype=np.int64)], lags])

    def each(self, records: Records, unit: int) -> Any:
        every = one_each(np.zeros(records.count, np.int64), records.usable, 1, unit)
        return sparse.hstack([every, self._lags.each(records, unit)], format="csr")

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        error = deviation * math.sqrt(1 - 1 / (self.steps + 2))
        return linear_estimate(by_lag(totals).sum(), error, z, totals)

    def describe(self) -> dict[str, Any]:
        return {"kind": "late", "steps": self.steps, "column": self.column}


def by_lag(totals: Array) -> Array:
    """The numbers by lag of least variance, from the number of all and those of each lag; shape (L + 1,).

    All have one variance s^2. Least squares share out what is missing to the number of all; the errors that
    are left have covariance s^2 (I - 1 1^T / (L + 2)).
    """
    return np.asarray(totals[1:] + (totals[0] - totals[1:].sum()) / len(totals))


def revised(
    stream: Published, step: int, *, begin: int = 0, as_of: int | None = None, name: str | None = None
) -> Estimate:
    """The number of records of steps begin, …, step, whenever they came: as known at a release.

    The records that came by then are in it; it is final once `as_of` is L steps later. Nothing is spent: it
    is the combination of least variance, among all that are linear and unbiased, of what was released.

    Args:
        stream: a `Stream` of running totals, with a statistic `Late`.
        step, begin: of the records' own steps; begin 0 stands for all before too.
        as_of: the release at which it is known, >= step; None for the last.
        name: of the statistic, where the stream has several `Late`.

    Returns:
        One number, or one for each group of a `Late` by groups, in their order, with exact standard errors
        and the intervals of the stream's level; `raw` are the values.

    Raises:
        ValueError: for steps that were not released, or a stream without such a statistic.
        UnsupportedError: for a mechanism of many steps that is not Toeplitz.
    """
    statistics = stream.shared.statistics
    late = {key: one.of_each for key, one in statistics.items() if isinstance(one.of_each, Late)}
    if name is None and len(late) == 1:
        name = next(iter(late))
    if name not in late:
        raise ValueError(f"name={name!r} must name a statistic Late of the stream, which has {sorted(late)}.")
    known = stream.step - 1 if as_of is None else as_of
    if not 0 <= begin <= step <= known < stream.step:
        raise ValueError(
            f"begin={begin}, step={step}, as_of={known}: 0 <= begin <= step <= as_of is needed, and"
            f" {stream.step} steps are released."
        )
    lags = late[name].steps + 1
    grouped, groups = statistics[name] is not late[name], statistics[name].dimension // (lags + 1)
    ends = [(lag, min(step + lag, known), 1.0) for lag in range(lags)]
    if begin:
        ends += [(lag, min(begin - 1 + lag, known), -1.0) for lag in range(lags)]
    steps = sorted({at for _, at, _ in ends})
    weights = np.zeros((lags, len(steps)))
    for lag, at, sign in ends:
        weights[lag, steps.index(at)] += sign
    totals, total, first = [], np.zeros((groups, lags + 1)), 0
    for at in steps:
        total = total + stream.between(first, at)[name].raw.reshape(groups, lags + 1)
        totals.append([by_lag(one) for one in total])
        first = at + 1
    # the errors of lag l at step t and of l' at t' have covariance (I - 1 1^T / (L + 2))[l, l'] K[t, t']
    over_time = stream.covariance(name, steps)
    spread = np.einsum("lt,tu,lu->", weights, over_time, weights)
    together = weights.sum(axis=0)
    variance = float(spread - together @ over_time @ together / (lags + 1))
    values = np.einsum("lt,tgl->g", weights, np.asarray(totals))
    value = values if grouped else np.asarray(values[0])
    return linear_estimate(value, math.sqrt(max(variance, 0.0)), quantile(stream.level), values)

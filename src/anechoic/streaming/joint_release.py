"""Several statistics in one release: concatenated with weights, under one sensitivity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from anechoic._validate import positive_float
from anechoic.participation.base import Participation
from anechoic.streaming.clock import Running, Window
from anechoic.streaming.columns import Integers, column_of
from anechoic.streaming.distinct_counter import DistinctCounter
from anechoic.streaming.mechanisms import Deviations
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import Records, Statistic, checked_statistics
from anechoic.streaming.stream_state import AHEAD


class SharedRelease:
    """The vectors of all statistics, side by side, as integers on the grid of the noise.

    Guarantee: what one unit adds to one step, `per_step` records at most, has 2-norm at most 2**bits whatever
    the records hold: statistic i has norm at most bound_i times its unit, and the squares of these add up
    to at most (2**bits / per_step)**2. See docs/proofs/streams.md.

    Args:
        statistics: by name.
        weights: by name, > 0; None for 1 each. Standard errors over bounds are in inverse proportion.
        per_step: records of one unit that count in one step.
        bits: of the grid: the clip norm is 2**bits.

    Raises:
        ValueError: for statistics or weights that are none, or do not fit on the grid together.
    """

    def __init__(
        self,
        statistics: Mapping[str, Statistic],
        weights: Mapping[str, float] | None,
        per_step: int,
        bits: int,
    ) -> None:
        self.statistics = checked_statistics(statistics)
        self.weights = _checked_weights(weights, statistics)
        self._per_step, self.bits = per_step, bits
        self.dimension = 0
        self._parts: dict[str, slice] = {}
        for name, statistic in statistics.items():
            self._parts[name] = slice(self.dimension, self.dimension + statistic.dimension)
            self.dimension += statistic.dimension
        self.units = {name: self._unit_of(name) for name in statistics}
        self.labels = {name: one.labels for name, one in self.statistics.items() if one.labels}

    def _unit_of(self, name: str) -> int:
        """Return the integer that stands for 1 in a statistic."""
        statistic = self.statistics[name]
        share = self.weights[name] / math.hypot(*self.weights.values())
        exact = share / (statistic.bound * self._per_step) * 2.0**self.bits * (1 - 2.0**-40)
        unit = math.floor(exact) if exact < 2.0**46 else 2**46  # more than fits
        unit -= unit % statistic.quantum
        if not 1 <= unit <= 2**45:
            raise ValueError(
                f"one record of {name!r} has norm at most {statistic.bound:g}, which the grid of {self.bits}"
                " bits cannot hold beside the others: bring bounds and weights nearer to 1."
            )
        return unit

    @property
    def contribution(self) -> float:
        """Return the largest 2-norm of what one unit adds to one step, in clip norms; at most 1."""
        squares = sum((self.units[name] * one.bound) ** 2 for name, one in self.statistics.items())
        return self._per_step * math.sqrt(squares) / 2.0**self.bits

    def read(self, batch: Any) -> tuple[dict[str, Records], int]:
        """Return a batch as all statistics read it, and its number of records.

        Raises:
            ValueError: for a column that is missing, of the wrong shape, or of another length.
        """
        records = {
            name: statistic.read(column_of(batch, name, statistic.column))
            for name, statistic in self.statistics.items()
        }
        counts = sorted({read.count for read in records.values()})
        if len(counts) > 1:
            raise ValueError(
                f"the columns of a batch differ in length: {counts} records. Give one entry a record."
            )
        return records, counts[0]

    def sums(self, records: Mapping[str, Records], kept: NDArray[np.bool_] | None) -> Integers:
        """Return what the kept records add to the step, shape (dimension,)."""
        return np.concatenate(
            [one.total(records[name], kept, self.units[name]) for name, one in self.statistics.items()]
        )

    def each(self, records: Mapping[str, Records]) -> Any:
        """Return what each record adds: a sparse array of int64, shape (records, dimension)."""
        parts = [one.each(records[name], self.units[name]) for name, one in self.statistics.items()]
        found = sparse.hstack(parts, format="csr")
        found.sort_indices()
        return found

    @property
    def encoding(self) -> str:
        """Return a mark of how records are encoded: the same on two machines that encode alike."""
        said = repr(sorted(self.units.items())).encode()
        parts = [said, *(one.encoding for one in self.statistics.values())]
        return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()

    @property
    def columns(self) -> dict[str, set[bool | None]]:
        """Return the columns that are read, and as what."""
        found: dict[str, set[bool | None]] = {}
        for one in self.statistics.values():
            for column, numbers in one.reads.items():
                found.setdefault(column, set()).add(numbers)
        return found

    def reach(self, records: int) -> int:
        """Bound what so many records add to any entry of the sums, in size."""
        most = max(math.ceil(self.units[name] * one.bound) for name, one in self.statistics.items())
        return records * most * (1 if self.distinct_counter is None else 2)  # now, and when it leaves

    def deviations(self, noise: Deviations, step: int, begin: int = 0) -> dict[str, float]:
        """Return the deviation of the noise in each statistic's raw numbers, in steps begin, …, step."""
        return {
            name: noise.since(begin, step) * 2.0**self.bits / self.units[name] for name in self.statistics
        }

    def decode(
        self,
        total: NDArray[Any],
        noise: Deviations,
        step: int,
        z: Callable[[Statistic], float],
        begin: int = 0,
    ) -> dict[str, Estimate]:
        """Return the estimates of a step, from noisy sums; intervals are z standard deviations wide."""
        deviations = self.deviations(noise, step, begin)
        own = {name: total[part].astype(np.float64) / self.units[name] for name, part in self._parts.items()}
        return {
            name: one.decode(own[name], deviations[name], z(one)) for name, one in self.statistics.items()
        }

    @property
    def contrasts(self) -> int:
        """Return how many combinations of released numbers all intervals rest on."""
        return sum(one.contrasts for one in self.statistics.values())

    @property
    def distinct_counter(self) -> DistinctCounter | None:
        """Return the rule of a count of units, which has no others beside it."""
        return next(iter(self.statistics.values())).distinct_counter

    def describe(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {
            "statistics": {name: one.describe() for name, one in self.statistics.items()},
            "order": list(self.statistics),
            "weights": dict(self.weights),
            "per_step": self._per_step,
        }


def checked_distinct_counter(
    statistics: Mapping[str, Statistic], participation: Participation | None, over: Window | None
) -> DistinctCounter | None:
    """Return the rule of a count of units, if there is one and it stands alone."""
    rules = (statistic.distinct_counter for statistic in statistics.values())
    found = next((rule for rule in rules if rule is not None), None)
    if found is None:
        return None
    if len(statistics) > 1 or participation is not None or over not in (None, Running()):
        raise ValueError(
            f"Count(within={found.within}) has a stream of its own, without participation and over: its"
            " visits bound units, and what comes and leaves is added up over all steps. Take two streams,"
            " whose costs add up."
        )
    if found.within > AHEAD:
        raise ValueError(
            f"within={found.within}: so many later steps are kept beside the open one, in which units leave,"
            f" and at most {AHEAD:,} are. Take longer steps."
        )
    return found


def _checked_weights(
    weights: Mapping[str, float] | None, statistics: Mapping[str, Statistic]
) -> dict[str, float]:
    given = dict.fromkeys(statistics, 1.0) if weights is None else dict(weights)
    if given.keys() != statistics.keys():
        raise ValueError(f"weights name {sorted(given)}, the statistics are {sorted(statistics)}: name each.")
    return {name: positive_float(f"weights[{name!r}]", given[name]) for name in statistics}

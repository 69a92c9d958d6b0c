"""What is published: estimates with their standard errors and intervals, and what they cost."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.statement.page import cell, paragraph, table
from anechoic.statement.rounding import round_up

#: Lines of a release that a notebook shows.
SHOWN = 20
#: Of an estimate, besides the noisy sums.
PARTS = ("value", "standard_error", "low", "high")
#: Columns of a table of releases.
HEAD = ("step", "time", "statistic", "entry", "label", *PARTS, "epsilon")


@dataclass(frozen=True, eq=False)
class Estimate:
    """One statistic at one step. All arrays have one shape, () for a single number; read-only.

    Standard errors and intervals speak of the noise alone: what clipping and dropping took away is a bias
    that no release can show (`Stream.diagnostics` counts it, for those who hold the data).

    Attributes:
        value: the estimate, after post-processing.
        standard_error: standard deviation of the noise in it; of a ratio or another function of noisy sums
            its linearisation at the estimate; NaN for quantiles, which have none.
        low, high: interval of the stream's level, pointwise: for this entry and this step alone.
        raw: the noisy sums before post-processing, shape (dimension of the statistic,); unbiased.
    """

    value: Any
    standard_error: Any
    low: Any
    high: Any
    raw: Array

    def __post_init__(self) -> None:
        for name in (*PARTS, "raw"):
            held = np.array(getattr(self, name), np.float64)
            held.setflags(write=False)
            object.__setattr__(self, name, held)


@dataclass(frozen=True, eq=False)
class Release:
    """One step of a stream, as it was published.

    Attributes:
        step: 0, 1, 2, …
        time: what `release(time=…)` was given, or None.
        estimates: by the name of the statistic.
        epsilon, delta: all releases of the stream are together (epsilon, delta)-DP, this one among them.
        labels: by statistic, what the entries of its estimate are called, row after row; none for a single
            number, or for entries that are only numbered.
    """

    step: int
    time: str | float | None
    estimates: Mapping[str, Estimate]
    epsilon: float
    delta: float
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    @property
    def only(self) -> Estimate:
        """Return the estimate of a stream of one statistic.

        Raises:
            ValueError: if there are several.
        """
        if len(self.estimates) != 1:
            raise ValueError(
                f"this release has {len(self.estimates)} statistics ({', '.join(self.estimates)}): name one,"
                f" as release[{next(iter(self.estimates))!r}]."
            )
        return next(iter(self.estimates.values()))

    @property
    def estimate(self) -> float | Array:
        """Return the value of the only statistic, a float where it is one number."""
        return _plain(self.only.value)

    @property
    def standard_error(self) -> float | Array:
        """Return the standard error of the only statistic."""
        return _plain(self.only.standard_error)

    @property
    def interval(self) -> tuple[float | Array, float | Array]:
        """Return (low, high) of the only statistic, pointwise."""
        return _plain(self.only.low), _plain(self.only.high)

    def labels_of(self, name: str) -> tuple[str, ...]:
        """Return a label for each entry of a statistic, row after row: numbers 0, 1, … where it has none."""
        size = self.estimates[name].value.size
        plain = ("",) if size == 1 else tuple(map(str, range(size)))
        return self.labels.get(name, plain)

    def named(self, name: str | None = None) -> dict[str, float]:
        """Return values of a statistic by label: {"AA": 12.1, "UA": 30.4}; a single one by its name.

        Args:
            name: of the statistic; None for the only one.

        Raises:
            ValueError: without a name, if there are several.
        """
        found = self.only if name is None else self.estimates[name]
        name = next(iter(self.estimates)) if name is None else name
        labels = (label or name for label in self.labels_of(name))
        return dict(zip(labels, found.value.ravel().tolist(), strict=True))

    def _repr_html_(self) -> str | None:
        if find_spec("jinja2") is None:
            return None
        lines = [
            (name, label, *(f"{number:.6g}" for number in numbers))
            for name, one in self.estimates.items()
            for label, *numbers in zip(
                self.labels_of(name), *(getattr(one, part).ravel() for part in PARTS), strict=True
            )
        ]
        when = "" if self.time is None else f" ({self.time})"
        cost = f"epsilon {round_up(self.epsilon)} at delta {self.delta:.3g} for all steps"
        more = [f"… and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
        head = ("statistic", "", "value", "standard error", "low", "high")
        return cell(
            paragraph(f"Step {self.step}{when}: {cost}"), table(head, lines[:SHOWN]), *map(paragraph, more)
        )


def _plain(array: Any) -> float | Array:
    return float(array) if array.ndim == 0 else array


def rows_of(releases: Iterable[Release]) -> Iterator[tuple[Any, ...]]:
    """Yield one row for each number of each statistic, in the order of `HEAD`."""
    for release in releases:
        for name, estimate in release.estimates.items():
            arrays = (getattr(estimate, part).ravel().tolist() for part in PARTS)
            for entry, cells in enumerate(zip(release.labels_of(name), *arrays, strict=True)):
                yield (release.step, release.time, name, entry, *cells, float(round_up(release.epsilon, 6)))


def write_releases(path: Path, releases: Iterable[Release]) -> None:
    """Write all releases as a table: CSV, Parquet, or else JSON, by the name of the file."""
    rows = rows_of(releases)
    if path.suffix == ".parquet":
        import polars

        polars.DataFrame(list(rows), schema=HEAD, orient="row", infer_schema_length=None).write_parquet(path)
        return
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([HEAD, *rows])
            return
        for row in rows:
            cells = [None if isinstance(c, float) and math.isnan(c) else c for c in row]
            file.write(json.dumps(dict(zip(HEAD, cells, strict=True))) + "\n")

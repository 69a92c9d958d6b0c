"""Statistics from what `Statistic.describe` says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.groups import Grouped
from anechoic.streaming.kmeans import OnlineKMeans
from anechoic.streaming.moments import LinearRegression, Moments
from anechoic.streaming.statistic import Statistic
from anechoic.streaming.sums import Count, Histogram, Mean, Sum
from anechoic.streaming.window import Decayed, Over, Running, SlidingWindow

_OVER: dict[str, type[Over]] = {one.__name__: one for one in (Running, SlidingWindow, Decayed)}


def _k_means(
    bound: float, centre: list[float], initial: list[list[float]], column: str | None
) -> OnlineKMeans:
    """`initial` is described inside the unit ball."""
    made = OnlineKMeans(len(initial), bound, len(centre), centre, column=column)
    return made.beginning_at(initial)


def _moments(bound: float, centre: list[float], column: str | None) -> Moments:
    return Moments(bound, len(centre), centre, column)


def _grouped(of: Mapping[str, Any], column: str, groups: list[Any]) -> Grouped:
    return Grouped(statistic_of(of), column, groups)


_KINDS: dict[str, Callable[..., Statistic]] = {
    "count": Count,
    "sum": Sum,
    "mean": Mean,
    "histogram": Histogram,
    "distribution": Distribution,
    "quantiles": Quantiles,
    "moments": _moments,
    "linear regression": LinearRegression,
    "k-means": _k_means,
    "by group": _grouped,
}


def statistic_of(described: Mapping[str, Any]) -> Statistic:
    """The statistic that describes itself so, before it learned anything.

    Raises:
        KeyError, TypeError, ValueError: for a description that is none of this library's statistics.
    """
    arguments = dict(described)
    return _KINDS[arguments.pop("kind")](**arguments)


def over_of(described: tuple[str, Mapping[str, Any]]) -> Over:
    """The sums over steps with a name and settings.

    Raises:
        KeyError, TypeError, ValueError: for others.
    """
    name, settings = described
    return _OVER[name](**settings)

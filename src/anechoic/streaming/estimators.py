"""Estimators by name: a statistic, with the promise under which it is released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from anechoic.streaming.distribution import DistributionOf, QuantilesOf
from anechoic.streaming.estimator import Estimator
from anechoic.streaming.groups import GroupedOf
from anechoic.streaming.kmeans import KMeansOf
from anechoic.streaming.moments import LinearRegressionOf, MomentsOf
from anechoic.streaming.statistic import Statistic, checked_statistics
from anechoic.streaming.sums import CountOf, HistogramOf, MeanOf, SumOf


class Count(Estimator):
    """How many records, or records of units; see `Estimator` for the other arguments."""

    def __init__(self, **promise: Any) -> None:
        super().__init__({"count": CountOf()}, **promise)


class Sum(Estimator):
    """Sum of vectors, each clipped to 2-norm `bound`; see `SumOf` and `Estimator`."""

    def __init__(self, *, bound: float, dimension: int = 1, **promise: Any) -> None:
        super().__init__({"sum": SumOf(bound, dimension)}, **promise)


class Mean(Estimator):
    """Mean of numbers clipped to [low, high]; see `MeanOf` and `Estimator`."""

    def __init__(self, *, low: float, high: float, **promise: Any) -> None:
        super().__init__({"mean": MeanOf(low, high)}, **promise)


class Histogram(Estimator):
    """Records of each category, which are given in advance; see `HistogramOf` and `Estimator`."""

    def __init__(self, categories: Sequence[Any], **promise: Any) -> None:
        super().__init__({"histogram": HistogramOf(categories)}, **promise)


class Distribution(Estimator):
    """How many records lie below each edge; see `DistributionOf` and `Estimator`."""

    def __init__(self, edges: ArrayLike, *, noise: str = "auto", **promise: Any) -> None:
        super().__init__({"distribution": DistributionOf(edges, noise=noise)}, **promise)


class Quantiles(Estimator):
    """Quantiles of numbers, from their distribution over `edges`; see `QuantilesOf` and `Estimator`."""

    def __init__(
        self,
        edges: ArrayLike,
        probabilities: Sequence[float] = (0.25, 0.5, 0.75),
        *,
        noise: str = "auto",
        **promise: Any,
    ) -> None:
        super().__init__({"quantiles": QuantilesOf(edges, probabilities, noise=noise)}, **promise)


class Moments(Estimator):
    """Mean and covariance of vectors clipped to `bound` around `centre`; see `MomentsOf` and `Estimator`."""

    def __init__(self, *, bound: float, dimension: int = 1, centre: Any = None, **promise: Any) -> None:
        super().__init__({"moments": MomentsOf(bound, dimension, centre)}, **promise)


class LinearRegression(Estimator):
    """Coefficients of a linear model, ridge-stabilised; see `LinearRegressionOf` and `Estimator`."""

    def __init__(self, features: int, *, bound: float, target_bound: float, **promise: Any) -> None:
        super().__init__({"coefficients": LinearRegressionOf(features, bound, target_bound)}, **promise)


class OnlineKMeans(Estimator):
    """Centres of k clusters, in epochs that double; see `KMeansOf` and `Estimator`."""

    def __init__(
        self,
        k: int,
        *,
        bound: float,
        dimension: int,
        centre: ArrayLike | None = None,
        initial: ArrayLike | None = None,
        **promise: Any,
    ) -> None:
        super().__init__({"centres": KMeansOf(k, bound, dimension, centre, initial)}, **promise)


class Dashboard(Estimator):
    """Several statistics of one stream in one release, under one sensitivity.

    The vectors of all statistics are concatenated with weights, so that one record has norm at most 1. Each
    of K statistics with equal weights then has sqrt(K) times the standard error that it would have alone;
    splitting epsilon would cost nearly K times.

    Args:
        statistics: by name, as `delays=MeanOf(-60, 360, column="dep_delay")`.
        by: (column, groups), to release each of them by groups that are given in advance, at the noise of
            one: see `GroupedOf`.
        promise: see `Estimator`.

    Example:
        >>> from anechoic import streaming
        >>> carriers = streaming.HistogramOf(["AA", "UA"], "carrier")
        >>> statistics = dict(flights=streaming.CountOf("carrier"), carriers=carriers)
        >>> board = streaming.Dashboard(statistics, epsilon=1.0, horizon=24)
        >>> board.update({"carrier": ["AA", "UA", "AA"]})
        True
        >>> board.release()["carriers"].value.shape
        (2,)
    """

    def __init__(
        self, statistics: dict[str, Statistic], *, by: tuple[str, Sequence[Any]] | None = None, **promise: Any
    ) -> None:
        checked = checked_statistics(statistics)
        if by is not None:
            checked = {name: GroupedOf(one, *by) for name, one in checked.items()}
        super().__init__(checked, **promise)

"""For one version: `Count(epsilon=…)`, which is `Stream(Count(), epsilon=…)`, with a warning."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.kmeans import OnlineKMeans
from anechoic.streaming.moments import LinearRegression, Moments
from anechoic.streaming.statistic import Statistic
from anechoic.streaming.stream import Stream
from anechoic.streaming.sums import Count, Histogram, Mean, Sum

#: What a stream promises; no statistic has an argument of one of these names.
PROMISE = frozenset(inspect.signature(Stream).parameters) - {"statistics", "by"}
SHORT = (Count, Sum, Mean, Histogram, Distribution, Quantiles, Moments, LinearRegression, OnlineKMeans)


def _made(cls: Any, *arguments: Any, **options: Any) -> Any:
    statistic: Statistic = object.__new__(cls)
    promise = {name: options.pop(name) for name in PROMISE & options.keys()}
    if not promise or cls not in SHORT:
        return statistic
    name = cls.__name__
    given = ", ".join(sorted(promise))
    message = f"{name}(…) with {given} is Stream({name}(…), …) now: the short form goes in 0.2."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    cls.__init__(statistic, *arguments, **options)
    return Stream(statistic, **promise)


for _kind in SHORT:
    _kind.__new__ = _made  # type: ignore[method-assign]

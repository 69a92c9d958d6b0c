"""Statistics of a live stream, released step after step with correlated noise, each step once.

    flights = streaming.Count(epsilon=1.0, delta=1e-6, horizon=8760, state="flights.db")
    flights.update(batch)          # adds to the open step; no noise
    release = flights.release()    # publishes: estimate, standard error, interval, epsilon so far

Estimators of one statistic: `Count`, `Sum`, `Mean`, `Histogram`, `Distribution`, `Quantiles`,
`Moments`, `LinearRegression`, `OnlineKMeans`. `Dashboard` releases several of one stream together.
"""

from anechoic.streaming.distribution import DistributionOf, QuantilesOf
from anechoic.streaming.estimator import Estimator
from anechoic.streaming.estimators import (
    Count,
    Dashboard,
    Distribution,
    Histogram,
    LinearRegression,
    Mean,
    Moments,
    OnlineKMeans,
    Quantiles,
    Sum,
)
from anechoic.streaming.groups import GroupedOf
from anechoic.streaming.ingest import Partial
from anechoic.streaming.kmeans import KMeansOf
from anechoic.streaming.mechanisms import planned_mechanism
from anechoic.streaming.moments import LinearRegressionOf, MomentsOf
from anechoic.streaming.page import write_page
from anechoic.streaming.reading import read_releases
from anechoic.streaming.release import Estimate, Release
from anechoic.streaming.sentences import statement
from anechoic.streaming.statistic import Records, Statistic
from anechoic.streaming.sums import CountOf, HistogramOf, MeanOf, SumOf
from anechoic.streaming.window import Decayed, Over, Running, SlidingWindow

__all__ = [
    "Count",
    "CountOf",
    "Dashboard",
    "Decayed",
    "Distribution",
    "DistributionOf",
    "Estimate",
    "Estimator",
    "GroupedOf",
    "Histogram",
    "HistogramOf",
    "KMeansOf",
    "LinearRegression",
    "LinearRegressionOf",
    "Mean",
    "MeanOf",
    "Moments",
    "MomentsOf",
    "OnlineKMeans",
    "Over",
    "Partial",
    "Quantiles",
    "QuantilesOf",
    "Records",
    "Release",
    "Running",
    "SlidingWindow",
    "Statistic",
    "Sum",
    "SumOf",
    "planned_mechanism",
    "read_releases",
    "statement",
    "write_page",
]

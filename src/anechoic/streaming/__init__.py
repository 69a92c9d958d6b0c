"""Statistics of a live stream, released step after step with correlated noise, each step once.

    flights = streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-6, horizon=8760, state="flights.db")
    flights.update(batch)          # adds to the open step; no noise
    release = flights.release()    # publishes: estimate, standard error, interval, epsilon so far

Statistics: `Count`, `Sum`, `Mean`, `Histogram`, `Distribution`, `Quantiles`. A stream releases one of them,
or several together: `Stream({"n": Count(), …}, …)`. `OpenHistogram` is a stream of categories that nobody
lists in advance.
"""

from anechoic.streaming.accumulator import Accumulator
from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.groups import Grouped
from anechoic.streaming.open_histogram import OpenHistogram
from anechoic.streaming.reading import read_releases
from anechoic.streaming.sentences import statement
from anechoic.streaming.stream import Stream
from anechoic.streaming.sums import Count, Histogram, Mean, Sum
from anechoic.streaming.window import Decayed, Running, SlidingWindow

__all__ = [
    "Accumulator",
    "Count",
    "Decayed",
    "Distribution",
    "Grouped",
    "Histogram",
    "Mean",
    "OpenHistogram",
    "Quantiles",
    "Running",
    "SlidingWindow",
    "Stream",
    "Sum",
    "read_releases",
    "statement",
]

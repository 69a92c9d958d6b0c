"""Statistics of a live stream, released step after step with correlated noise, each step once.

    flights = streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-6, horizon=8760, state="flights.db")
    flights.update(batch)          # adds to the open step; no noise
    release = flights.release()    # publishes: estimate, standard error, interval

Statistics: `Count`, `Sum`, `Mean`, `Histogram`, `Distribution`, `Quantiles`. A stream releases one of them,
or several together: `Stream({"n": Count(), …}, …)`. `PartitionSelectionHistogram`
is a histogram of categories that nobody lists in advance (partition selection).
"""

from anechoic.streaming.accumulator import Accumulator
from anechoic.streaming.clock import Clock, Running, SlidingWindow
from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.groups import Grouped
from anechoic.streaming.partition_selection import PartitionSelectionHistogram
from anechoic.streaming.release_reader import read_releases
from anechoic.streaming.sentences import statement
from anechoic.streaming.stream import Stream
from anechoic.streaming.sums import Count, Histogram, Mean, Sum

__all__ = [
    "Accumulator",
    "Clock",
    "Count",
    "Distribution",
    "Grouped",
    "Histogram",
    "Mean",
    "PartitionSelectionHistogram",
    "Quantiles",
    "Running",
    "SlidingWindow",
    "Stream",
    "Sum",
    "read_releases",
    "statement",
]

"""The embedded data set: every flight that left New York City in 2013 and arrived.

Source, licence and fields: `PROVENANCE.md` beside this file.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The schedule of the three airports: the first departure hour, and how many hours follow it.
# Public facts, like the scale of distance: no feature is centred or scaled by a private statistic.
_FIRST_HOUR = 5
_HOURS = 19
_CARRIERS = 16
_ORIGINS = 3
_WEEKDAYS = 7
_MILES_PER_UNIT = 1000.0
_LATE_MINUTES = 15


def flights() -> dict[str, NDArray[Any]]:
    """The 327,346 flights, in order of scheduled departure.

    Returns:
        A new dictionary of arrays, one entry a flight: `month`, `day`, `hour`, `minute`,
        `weekday` (scheduled departure; Monday is 0), `carrier`, `origin`, `dest` (indices into
        `carrier_names`, `origin_names`, `dest_names`), `tail` (index of the aircraft, the unit
        for user-level privacy), `distance` (miles), `arr_delay` (minutes; negative is early).

    Example:
        >>> data = flights()
        >>> len(data["arr_delay"]), [str(name) for name in data["origin_names"]]
        (327346, ['EWR', 'JFK', 'LGA'])
    """
    source = resources.files("anechoic.demo").joinpath("flights.npz")
    with source.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def flights_design() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features and target of the question "will this flight arrive more than 15 minutes late?".

    All features are known before departure, and in time order, so that one pass over the rows
    is the stream an analyst would see: one-hot scheduled hour from 5 to 23, carrier, origin and
    weekday from Monday on, and the distance in thousands of miles.

    Returns:
        Features of shape (327346, 46), and the target of shape (327346,): 1 where `arr_delay`
        is above 15 minutes, else 0. Both float32.

    Example:
        >>> features, target = flights_design()
        >>> features.shape, target.shape
        ((327346, 46), (327346,))
    """
    data = flights()
    blocks = (
        (data["hour"].astype(np.intp) - _FIRST_HOUR, _HOURS),
        (data["carrier"], _CARRIERS),
        (data["origin"], _ORIGINS),
        (data["weekday"], _WEEKDAYS),
    )
    rows = np.arange(len(data["hour"]))
    features = np.zeros((len(rows), sum(width for _, width in blocks) + 1), dtype=np.float32)
    start = 0
    for index, width in blocks:
        features[rows, start + index.astype(np.intp)] = 1.0
        start += width
    features[:, start] = data["distance"] / np.float32(_MILES_PER_UNIT)
    target = (data["arr_delay"] > _LATE_MINUTES).astype(np.float32)
    return features, target

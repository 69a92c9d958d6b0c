"""`anechoic demo --streaming`: the flights of 2013, hour by hour."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from anechoic.demo.flights import flights
from anechoic.streaming.clock import Clock, seconds_of, zone_of
from anechoic.streaming.distribution import Distribution
from anechoic.streaming.pending import Columns, PendingSteps
from anechoic.streaming.stream import Stream
from anechoic.streaming.sums import Count, Histogram
from anechoic.streaming.tables import write_releases

HOURS = 8760
ZONE = "America/New_York"
#: Minutes of delay that are told apart, chosen without looking at the flights.
EDGES = np.arange(-60.0, 361.0, 5.0)


def flights_by_hour() -> tuple[Columns, Clock]:
    """The 327,346 flights as records with a time, and the 8,760 hours of the year."""
    data = flights()
    parts = (data["month"], data["day"], data["hour"], data["minute"])
    texts = [f"2013-{m:02}-{d:02}T{h:02}:{i:02}" for m, d, h, i in zip(*parts, strict=True)]
    zone = zone_of(ZONE)
    start = float(seconds_of(["2013-01-01T00:00"], zone)[0])
    values = {
        "carrier": data["carrier_names"][data["carrier"]],
        "arr_delay": data["arr_delay"].astype(np.float64),
    }
    return Columns(seconds_of(texts, zone), None, values), Clock(start, 3600.0)


def streaming_demo(out: Path, *, epsilon: float = 1.0, hours: int = HOURS) -> Path:
    """Release count, carriers and delays of every hour so far; returns the table.

    Args:
        out: folder for `releases.csv`.
        epsilon: of all releases together, at delta 1e-6, for each flight.
        hours: how many of the year.
    """
    began = time.perf_counter()
    columns, clock = flights_by_hour()
    carriers = [str(name) for name in flights()["carrier_names"]]
    statistics = {
        "flights": Count("carrier"),
        "carriers": Histogram(carriers, "carrier"),
        "delays": Distribution(EDGES, "arr_delay"),
    }
    with Stream(statistics, epsilon=epsilon, delta=1e-6, horizon=hours, unit="flight") as stream:
        pending = PendingSteps(stream, clock)
        pending.add(columns)
        released = pending.release(hours)
        out.mkdir(parents=True, exist_ok=True)
        table = out / "releases.csv"
        write_releases(table, [*stream.releases()][-24:])
        last = stream.get()
        seconds = time.perf_counter() - began
        print(f"{released} hourly releases in {seconds:.1f} s")
        if last is not None:
            count = last["flights"]
            print(
                f"flights so far: {float(count.value):,.0f} ± {float(count.standard_error):.0f}"
                f" (truth {len(columns.seconds):,}); epsilon {last.epsilon:.3g} for all releases"
            )
    print(f"Saved: the last day in {table}")
    return table

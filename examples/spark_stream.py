"""Visits counted hour by hour from files that arrive, with Spark Structured Streaming.

Run it again and it goes on where it stopped, whenever it was killed. It needs Java 17 and
`pip install 'anechoic[spark]'`.

    python examples/spark_stream.py visits/
"""

import argparse
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from anechoic import streaming
from anechoic.engines.spark import StreamSink, releases

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=Path, help="for all files; made if it is not there")
folder = parser.parse_args().folder
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
settings = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()

if not (folder / "in").exists():  # six hours of visits, as a site would send them
    (folder / "in").mkdir(parents=True)
    begin = datetime(2026, 5, 24, tzinfo=UTC)
    for hour in range(6):
        lines = ["site,minutes,at"]
        for i in range(600):
            at = begin + timedelta(hours=hour, seconds=6 * i)
            lines.append(f"{['north', 'south', 'east'][i % 3]},{20 + i % 50},{at.isoformat()}")
        (folder / "in" / f"{hour}.csv").write_text("\n".join(lines))

board = streaming.Stream(
    {
        "visits": streaming.Count("site"),
        "sites": streaming.Histogram(["north", "south", "east"], "site"),
        "minutes": streaming.Mean(0, 120, "minutes"),
    },
    epsilon=1.0,
    horizon=8760,
    state=folder / "state.db",  # the key is in it: keep both on the driver, see docs/streaming.md
    setting={"start": "2026-05-24", "every": "1h"},
)
sink = StreamSink(board, time="at", start="2026-05-24", every="1h", delay="10min")
visits = spark.readStream.schema("site string, minutes double, at timestamp")
visits = visits.option("header", True).option("maxFilesPerTrigger", 2).csv(str(folder / "in"))
query = visits.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
query.trigger(availableNow=True).start().awaitTermination()
board.close()

releases(spark, folder / "state.db").select(
    "step", "time", "statistic", "label", "value", "standard_error"
).show(10)
spark.stop()

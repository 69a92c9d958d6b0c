"""A query on executors that are processes, which are killed in the middle of its batches.

python -m tests.slow.engines.spark_cluster FOLDER
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from anechoic.engines.spark import StreamSink
from anechoic.runs import digests
from tests.slow.engines.spark_jobs import CLOCK, DELAY, QUIET, UNITS, query, session, write_files
from tests.streaming.test_accumulator import all_of

#: What dies in the first batches, without units and with them, and when: among the records of the batch, when
#: its sums are made, or when they are sent.
DEATHS = {
    False: [("executor", "among records"), ("worker", "sums made"), ("executor", "sums sent")],
    True: [("worker", "among records"), ("executor", "sums made"), ("worker", "sums sent")],
}


class Dying:
    """The task of a sink; in each batch the first process that comes so far is killed."""

    def __init__(self, task, folder, deaths):
        self.task, self.folder, self.deaths, self.batch = task, folder, deaths, -1

    def step_of(self, micros):
        return self.task.step_of(micros)

    def before(self, now):
        self.batch += 1
        if self.batch >= len(self.deaths):
            return self.task.before(now)
        mark = str(self.folder / f"death {self.batch}")
        return killing(self.task.before(now), *self.deaths[self.batch], mark)


def killing(task, what, when, mark):
    def parent(number):
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])

    def die(here):
        if here != when:
            return
        number = os.getpid() if what == "worker" else parent(os.getppid())  # the daemon is between
        said = json.dumps([what, number, Path(f"/proc/{number}/cmdline").read_text().replace("\0", " ")])
        try:
            os.write(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY), said.encode())
        except FileExistsError:  # a later try
            return
        os.kill(number, signal.SIGKILL)
        time.sleep(60)  # nothing more is said, should this process be the last to notice

    def rows(batches):
        def some():
            for place, batch in enumerate(batches):
                if place == 2:
                    die("among records")
                yield batch

        for made in task(some()):
            die("sums made")
            yield made
        die("sums sent")

    return rows


def main():
    folder = Path(sys.argv[1])
    digests.new_salt = bytes  # all streams with one key have one noise
    more = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}
    more |= {"spark.executor.extraJavaOptions": QUIET, "spark.sql.execution.arrow.maxRecordsPerBatch": "7"}
    spark = session(**more)
    deaths = []
    for units in (False, True):
        place = folder / str(units)
        place.mkdir()
        write_files(place / "in")
        with all_of(state=place / "state", **(UNITS if units else {})) as stream:
            sink = StreamSink(stream, **CLOCK, delay=f"{DELAY}s", unit="who" if units else None)
            sink._task = Dying(sink._task, place, DEATHS[units])
            query(spark, place, sink, lambda frame: frame.repartition(3))
        deaths.append([json.loads(mark.read_text()) for mark in sorted(place.glob("death *"))])
    alive = [number for some in deaths for _, number, _ in some if Path(f"/proc/{number}").exists()]
    (folder / "report").write_text(json.dumps({"deaths": deaths, "alive": alive}))
    spark.stop()


if __name__ == "__main__":
    main()

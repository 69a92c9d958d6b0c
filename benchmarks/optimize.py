"""How long the optimisers take, and what they reach: python benchmarks/optimize.py [--json FILE] [--large].

Every row is run once to warm up and then `--repeat` times; seconds are the median. One thread gives steadier
figures: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy
import scipy

from anechoic import optimize, workloads
from anechoic.optimize import Optimized
from anechoic.participation import MinSep, Participation, Single

Row = tuple[str, int, str, Participation, str, Callable[[], Optimized]]


def banded(n: int, bands: int, schema: Participation = Single(), loss: str = "rms") -> Row:  # noqa: B008
    def run() -> Optimized:
        return optimize.banded_toeplitz(workloads.prefix_sum(n), bands=bands, participation=schema, loss=loss)

    return "banded_toeplitz", n, f"{bands} bands", schema, loss, run


def blt(n: int, buffers: int, schema: Participation = Single(), loss: str = "max") -> Row:  # noqa: B008
    def run() -> Optimized:
        return optimize.blt(workloads.prefix_sum(n), buffers=buffers, participation=schema, loss=loss)

    return "blt", n, f"{buffers} buffers", schema, loss, run


ROWS = [
    banded(1024, 32),
    banded(2048, 64),
    banded(10**4, 100),
    banded(10**5, 64),
    banded(10**5, 100),
    banded(8192, 8192),
    banded(2052, 342, MinSep(342, 6)),
    banded(2000, 2000, MinSep(400, 5), "max"),
    blt(1000, 3),
    blt(10**4, 4),
    blt(10**6, 5),
    blt(10**6, 6),
    blt(10**9, 6),
    blt(2000, 4, MinSep(400, 5)),
    blt(2000, 2, MinSep(100, 20), "rms"),
    blt(10**5, 4, MinSep(10**4, 10)),
    blt(10**9, 4, MinSep(10**8, 10)),
    blt(10**6, 3, MinSep(100)),
]
LARGE = [banded(10**6, 64), banded(10**7, 64), blt(10**12, 10)]


def describe(schema: Participation) -> str:
    return f"b={schema.separation} k={schema.max_participations}" if isinstance(schema, MinSep) else "single"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="timed runs of each row (default: 3)"
    )
    parser.add_argument("--large", action="store_true", help="add n = 10^6, 10^7 and 10^12")
    options = parser.parse_args()
    print(
        f"{'class':<16}{'n':>14}  {'size':<11} {'schema':<19} {'kind':<4}"
        f" {'loss':>14} {'evaluations':>11} {'s':>9}"
    )
    results = []
    for name, n, size, schema, kind, run in ROWS + (LARGE if options.large else []):
        found = run()
        seconds = statistics.median(run().seconds for _ in range(max(1, options.repeat)))
        words = describe(schema)
        print(
            f"{name:<16}{n:>14}  {size:<11} {words:<19} {kind:<4}"
            f" {found.loss:>14.6f} {found.evaluations:>11} {seconds:>9.4f}",
            flush=True,
        )
        results.append(
            {
                "class": name,
                "n": n,
                "size": size,
                "participation": words,
                "kind": kind,
                "loss": found.loss,
                "lower_bound": found.lower_bound,
                "evaluations": found.evaluations,
                "seconds": seconds,
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")
    if options.json:
        versions = {
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
        }
        record = {"machine": platform.machine(), "versions": versions, "peak_mib": peak, "rows": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

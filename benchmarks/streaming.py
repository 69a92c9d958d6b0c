"""Streaming: errors with and without horizon, against a binary tree and a peer; speed, beside plain tools.

python benchmarks/streaming.py [--quick] [--only horizons tree speed commits keys command peer]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anechoic as an
from anechoic import streaming
from anechoic.streaming.mechanisms import planned_mechanism

TIMES = (1, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)


#: What --json writes.
FOUND: dict[str, float] = {}


def finite_loss(n: int) -> float:
    """Max loss of what is planned for n steps: what knowing the horizon is worth."""
    made = planned_mechanism(
        over=streaming.Running(),
        horizon=n,
        participation=an.participation.Single(),
        epsilon=1.0,
        delta=1e-6,
        dimension=1,
    )
    return made.sensitivity.value * float(an.error(an.workloads.prefix_sum(n), made.strategy).max)


def horizon_free() -> list[float]:
    strategy = an.strategies.endless.rational(10, accurate_to=10**6)
    return [strategy.limiting_norm * an.error(an.workloads.prefix_sum(t), strategy.at(t)).last for t in TIMES]


def doubling() -> list[float]:
    """Restarts at 1, 2, 4, …: one participation touches one block, and errors of finished blocks add up."""
    found = []
    for t in TIMES:
        squares = 0.0
        for k in range((t + 1).bit_length()):
            steps = 2**k
            if steps > t:
                break
            best = an.optimize.blt(an.workloads.prefix_sum(steps), buffers=5, loss="max")
            done = min(steps, t - steps + 1)
            error = an.error(an.workloads.prefix_sum(done), best.strategy.truncate(done)).last
            squares += (best.strategy.largest_column_norm() * error) ** 2
        found.append(math.sqrt(squares))
    return found


def print_horizons() -> None:
    print("Error of a running sum at step t, times the sensitivity (rho-zCDP: divide by sqrt(2 rho)).\n")
    rows = {
        "horizon t known": [finite_loss(t) for t in TIMES],
        "without horizon": horizon_free(),
        "doubling restarts": doubling(),
    }
    print("| |" + "|".join(f"{t:g}" for t in TIMES) + "|")
    print("|---|" + "---|" * len(TIMES))
    for name, values in rows.items():
        print(f"| {name} |" + "|".join(f"{v:.3g}" for v in values) + "|")


def print_tree() -> None:
    """Max error beside a binary tree whose prefix sums add up its nodes, as in most libraries."""
    print("\n| n | binary tree | Honaker | planned | ratio to the binary tree | to Honaker |")
    print("|---|---|---|---|---|---|")
    for n in (8760, 10**6):
        levels = n.bit_length()  # a record is in one node a level, a prefix the sum of at most as many
        binary = math.sqrt(levels) * math.sqrt(max(t.bit_count() for t in range(1, n + 1)))
        tree = an.strategies.Tree(n)
        honaker = an.loss(an.workloads.prefix_sum(n), tree, an.participation.Single(), "max")
        ours = finite_loss(n)
        ratios = f"{binary / ours:.2f} | {honaker / ours:.2f}"
        print(f"| {n:,} | {binary:.2f} | {honaker:.2f} | {ours:.2f} | {ratios} |")
        FOUND[f"error of a binary tree over ours, n={n}"] = binary / ours


def seconds_of(count: int, stream: streaming.Stream, batch: object, group: int) -> float:
    """Seconds of a release; the first group is not counted: it plans what all have in common."""
    stream.steps([batch] * group)
    began = time.perf_counter()
    for _ in range(0, count, group):
        stream.steps([batch] * group)
    return (time.perf_counter() - began) / count


def seconds_of_noise(mechanism: an.Mechanism, dimension: int, rows: int, together: int) -> float:
    """Seconds of a row of its noise, made so many at a time."""
    stream = mechanism.stream(dimension)
    _, state = stream.several(stream.init(), 2)
    began = time.perf_counter()
    for _ in range(0, rows, together):
        _, state = stream.next(state) if together == 1 else stream.several(state, together)
    return (time.perf_counter() - began) / rows


def print_speed(quick: bool) -> None:
    scale = 1 if quick else 10
    found: dict[str, float] = {}
    promise: dict[str, Any] = {"epsilon": 1.0, "horizon": 10**6}
    wide: dict[str, Any] = {"epsilon": 1.0, "horizon": 10**4}
    with tempfile.TemporaryDirectory() as folder:

        def count(name: str = "") -> streaming.Stream:
            return streaming.Stream(streaming.Count(), **promise, state=Path(folder) / name if name else None)

        scalar = count().mechanism
        found["row of noise, one by one"] = seconds_of_noise(scalar, 1, 500 * scale, 1)
        found["row of noise, 500 at once"] = seconds_of_noise(scalar, 1, 2000 * scale, 500)
        found["count, in memory, groups of 500"] = seconds_of(2000 * scale, count(), 3, 500)
        found["count, in memory, one by one"] = seconds_of(500 * scale, count(), 3, 1)
        found["count, state file, groups of 500"] = seconds_of(1000 * scale, count("a"), 3, 500)
        found["count, state file, one by one"] = seconds_of(100 * scale, count("b"), 3, 1)
        histogram = streaming.Stream(streaming.Histogram(range(10**5)), **wide)
        found["row of noise of 1e5 entries"] = seconds_of_noise(histogram.mechanism, 10**5, 10 * scale, 1)
        found["histogram of 1e5 categories, in memory"] = seconds_of(
            10 * scale, histogram, np.arange(1000), 5
        )
    print("\n| releases | seconds each | a second | a minute |")
    print("|---|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {each:.2e} | {1 / each:,.0f} | {60 / each:,.0f} |")
        FOUND[f"seconds of a release: {name}"] = each


def print_commits(quick: bool) -> None:
    """Commits of a stream beside those of a plain SQLite writer that waits for the disk as often, by turns.

    Seconds of the processor: the disk's own, which both wait for once a commit, are its business.
    """
    count, rounds = (50, 3) if quick else (200, 5)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain = sqlite3.connect(Path(folder) / "plain", isolation_level=None)
        plain.execute("PRAGMA journal_mode=WAL")
        plain.execute("PRAGMA synchronous=FULL")
        plain.execute("CREATE TABLE sums (name TEXT PRIMARY KEY, total INTEGER)")
        promise: dict[str, Any] = {"epsilon": 1.0, "horizon": 10**6, "state": Path(folder) / "stream"}
        with streaming.Stream(streaming.Count(), **promise) as stream:

            def write(name: str) -> None:
                plain.execute("BEGIN IMMEDIATE")
                plain.execute("INSERT INTO sums VALUES (?, 3)", (name,))
                plain.execute("COMMIT")

            ways: dict[str, Callable[[str], Any]] = {
                "plain SQLite, one row a commit": write,
                "stream, add_sums with its batch id": lambda name: stream.add_sums(
                    streaming.Accumulator(stream).add(3), batch_id=name
                ),
                "stream, update and release": lambda name: stream.steps([3], batch_ids=[name]),
            }
            for number in range(rounds):
                for way, run in ways.items():
                    began = time.process_time()
                    for i in range(count):
                        run(f"{way} {number} {i}")
                    seconds.setdefault(way, []).append((time.process_time() - began) / count)
                began = time.process_time()
                stream.steps([3] * 64 * 4)
                seconds.setdefault("stream, 256 steps in a commit, each step", []).append(
                    (time.process_time() - began) / 256
                )
        plain.close()
    print("\n| commits that are on disk | seconds of the processor | times plain SQLite | a second |")
    print("|---|---|---|---|")
    least = float(np.median(seconds["plain SQLite, one row a commit"]))
    for way, some in seconds.items():
        each = float(np.median(some))
        print(f"| {way} | {each:.2e} | {each / least:.1f} | {1 / each:,.0f} |")
        FOUND[f"processor seconds of a commit: {way}"] = each


KEYS, KEYED_STEPS, KEYED_RECORDS = 10**4, 1000, 10**4


def print_keys(quick: bool) -> None:
    """A state file of many keys, step by step: the first and the last tenth of the steps, memory and disk."""
    steps = KEYED_STEPS // (10 if quick else 1)
    names = np.array([f"key {i}" for i in range(KEYS)])
    rng = np.random.default_rng(0)
    print(f"\n{KEYS:,} keys, {KEYED_RECORDS:,} records a step, {steps:,} steps, seconds of the processor:\n")
    print("| | a step of the first tenth | of the last | MB more in memory | MB of disk |")
    print("|---|---|---|---|---|")
    kinds: dict[str, dict[str, Any]] = {
        "counts": {"statistics": streaming.Histogram(names.tolist(), "key")},
        "means": {"statistics": streaming.Mean(0, 1, "x"), "by": ("key", names.tolist())},
    }
    for kind, what in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            stream = streaming.Stream(**what, epsilon=1.0, horizon=steps, state=Path(folder) / "s")
            seconds, before = [], resident()
            for _ in range(steps):
                batch = {"key": names[rng.integers(KEYS, size=KEYED_RECORDS)], "x": rng.random(KEYED_RECORDS)}
                began = time.process_time()
                stream.update(batch)
                stream.release()
                seconds.append(time.process_time() - began)
            more, tenth = resident() - before, steps // 10
            disk = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
            first, last = np.mean(seconds[1 : 1 + tenth]), np.mean(seconds[-tenth:])
            stream.close()
        print(f"| {kind} | {first:.3f} | {last:.3f} | {more:.0f} | {disk:.0f} |")
        FOUND[f"processor seconds of a step of {KEYS} {kind}"] = float(np.mean(seconds))
        FOUND[f"last steps over first, {kind}"] = float(last / first)
        FOUND[f"MB of disk, {kind}"] = disk


def resident() -> float:
    """Memory of this process, in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return float(found[1]) / 1024 if found else math.nan


SITES = ["north", "south", "east", "west"]


def print_command(quick: bool) -> None:
    """`anechoic stream` of a file beside Polars' own group-by, each a process of its own."""
    import polars as pl

    rows, hours = 10 ** (6 if quick else 7), 24 * 30
    choice = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file, begin = Path(folder) / "records.parquet", np.datetime64("2024-01-01", "us")
        when = begin + np.sort(choice.integers(0, hours * 3600 * 10**6, rows))
        sites = pl.Series(choice.integers(0, 4, rows, np.uint8)).replace_strict(range(4), SITES)
        delay = choice.normal(5, 40, rows)
        pl.DataFrame({"time": when, "site": sites, "delay": delay}).write_parquet(file)
        plain = (
            "import polars as pl; delay = pl.col('delay').clip(-60, 360); "
            "hour = pl.col('time').dt.truncate('1h'); "
            f"pl.scan_parquet({str(file)!r}).group_by(hour, 'site').agg(pl.len(), delay.sum())"
            ".collect(engine='streaming').sort('time', 'site')"
            f".write_csv({str(Path(folder) / 'plain.csv')!r})"
        )
        ours = ["-m", "anechoic", "stream", "--input", str(file), "--time", "time", "--every", "1h"]
        ours += ["--start", "2024-01-01", "--timezone", "UTC", "--count", "--mean", "delay:-60:360"]
        ours += ["--histogram", f"site:{','.join(SITES)}", "--epsilon", "1", "--horizon", str(hours)]
        ours += ["--state", f"{folder}/state", "--out", f"{folder}/out.csv"]
        seconds = {}
        for way, told in (("Polars", ["-c", plain]), ("anechoic stream", ours)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *told], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds[way] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times = seconds["anechoic stream"] / seconds["Polars"]
    print(f"\n{rows:,} records of {hours} hours: Polars {seconds['Polars']:.1f} s of the processor,")
    print(f"anechoic stream {seconds['anechoic stream']:.1f} s, {times:.1f} times as much.")
    FOUND[f"anechoic stream over Polars, {rows} records"] = times


def tree_sums(nodes: np.ndarray, steps: int) -> np.ndarray:
    """Prefix sums of the leaves of a binary tree in breadth-first order, each of as few nodes as can be."""
    depth = (steps - 1).bit_length()
    found = np.zeros(steps)
    for t in range(1, steps + 1):
        done = 0
        for level in range(depth + 1):
            size = 2 ** (depth - level)
            if t & size:
                found[t - 1] += nodes[2**level - 1 + done // size]
                done += size
    return found


def print_peer(quick: bool) -> None:
    """The binary tree of OpenDP beside a planned count, at equal rho: measured errors, and seconds.

    OpenDP has all steps at once, as a tree over an array: it has no continual release.
    """
    if importlib.util.find_spec("opendp") is None:
        print("\nOpenDP is not installed: no peer to compare with.")
        return
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")
    n, rho, runs = 8760, 0.5, 4 if quick else 20
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    tree = dp.t.make_b_ary_tree(*space, leaf_count=n, branching_factor=2)
    stated = tree.map(1)  # that a leaf changes by 1
    measure = tree >> dp.m.then_gaussian(stated / math.sqrt(2 * rho))
    best = planned_mechanism(
        over=streaming.Running(),
        horizon=n,
        participation=an.participation.Single(),
        epsilon=1.0,
        delta=1e-6,
        dimension=1,
    )
    sampling = an.sampling.External(an.participation.Single(), 1, steps=n)
    mechanism = an.calibrate(
        best.strategy,
        sampling=sampling,
        noise_multiplier=1 / math.sqrt(2 * rho),
        delta=1e-6,
        grid_bits=best.grid_bits,
    )
    truth, errors, seconds = np.arange(1.0, n + 1), np.zeros(2), np.zeros(2)
    for _ in range(runs):
        stream = streaming.Stream(streaming.Count(), mechanism=mechanism)
        began = time.perf_counter()
        ours = np.array([release.estimate for release in stream.steps([1] * n)])
        seconds[0] += time.perf_counter() - began
        began = time.perf_counter()
        theirs = tree_sums(np.array(measure([1] * n), dtype=float), n)
        seconds[1] += time.perf_counter() - began
        errors += [np.square(ours - truth).mean(), np.square(theirs - truth).mean()]
    rms, each = np.sqrt(errors / runs), seconds / runs / n
    version = importlib.metadata.version("opendp")
    at_best = rms[1] * math.sqrt((n - 1).bit_length() + 1) / stated
    print(f"\nBeside the binary tree of OpenDP {version}, n = {n:,}, rho = {rho}, {runs} runs:\n")
    print("| | RMS error of a running count | seconds of a release |")
    print("|---|---|---|")
    print(f"| planned count | {rms[0]:.2f} | {each[0]:.1e} |")
    print(f"| OpenDP | {rms[1]:.2f} | {each[1]:.1e} |")
    print(f"| ratio | {rms[1] / rms[0]:.2f} | {each[1] / each[0]:.2f} |")
    print(
        f"\nOpenDP states that a leaf changes its tree by {stated}, and it is the root of"
        f" {(n - 1).bit_length() + 1}: by that the ratio of errors is {at_best / rms[0]:.2f}."
    )
    FOUND["error of OpenDP's tree over ours"] = float(rms[1] / rms[0])
    FOUND["error of OpenDP's tree over ours, by its true sensitivity"] = float(at_best / rms[0])
    FOUND["seconds of OpenDP's tree over ours"] = float(each[1] / each[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parts: dict[str, Callable[[bool], None]] = {
        "horizons": lambda _: print_horizons(),
        "tree": lambda _: print_tree(),
        "speed": print_speed,
        "commits": print_commits,
        "keys": print_keys,
        "command": print_command,
        "peer": print_peer,
    }
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), metavar="PART")
    options = parser.parse_args()
    for part in options.only:
        parts[part](options.quick)
    if options.json:
        options.json.write_text(json.dumps(FOUND, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

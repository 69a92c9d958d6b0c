"""Our optimisers beside JAX Privacy's, row by row in one run: seconds, the loss reached, and their ratios.

    make bench-peer                                    # sets up .venv-peer and runs this
    python benchmarks/optimize.py [--peer PYTHON] [--json FILE] [--plot FILE] [--repeat N] [--only TEXT]

Losses of both sides are computed by the same code from the strategy that was returned. Ours is run once to
warm up and then `--repeat` times (median); theirs once, since each of its calls compiles anew. A row of
theirs that takes longer than `--limit` seconds is stopped, and its ratio is then a lower bound.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import anechoic as an
from anechoic import optimize, workloads
from anechoic.optimize.result import Optimized
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.participation.base import Participation
from anechoic.strategies import BLT, BandedToeplitz, Dense
from anechoic.strategies.base import Strategy

HERE = Path(__file__).parent
WORKER = HERE / "peers" / "jax_privacy_worker.py"


@dataclass(frozen=True)
class Row:
    """One comparison: what is optimised, by our call, and what the peer is asked for (None: nothing)."""

    name: str
    n: int
    size: str
    schema: Participation
    kind: str
    run: Callable[[], Optimized]
    call: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    target: float | None = None

    @property
    def words(self) -> str:
        match self.schema:
            case MinSep(separation=b, max_participations=k):
                return f"b={b} k={k}"
            case Cyclic(period=b):
                return f"cyclic b={b}"
        return "single"


def banded_toeplitz(n: int, bands: int, target: float | None = None) -> Row:
    return Row(
        "banded_toeplitz", n, f"{bands} bands", Single(), "rms",
        lambda: optimize.banded_toeplitz(workloads.prefix_sum(n), bands=bands),
        "banded_toeplitz", {"n": n, "bands": bands}, target,
    )  # fmt: skip


def banded(n: int, bands: int, target: float | None = None) -> Row:
    return Row(
        "banded", n, f"{bands} bands", Single(), "rms",
        lambda: optimize.banded(workloads.prefix_sum(n), bands=bands),
        "banded", {"n": n, "bands": bands}, target,
    )  # fmt: skip


def blt(n: int, schema: Participation | None = None, kind: str = "max", target: float | None = None) -> Row:
    separation, count = (
        (schema.separation, schema.max_participations) if isinstance(schema, MinSep) else (1, 1)
    )
    schema = Single() if schema is None else schema
    return Row(
        "blt", n, "own rule", schema, kind,
        lambda: optimize.blt(workloads.prefix_sum(n), participation=schema, loss=kind),
        "blt", {"n": n, "separation": separation, "count": count, "kind": kind}, target,
    )  # fmt: skip


def dense(n: int, epochs: int = 1, target: float | None = None) -> Row:
    schema = Single() if epochs == 1 else Cyclic(n // epochs)
    return Row(
        "dense", n, "", schema, "rms",
        lambda: optimize.dense(workloads.prefix_sum(n), participation=schema, gap=1e-6),
        "dense", {"n": n, "epochs": epochs}, target,
    )  # fmt: skip


ROWS = [
    banded_toeplitz(1024, 32),
    banded_toeplitz(2048, 64),
    banded_toeplitz(10**4, 100, 150),
    banded_toeplitz(10**5, 64, 150),
    blt(10**3),
    blt(10**4),
    blt(10**6, target=100),
    blt(2000, MinSep(400, 5), target=100),
    blt(2000, MinSep(100, 20), "rms"),
    blt(10**5, MinSep(10**4, 10)),
    dense(512),
    dense(1024, target=20),
    dense(256, 4),
    banded(1024, 16),
]


class Peer:
    """The other library, in a process of its own that is started anew after a row that took too long."""

    def __init__(self, python: Path, limit: float) -> None:
        self.python, self.limit = python, limit
        self._process: subprocess.Popen[str] | None = None

    def version(self) -> str:
        code = "import importlib.metadata as m; print(m.version('jax-privacy'), m.version('jax'))"
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return "jax-privacy {}, jax {}".format(*done.stdout.split())

    def run(self, row: Row, folder: Path) -> tuple[float, Strategy | None]:
        """Seconds and the strategy, or the limit and None."""
        if self._process is None:
            command = [str(self.python), "-W", "ignore", str(WORKER)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        file = folder / "found.npz"
        task = {"call": row.call, "arguments": row.arguments, "file": str(file)}
        print(json.dumps(task), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], self.limit)
        if not ready:
            self.stop()
            return self.limit, None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError(f"{self.python} stopped at {task}: run {WORKER.name} by hand to see why")
        return json.loads(line)["seconds"], strategy_of(row.n, dict(np.load(file)))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def strategy_of(n: int, arrays: dict[str, np.ndarray]) -> Strategy:
    """The peer's answer as a strategy of ours."""
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    if "coefficients" in arrays:
        return BandedToeplitz(n, arrays["coefficients"])
    if "scale" in arrays:
        return BLT(n, arrays["scale"], arrays["decay"])
    matrix = np.tril(arrays["matrix"])
    return Dense(np.sign(matrix.diagonal())[:, None] * matrix)  # signs of rows change nothing of C^T C


def measure(row: Row, peer: Peer | None, repeat: int, folder: Path) -> dict[str, Any]:
    """One row: ours warmed up and repeated, theirs once."""
    found = row.run()
    seconds = statistics.median(row.run().seconds for _ in range(max(1, repeat)))
    record: dict[str, Any] = {
        "class": row.name, "n": row.n, "size": row.size, "participation": row.words, "kind": row.kind,
        "loss": found.loss, "lower_bound": found.lower_bound, "gap": found.gap,
        "evaluations": found.evaluations, "seconds": seconds, "strategy": found.strategy.describe(),
    }  # fmt: skip
    if peer is not None and row.call is not None:
        theirs, strategy = peer.run(row, folder)
        record |= {"peer_seconds": theirs, "ratio": theirs / seconds, "peer_stopped": strategy is None}
        if strategy is not None:
            reached = an.loss(workloads.prefix_sum(row.n), strategy, row.schema, row.kind)
            record["peer_loss"] = reached
        if row.target is not None:
            record["target"] = row.target
    return record


def line_of(record: dict[str, Any]) -> str:
    gap = "" if record["gap"] is None else f"{record['gap']:.1e}"
    line = (
        f"{record['class']:<16}{record['n']:>9} {record['size']:<10}{record['participation']:<14}"
        f"{record['kind']:<4}{record['loss']:>12.6f} {gap:>8}{record['seconds']:>10.4f}"
    )
    if "peer_seconds" in record:
        loss = f"{record['peer_loss']:.6f}" if "peer_loss" in record else "stopped"
        more = ">" if record["peer_stopped"] else ""
        target = f"  (target {record['target']:.0f})" if "target" in record else ""
        line += f" | {loss:>11}{record['peer_seconds']:>9.1f}  {more}{record['ratio']:.0f}x{target}"
    return line


def plot(records: list[dict[str, Any]], file: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [record for record in records if "peer_seconds" in record]
    names = [f"{r['class']} n={r['n']:,} {r['size']} {r['participation']} {r['kind']}" for r in rows]
    y = np.arange(len(rows))[::-1]
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.4), layout="constrained")
    axes.hlines(y, [r["seconds"] for r in rows], [r["peer_seconds"] for r in rows], color="0.8", lw=2)
    axes.plot([r["peer_seconds"] for r in rows], y, "s", color="0.45", label="JAX Privacy")
    axes.plot([r["seconds"] for r in rows], y, "o", color="tab:blue", label="anechoic")
    for place, record in zip(y, rows, strict=True):
        mark = ">" if record["peer_stopped"] else ""
        text = f"{mark}{record['ratio']:.0f}×"
        axes.annotate(text, (record["peer_seconds"], place), (8, 0), textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.set_yticks(y, names, fontsize=8)
    axes.set_xlabel("seconds (logarithmic)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.margins(x=0.12)
    axes.legend(frameon=False, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="interpreter that has jax-privacy")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="seconds for a row of the peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them (.svg, .png or .pdf)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="timed runs of ours (default: 3)")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose class contains TEXT")
    options = parser.parse_args()
    peer = None if options.peer is None else Peer(options.peer, options.limit)
    versions = f"numpy {np.__version__}, scipy {scipy.__version__}"
    if peer is not None:
        versions += f" | {peer.version()}"
    print(versions)
    print(
        f"{'class':<16}{'n':>9} {'size':<10}{'schema':<14}{'kind':<4}{'loss':>12} {'gap':>8}{'s':>10}"
        f"{' |    peer loss        s  ratio' if peer else ''}"
    )
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            if options.only in row.name:
                records.append(measure(row, peer, options.repeat, Path(folder)))
                print(line_of(records[-1]), flush=True)
    if peer is not None:
        peer.stop()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process {peak:.0f} MiB")
    if options.json:
        machine = f"{platform.machine()}, python {platform.python_version()}, {versions}"
        day = time.strftime("%Y-%m-%d")
        record = {"machine": machine, "date": day, "peak_mib": peak, "rows": records}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(records, options.plot, f"Optimising a strategy, {versions.replace(' | ', ', ')}")


if __name__ == "__main__":
    sys.exit(main())

"""Federated rounds: what noise, ledger and state cost beside aggregation, and who may be chosen among 10^6.

python benchmarks/federated.py [--quick] [--processor] [--json FILE]

One script, one process, one thread: the parts of a round are timed one after another, and stated as ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anechoic import federated
from anechoic.federated.client_selection import RecentAttempts, chosen
from anechoic.federated.ledger import ParticipationLedger
from anechoic.federated.round import OpenRound
from anechoic.federated.server import Server
from anechoic.mechanism.rows import NoiseRows

#: Seconds as they pass, or, with --processor, of this process alone: for a machine that others use too.
CLOCK = time.perf_counter

#: What --json writes.
FOUND: dict[str, float] = {}


def parts_of(times: list[float], work: Callable[[], Any]) -> Any:
    """What `work` returns; its seconds are noted."""
    start = CLOCK()
    found = work()
    times.append(CLOCK() - start)
    return found


def add_all(asked: OpenRound, updates: Sequence[dict[str, Any]]) -> None:
    for i, client in enumerate(asked.clients):
        assert asked.add(client, updates[i % len(updates)]) is None


class Timed:
    """Time that is spent inside of a method, added up."""

    def __init__(self, owner: type, *names: str) -> None:
        self.spent = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, real: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            start = CLOCK()
            try:
                return real(*arguments, **options)
            finally:
                self.spent += CLOCK() - start

        return run


def rounds(dimension: int, per_round: int, count: int, mechanism: str) -> None:
    """Seconds of a round by part, medians over `count` rounds after the first."""
    policy = federated.MinSeparation(10)
    planned = federated.plan_rounds(
        rounds=100,
        clients=20 * per_round,
        clients_per_round=per_round,
        policy=policy,
        epsilon=8.0,
        dimension=dimension,
        mechanism=mechanism,
    )
    rng = np.random.default_rng(0)
    updates = [
        {"w": rng.normal(scale=1e-3, size=dimension).astype(np.float32)} for _ in range(min(8, per_round))
    ]
    grids = [
        federated.to_grid(update["w"], clip_norm=planned.clip_norm, grid_bits=planned.grid_bits or 28)
        for update in updates
    ]
    noise = Timed(NoiseRows, "next")
    parts: dict[str, list[float]] = {name: [] for name in ("ask", "arrays", "close", "noise")}
    plain: list[float] = []
    vectors: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(
            {"w": np.zeros(dimension, np.float32)},
            mechanism=planned,
            policy=policy,
            clients_per_round=per_round,
            optimizer=federated.SGD(1.0, momentum=0.9),
            state=Path(folder) / "run",
        )
        everybody = server.clients(range(20 * per_round))
        for _ in range(count + 1):
            noise.spent = 0.0
            asked = parts_of(parts["ask"], lambda: server.ask(everybody))
            parts_of(parts["arrays"], lambda asked=asked: add_all(asked, updates))
            parts_of(parts["close"], lambda asked=asked: server.close(asked))
            parts["noise"].append(noise.spent)
            parts_of(plain, lambda: _mean(updates, per_round))
            parts_of(vectors, lambda: _checked(grids, per_round, dimension, planned.grid_bits or 28))
        server.shut()
    found = {name: statistics.median(times[1:]) for name, times in parts.items()}
    mean, sums = statistics.median(plain[1:]), statistics.median(vectors[1:])
    private, whole = found["noise"] + found["ask"], found["ask"] + found["close"]
    print(
        f"{mechanism:9} m={dimension:.0e} clients={per_round}: noise {1e3 * found['noise']:.1f} ms, ask"
        f" (choose, charge, commit) {1e3 * found['ask']:.1f}, rest of close (optimiser, model on disk)"
        f" {1e3 * (found['close'] - found['noise']):.1f}"
    )
    for name, beside in (
        ("float32 replies: checked, clipped, rounded, added", found["arrays"]),
        ("int64 replies: measured, added", sums),
        ("float32 mean without any check", mean),
    ):
        print(
            f"          {name} {1e3 * beside:.1f} ms: noise and ledger are {private / beside:.3f} of it,"
            f" with optimiser and disk {whole / beside:.3f}"
        )
    FOUND[f"{mechanism}_{dimension}_{per_round}"] = private / found["arrays"]


def _mean(updates: Sequence[dict[str, np.ndarray]], count: int) -> np.ndarray:
    """What a server without privacy does with the same replies."""
    total = np.zeros_like(updates[0]["w"])
    for i in range(count):
        total += updates[i % len(updates)]["w"]
    return total / count


def _checked(grids: Sequence[np.ndarray], count: int, dimension: int, bits: int) -> np.ndarray:
    """Replies that come as integers: measured exactly, and added up."""
    total = np.zeros(dimension, np.int64)
    for i in range(count):
        assert federated.grid.fault_of_integers(grids[i % len(grids)], dimension, bits) is None
        total += grids[i % len(grids)]
    return total


def choosing(clients: int, per_round: int) -> None:
    """Milliseconds to say who may be chosen, to choose, and to charge."""
    for policy in (federated.MinSeparation(50, 6), federated.Cohorts(50)):
        ledger = ParticipationLedger(policy, bytes(32))
        once: list[float] = []
        everybody = parts_of(once, lambda ledger=ledger: ledger.clients(range(clients)))
        times: dict[str, list[float]] = {"who may": [], "chosen": [], "charged": []}
        for step in range(60):
            parts_of(times["who may"], partial(ledger.allowed, everybody, step))
            rest = {"most": per_round, "fewest": 1, "key": bytes(32), "earlier": RecentAttempts()}
            ask = partial(chosen, ledger, everybody, step, 0, **rest)
            picked = parts_of(times["chosen"], ask)
            parts_of(times["charged"], partial(ledger.charge, picked, step))
        words = ", ".join(
            f"{name} {1e3 * statistics.median(spent):.1f} (at most {1e3 * max(spent):.1f})"
            for name, spent in times.items()
        )
        print(f"{policy!r}, {clients:,} clients, {per_round} a round, ms over 60 steps: {words}")
        print(f"          looked up once {once[0]:.2f} s")
        FOUND[f"choose_{type(policy).__name__}"] = max(times["chosen"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10^5 parameters, 20 clients")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processor", action="store_true", help="processor seconds: without waits for disks")
    options = parser.parse_args()
    if options.processor:
        global CLOCK
        CLOCK = time.process_time
    dimension, per_round = (10**5, 20) if options.quick else (10**6, 100)
    choosing(10**5 if options.quick else 10**6, 1000)
    for mechanism in ("identity", "blt", "banded", "tree"):
        rounds(dimension, per_round, 3 if options.quick else 5, mechanism)
    if options.json:
        options.json.write_text(json.dumps(FOUND, indent=1))


if __name__ == "__main__":
    main()

"""What a federated round costs the server: bytes and seconds by parameters and clients.

python benchmarks/federated_costs.py [--largest 10000000] [--markdown FILE]

One round is made for every number of parameters m up to --largest, with as many replies as are needed to time
one; where m times clients is at most --whole, all of them are made. Other rows are marked ~: seconds for
replies are then those of one reply times the clients, and beyond --largest all seconds are proportional to m.
A reply comes as float32 arrays, is clipped, put on the grid and added up; the state is on disk. Seconds are
processor time of one thread, so that others on the machine do not count; waiting for a disk is not in them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anechoic.federated import SGD, MinSeparation, Server, plan_rounds
from anechoic.mechanism.rows import NoiseRows

PARAMETERS = (10**5, 10**6, 10**7, 10**8)
CLIENTS = (10**2, 10**3, 10**4)
#: Clients that are there when a round is begun.
THERE = 10**5
ROUNDS, SEPARATION, TIMES = 1000, 100, 10
#: Replies by which one is timed where not all are made.
FEW = 5


@dataclass(frozen=True)
class Cost:
    """Seconds of one round on the server by part, and whether every reply was made."""

    ask: float
    replies: float
    noise: float
    rest: float
    measured: bool

    @property
    def total(self) -> float:
        return self.ask + self.replies + self.noise + self.rest

    @property
    def added(self) -> float:
        """Seconds that a server without noise and ledger would not spend, over those of the replies."""
        return (self.ask + self.noise) / self.replies


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(parameters: int, clients: int, replies: int, folder: Path) -> Cost:
    """A round of a server with `parameters` parameters and so many replies, the second of its run."""
    policy = MinSeparation(SEPARATION, TIMES)
    mechanism = plan_rounds(
        rounds=ROUNDS,
        clients=max(THERE, 2 * SEPARATION * clients),
        clients_per_round=clients,
        policy=policy,
        epsilon=8.0,
        dimension=parameters,
        mechanism="blt",
    )
    update = {"w": np.random.default_rng(0).normal(size=parameters).astype(np.float32)}
    server = Server(
        {"w": np.zeros(parameters, np.float32)},
        mechanism=mechanism,
        policy=policy,
        clients_per_round=clients,
        optimizer=SGD(1.0, momentum=0.9),
        state=folder / f"{parameters}-{clients}",
    )
    rows = NoiseRows(mechanism, parameters, bytes(32))  # of a server of its own: only to time them
    rows.next()
    noise = min(timed(rows.next) for _ in range(3))
    with server:
        there = server.clients(range(THERE))
        server.close(answered(server.ask(there), update, 1))  # what is set up once
        start = time.process_time()
        asked = server.ask(there)
        ask = time.process_time() - start
        adding = timed(lambda: answered(asked, update, replies))
        rest = max(0.0, timed(lambda: server.close(asked)) - noise)
    return Cost(ask, adding / replies * clients, noise, rest, replies == clients)


def answered(asked, update, replies):
    for client in asked.clients[:replies]:
        asked.add(client, update)
    return asked


def costs(largest: int, whole: int) -> dict[tuple[int, int], Cost]:
    """By parameters and clients."""
    found: dict[tuple[int, int], Cost] = {}
    with tempfile.TemporaryDirectory() as folder:
        for parameters in PARAMETERS:
            for clients in CLIENTS:
                if parameters <= largest:
                    replies = clients if parameters * clients <= whole else FEW
                    found[parameters, clients] = measure(parameters, clients, replies, Path(folder))
                else:
                    known = max(p for p, c in found if c == clients and p <= largest)
                    less, factor = found[known, clients], parameters / known
                    grown = (less.replies * factor, less.noise * factor, less.rest * factor)
                    found[parameters, clients] = Cost(less.ask, *grown, False)
    return found


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def markdown(found: dict[tuple[int, int], Cost]) -> str:
    """The table; bytes go down to all clients and come up from them: 4 for each parameter."""
    lines = [
        "| m | clients | down | up | ask | replies | noise | step | total | beside |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (parameters, clients), cost in found.items():
        sent = 4 * parameters * clients
        seconds = [f"{s:.3g} s" for s in (cost.ask, cost.replies, cost.noise, cost.rest, cost.total)]
        cells = [f"10^{len(str(parameters)) - 1}", f"{clients:,}", *map(size, (sent, sent))]
        cells += [*seconds, f"{cost.added:.2%}"]
        cells[-2] = ("" if cost.measured else "~ ") + cells[-2]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--largest", type=int, default=10**7, help="parameters that are still timed")
    parser.add_argument("--whole", type=int, default=10**8, help="m times clients up to which all reply")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    text = markdown(costs(options.largest, options.whole))
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

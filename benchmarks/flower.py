"""One round at the server: ours beside Flower's own fixed-clipping DP over FedAvg, same messages, one run.

    python benchmarks/flower.py [--parameters 1000000] [--clients 100] [--rounds 5]

Both get the replies of all clients as Flower's messages and end with the next model as an `ArrayRecord`. Ours
reads clipped updates on the grid, checks their norms exactly, adds a row of correlated noise on the grid and
commits to the ledger (with --state, to disk too). Flower's reads weights, clips them, averages and adds
independent noise. Processor seconds, the smallest of the rounds after the first.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from anechoic.federated import MinSeparation, Server
from anechoic.flower import CorrelatedFedOpt, Partitions, clipped_update, clipped_update_mod
from anechoic.flower.records import record_of, vector_record
from tests.flower.in_process import Fate, InProcessGrid

CLIP = 1.0


def main() -> None:
    arguments = parsed()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    m, clients = arguments.parameters, arguments.clients
    rng = np.random.default_rng(0)
    model = {"w": rng.normal(size=m).astype(np.float32)}
    after = {"w": model["w"] + rng.normal(size=m).astype(np.float32) * np.float32(2 / np.sqrt(m))}
    print(
        f"{m:,} parameters, {clients} clients a round, {arguments.rounds} rounds; processor seconds a round"
    )
    flower = theirs(model, after, clients, arguments.rounds)
    print(f"{'Flower, server-side fixed clipping over FedAvg':<60}{flower:8.3f}")
    for name, folder in (("in memory", None), ("with a state directory", "state")):
        with tempfile.TemporaryDirectory() as temporary:
            state = None if folder is None else Path(temporary) / folder
            total, parts = ours(model, after, clients, arguments.rounds, state)
        print(f"{'CorrelatedFedOpt, ' + name:<60}{total:8.3f}   {total / flower:5.2f} of Flower's")
        for part, seconds in parts.items():
            print(f"    {part:<56}{seconds:8.3f}   {seconds / total:5.1%} of the round")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def grid_of(nodes: int) -> InProcessGrid:
    """Nodes that say who they are and answer nothing else: replies are made by hand."""
    app = ClientApp()

    @app.train(mods=[clipped_update_mod])
    def train(message, context):  # type: ignore[no-untyped-def]
        return Message(RecordDict(), reply_to=message)

    def fate(message: Message, place: int) -> Fate:
        ask = message.content.get("anechoic", {})
        return Fate.ANSWERED if ask.get("stage") == "who" else Fate.LOST

    return InProcessGrid(app, nodes, fate=fate)


def theirs(model: dict[str, np.ndarray], after: dict[str, np.ndarray], clients: int, rounds: int) -> float:
    """Flower's wrapper: clip, average, noise."""
    grid = grid_of(clients)
    inner = FedAvg(min_available_nodes=clients, min_train_nodes=clients)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, CLIP, clients)
    record, found = record_of(model), []
    reply = RecordDict({"arrays": record_of(after), "metrics": MetricRecord({"num-examples": 1})})
    for number in range(1, rounds + 1):
        messages = list(strategy.configure_train(number, record, ConfigRecord(), grid))
        # the wrapper replaces records in a reply, so each needs its own
        replies = [Message(RecordDict(dict(reply)), reply_to=message) for message in messages]
        began = time.process_time()
        strategy.aggregate_train(number, replies)
        found.append(time.process_time() - began)
    return min(found[1:])


def ours(
    model: dict[str, np.ndarray], after: dict[str, np.ndarray], clients: int, rounds: int, state: Path | None
) -> tuple[float, dict[str, float]]:
    """Read, check, add, noise, optimise, commit."""
    strategy = CorrelatedFedOpt(
        identity=Partitions(),
        policy=MinSeparation(4),
        clients_per_round=clients,
        clip_norm=CLIP,
        rounds=max(rounds, 8),
        population=10 * clients,
        epsilon=8.0,
        state=state,
    )
    grid = grid_of(10 * clients)
    record, found, noise = record_of(model), [], []
    server = strategy.open(record)
    bits = server.grid_bits
    vector = clipped_update(model, after, clip_norm=CLIP, grid_bits=bits)
    update = RecordDict({"update": vector_record(vector, bits)})
    asking = []
    with timed(Server, "_release", noise), timed(Server, "ask", asking):
        for number in range(1, rounds + 1):
            messages = list(strategy.configure_train(number, record, ConfigRecord(), grid))
            grid.push_messages(messages)  # which gives them their ids
            replies = [Message(update, reply_to=message) for message in messages]
            began = time.process_time()
            strategy.aggregate_train(number, replies)
            found.append(time.process_time() - began)
    strategy.close()
    parts = {
        "noise row, server optimiser, commit of the release": min(noise[1:]),
        "choice and ledger (before the round, not in its sum)": min(asking[1:]),
    }
    return min(found[1:]), parts


@contextlib.contextmanager
def timed(owner, name, seconds):  # type: ignore[no-untyped-def]
    """Add the processor seconds of each call of a method to a list."""
    real = getattr(owner, name)

    def call(*arguments, **options):  # type: ignore[no-untyped-def]
        began = time.process_time()
        try:
            return real(*arguments, **options)
        finally:
            seconds.append(time.process_time() - began)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, real)


if __name__ == "__main__":
    main()

"""One run: a server that enforces participation, and clients that are simulated in this process."""

from __future__ import annotations

import hashlib
import time
from functools import lru_cache

import numpy as np

from anechoic.errors import AnechoicError
from anechoic.federated import SGD, Server, TooFewClients, to_grid
from anechoic.mechanism.mechanism import Mechanism
from studies import keeping
from studies.comparison.study import Arm, Outcome, TrainingRun, load
from studies.federated.arms import policy_of, silent
from studies.federated.local import updates
from studies.federated.split import DAY
from studies.federated.tasks import FederatedTask
from studies.training import key

#: Days in a row without enough clients after which a run is given up.
PATIENCE = 3


def identity(run: TrainingRun) -> str:
    """What an outcome belongs to: task, arm with its mechanism, learning rate, seed and rounds."""
    return hashlib.sha256(key("outcome", run) + (run.arm.mechanism or "").encode()).hexdigest()


def execute(run: TrainingRun) -> Outcome:
    """Train and score. One attempt at a round every hour; an hour in which too few are there passes.

    Args:
        run: of a federation's task.

    Raises:
        TooFewClients: if the population does not fill a round for `PATIENCE` days.
    """
    if run.resume and (known := keeping.finished(run, identity(run))) is not None:
        return known
    data, rounds = load(run.task), run.task.rounds
    start = time.perf_counter()
    # Reproducible figures need keys that the run fixes. A run that protects anyone passes no key.
    server = server_of(
        run.task, run.arm, SGD(run.learning_rate, momentum=rounds.momentum), key("federated", run)
    )
    everyone = server.clients(range(data.clients))
    hour = waited = hungry = 0
    while not server.finished:
        there = data.windows.there(hour)
        hour += 1
        try:
            asked = server.ask(everyone.only(there))
        except TooFewClients:
            waited, hungry = waited + 1, hungry + 1
            if hungry > PATIENCE * DAY:
                raise
            continue
        hungry = 0
        trained = updates(
            asked.model["weights"],
            *data.batch(asked.clients),  # type: ignore[arg-type] # ids are the places in the population
            steps=rounds.local_steps,
            rate=rounds.local_rate,
        )
        for client, update in zip(asked.clients, trained, strict=True):
            sent = to_grid(update.ravel(), clip_norm=server.clip_norm, grid_bits=server.grid_bits)
            if refusal := asked.add(client, sent):
                raise AnechoicError(f"client {client!r} was refused: {refusal}.")
        server.close(asked)
    metric = data.accuracy(server.model["weights"])
    seen = server.report().ledger
    facts = {
        "hours": hour,
        "starved": waited,
        "clients": seen.clients,
        "most": seen.most,
        "nearest": seen.nearest,
    }
    spent = server.mechanism.epsilon() if run.arm.private else None
    seconds = time.perf_counter() - start
    outcome = Outcome(run.arm.name, run.learning_rate, run.seed, metric, seconds, spent, facts)
    if run.checkpoint:
        keeping.keep(run, identity(run), outcome)
    return outcome


def server_of(task: FederatedTask, arm: Arm, optimizer: SGD, secret: bytes | None = None) -> Server:
    """The server of a run: in memory, every round full."""
    rounds = task.rounds
    return Server(
        {"weights": np.zeros(load(task).shape, np.float32)},
        mechanism=_read(arm.mechanism) if arm.mechanism is not None else silent(rounds),
        policy=policy_of(rounds),
        clients_per_round=rounds.clients_per_round,
        min_replies=rounds.clients_per_round,
        optimizer=optimizer,
        key=secret,
    )


@lru_cache(maxsize=64)
def _read(text: str) -> Mechanism:
    return Mechanism.from_json(text)

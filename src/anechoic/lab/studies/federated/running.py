"""One run: a server that enforces participation, and clients that are simulated in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from anechoic.errors import AnechoicError
from anechoic.federated import SGD, Server, Starved, to_grid
from anechoic.lab.studies import keeping
from anechoic.lab.studies.federated.arms import discipline_of, silent
from anechoic.lab.studies.federated.local import updates
from anechoic.lab.studies.federated.split import DAY
from anechoic.lab.studies.federated.tasks import load
from anechoic.lab.studies.study import Outcome, Run
from anechoic.lab.studies.training import REPORT_EVERY, identity, key
from anechoic.mechanism.mechanism import Mechanism

#: Days in a row without enough clients after which a run is given up.
PATIENCE = 3


def execute(run: Run, report: Callable[[int], None] = lambda steps: None) -> Outcome:
    """Train and score. One attempt at a round every hour; an hour in which too few are there passes.

    Args:
        run: of a federation's task.
        report: called with the number of rounds made since it was last called.

    Raises:
        Starved: if the population does not fill a round for `PATIENCE` days.
    """
    if run.resume and (known := keeping.finished(run, identity(run))) is not None:
        report(run.steps)
        return known
    data, rounds = load(run.task), run.task.rounds
    start = time.perf_counter()
    # Reproducible figures need keys that the run fixes. A run that protects anyone passes no key.
    server = Server(
        {"weights": np.zeros(data.shape, np.float32)},
        mechanism=_read(run.arm.mechanism) if run.arm.mechanism is not None else silent(rounds),
        discipline=discipline_of(rounds),
        clients_per_round=rounds.clients_per_round,
        min_replies=rounds.clients_per_round,
        optimizer=SGD(run.learning_rate, momentum=rounds.momentum),
        key=key("federated", run),
    )
    everyone = server.clients(range(data.clients))
    hour = waited = hungry = 0
    while not server.finished:
        there = data.windows.there(hour)
        hour += 1
        try:
            asked = server.ask(everyone.only(there))
        except Starved:
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
                raise AnechoicError(f"client {client} was refused: {refusal}.")
        server.close(asked)
        if server.step % REPORT_EVERY == 0 or server.finished:
            report((server.step - 1) % REPORT_EVERY + 1)
    metric = data.accuracy(server.model["weights"])
    seen = server._ledger.summary()
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


@lru_cache(maxsize=64)
def _read(text: str) -> Mechanism:
    return Mechanism.from_json(text)

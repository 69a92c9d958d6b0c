"""Log lines of a run: at its start, and after each round."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from anechoic.federated.round import RoundResult
from anechoic.federated.server import Server
from anechoic.flower.identity import ClientIdentity
from anechoic.sampling.base import counted
from anechoic.statement.rounding import round_up


def of_run(server: Server, identity: ClientIdentity) -> Iterable[str]:
    """Describe what is guaranteed and enforced: a line each."""
    mechanism, policy = server.mechanism, server.policy
    yield (
        f"Guarantee: ({round_up(mechanism.epsilon())}, {mechanism.delta:.3g})-differential privacy for one"
        f" {mechanism.unit}, of {counted(mechanism.steps, 'round')} together"
    )
    yield (
        f"Policy: {policy!r}; at most {counted(server.asked_per_round, 'client')} a round, and every sum is"
        f" divided by {server.clients_per_round}; {counted(server.min_replies, 'answer')} at least for a"
        " release"
    )
    yield identity.sentence
    kept = f"state in {server.folder}"
    if server.folder is None:
        kept = "no state directory: when this process ends, so does the run, and its ledger is forgotten"
    yield f"Horizon: {server.step} of {counted(mechanism.steps, 'round')} released; {kept}"


def of_start(server: Server, last: int) -> Iterable[str]:
    """Warn of a start with nothing to do, or with less than noise is planned for."""
    steps = server.mechanism.steps
    if server.finished:
        yield (
            f"All {counted(steps, 'round')} of this run were released before: nothing is trained, and the"
            f" result is the last model. A new run needs another state directory than {server.folder}, and"
            " its privacy cost adds to this one's"
        )
    elif last < steps:
        yield (
            f"num_rounds={last} ends this start before the {counted(steps, 'round')} that noise is planned"
            " for: each has the noise of them all. Leave num_rounds out, or plan rounds= for so many"
        )
    noise, updates = server.lengths()
    if noise > updates and not server.finished:
        times, needed = noise / updates, math.ceil(server.clients_per_round * noise / updates)
        yield (
            f"Noise is {times:.2g} times as long as all updates together can be: expect a model near chance."
            f" It begins to learn at about {counted(needed, 'client')} a round, {times:.2g} times this"
            f" epsilon, or {times * times:.2g} times fewer parameters"
        )


def of_round(closed: RoundResult, per_round: int, min_replies: int) -> Iterable[tuple[int, str]]:
    """(level of the log, line) pairs of a round that is over."""
    answered = f"{closed.answered} of {counted(closed.asked, 'client')} answered"
    refused = f"; refused: {dict(closed.reasons)}" if closed.reasons else ""
    if not closed.released:
        yield (
            logging.WARNING,
            f"{answered}, below min_replies={min_replies}: nothing is released and no noise is used, but"
            f" their participations stay charged. The round is repeated, after a pause that doubles{refused}",
        )
        return
    yield logging.INFO, f"{answered}{refused}"
    if closed.counted == 0:
        yield (
            logging.ERROR,
            "NO update counted, and this release is noise alone. It costs what a good one would: stop the"
            " run, and look into the logs of the clients",
        )
    elif closed.answered < per_round / 2:
        yield (
            logging.WARNING,
            f"{answered}, and the divisor stays {per_round}: more noise for each (min_replies=)",
        )

"""Whom to ask: pseudo-random among those that may take part, the same for the same key, step and clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import AnechoicError
from anechoic.federated.clients import Clients
from anechoic.federated.discipline import NEVER, Discipline
from anechoic.federated.ledger import ParticipationLedger
from anechoic.noise.integers import Integers as Drawn


class Starved(AnechoicError):
    """Too few clients that are there may take part now. Nothing was charged; ask again with others.

    Attributes:
        step: that is open.
        there: clients that were named as available.
        allowed: of these, who may take part in the step.
        needed: the fewest that a round is begun with.
        next_step: the first step in which so many of these clients may; None if there is none.
        reason: why the others may not, in words.
    """

    def __init__(
        self, step: int, there: int, allowed: int, needed: int, next_step: int | None, reason: str
    ) -> None:
        self.step, self.there, self.allowed, self.needed = step, there, allowed, needed
        self.next_step, self.reason = next_step, reason
        when = (
            f"so many of them may in step {next_step} at the earliest"
            if next_step is not None
            else "so many of them never may"
        )
        super().__init__(
            f"step {step} is starved: of {there} clients that are there {allowed} may take part, and {needed}"
            f" are needed; {when}. {reason}"
        )


def chosen(
    ledger: ParticipationLedger,
    clients: Clients,
    step: int,
    attempt: int,
    *,
    most: int,
    fewest: int,
    key: bytes,
) -> Clients:
    """Up to `most` of the clients that may take part in `step`.

    Which ones follows from the key, the step, the attempt and the clients that are there. No privacy rests
    on it: nothing is amplified.

    Raises:
        Starved: if fewer than `fewest` may.
    """
    candidates = clients.by_digest(ledger.allowed(clients, step))
    if len(candidates) < fewest:
        raise _starved(ledger.discipline, ledger.first_steps(clients, step), step, fewest)
    picked = np.zeros(len(clients), bool)
    picked[candidates[_distinct(len(candidates), most, Drawn(key, "federated choice", step, attempt))]] = True
    return clients.only(picked)


def _distinct(count: int, wanted: int, drawn: Drawn) -> NDArray[np.int64]:
    """`wanted` different integers below `count`, or all of them."""
    if wanted >= count:
        return np.arange(count)
    if 2 * wanted > count:
        return drawn.permutation(count)[:wanted]
    found: list[int] = []
    seen: set[int] = set()
    while len(found) < wanted:
        for place in drawn.below(count, wanted - len(found)).tolist():
            if place not in seen:
                seen.add(place)
                found.append(place)
    return np.array(found, np.int64)


def _starved(discipline: Discipline, first: NDArray[np.int64], step: int, needed: int) -> Starved:
    allowed = int((first == step).sum())
    later, never = int(((first > step) & (first < NEVER)).sum()), int((first >= NEVER).sum())
    next_step = int(np.partition(first, needed - 1)[needed - 1]) if len(first) >= needed else NEVER
    reason = (
        f"{later} may again in a later step, {never} never. {discipline.remedy()} The divisor stays as"
        " it is: a smaller round is allowed down to min_replies, and has more noise for each client."
    )
    return Starved(step, len(first), allowed, needed, None if next_step >= NEVER else next_step, reason)

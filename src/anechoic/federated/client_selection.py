"""Choose clients: first those that were charged with the open step already, then others; pseudo-random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import AnechoicError
from anechoic.federated.clients import ClientId, Clients
from anechoic.federated.ledger import ParticipationLedger
from anechoic.noise.keystream import Integers as Drawn


class TooFewClients(AnechoicError):
    """Too few available clients may take part now. Nothing was charged; ask again with others.

    Attributes:
        step: that is open.
        there: clients that were named as available.
        allowed: of these, who may take part in the step.
        needed: the fewest that a round is begun with.
    """

    def __init__(self, step: int, there: int, allowed: int, needed: int) -> None:
        self.step, self.there, self.allowed, self.needed = step, there, allowed, needed
        super().__init__(
            f"step {step} is starved: of {there} clients that are there {allowed} may take part, and"
            f" {needed} are needed. A step passes with its release only, so with these clients it stays so"
            " for ever. Wait until others are there, of this step's cohort where there are cohorts. If there"
            " are no others, the run is over. A smaller round is allowed down to min_replies: the divisor"
            " stays, and so does the noise."
        )


@dataclass
class RecentAttempts:
    """Clients that answered in short attempts of the open step; forgotten with its release, or at a restart.

    A client that was silent twice while others answered makes room for fresh ones. Where nobody answered the
    clients are not to blame.
    """

    present: set[ClientId] = field(default_factory=set)
    silent: Counter[ClientId] = field(default_factory=Counter)

    def note(self, asked: Iterable[ClientId], present: set[ClientId]) -> None:
        """Remember a short attempt."""
        if present:
            self.present = set(present)
            self.silent.update(client for client in asked if client not in present)

    def rank(self, client: ClientId) -> int:
        """Rank clients: 0 for who was heard of last, 1 for who may be there, 2 for who is asked last."""
        return 2 if self.silent[client] > 1 else int(client not in self.present)


def chosen(
    ledger: ParticipationLedger,
    clients: Clients,
    step: int,
    attempt: int,
    *,
    most: int,
    fewest: int,
    key: bytes,
    earlier: RecentAttempts,
) -> Clients:
    """Choose up to `most` of the clients that may take part in `step`.

    Those that were asked in it before come first: they are charged already, and a short attempt takes nobody
    else out of the steps to come. Which ones among equals follows from the key, the step, the attempt and the
    clients that are there. No privacy rests on it: nothing is amplified.

    Args:
        earlier: attempts of this step.

    Raises:
        TooFewClients: if fewer than `fewest` may.
    """
    candidates = clients.by_digest(ledger.allowed(clients, step))
    if len(candidates) < fewest:
        raise TooFewClients(step, len(clients), len(candidates), fewest)
    charged = ledger.charged(clients, step)[candidates]
    again = candidates[charged]
    ranks = np.array([earlier.rank(client) for client in clients.ids[again]], np.int64)
    tiers = (again[ranks == 0], again[ranks == 1], candidates[~charged], again[ranks == 2])
    picked, drawn = np.zeros(len(clients), bool), Drawn(key, "federated choice", step, attempt)
    for tier in tiers:
        left = most - int(np.count_nonzero(picked))
        picked[tier[_distinct(len(tier), left, drawn)]] = True
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

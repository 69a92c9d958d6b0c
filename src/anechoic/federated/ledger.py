"""Ledger of participations: charged when a client is asked, and never forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import GuaranteeError
from anechoic.federated.clients import Clients, listed
from anechoic.federated.participation_policy import ParticipationPolicy
from anechoic.participation.accounts import NEVER, Accounts, packed, unpacked
from anechoic.sampling.base import counted
from anechoic.units.ids import DIGEST, digest_of, secret_of


@dataclass(frozen=True)
class ParticipationSummary:
    """Summary of a ledger.

    Attributes:
        clients: that took part at all.
        participations: of all of them together.
        most: largest number of participations of one client (k as seen), 0 if there is none.
        nearest: fewest steps between two participations of one client (b as seen), None if none came twice.
    """

    clients: int
    participations: int
    most: int
    nearest: int | None

    def __str__(self) -> str:
        if not self.clients:
            return "nobody was asked yet"
        apart = f"two of one at least {counted(self.nearest or 0, 'step')} apart"
        return (
            f"{self.clients} asked, {counted(self.participations, 'time')} in all, none more than"
            f" {counted(self.most, 'time')}; {'nobody twice' if self.nearest is None else apart}"
        )


class ParticipationLedger:
    """Participations of all clients as arrays in memory, written to the state by whoever charges.

    Args:
        policy: which steps a client may take part in.
        key: 32 secret bytes; ids are known by keyed digests.
        entries: those of a state that goes on, by digest of the client.
    """

    def __init__(
        self, policy: ParticipationPolicy, key: bytes, entries: Mapping[bytes, bytes] | None = None
    ) -> None:
        self.policy = policy
        self._secret = secret_of(key)
        held = entries or {}
        self._place = {digest: place for place, digest in enumerate(held)}
        self._accounts = accounts = Accounts(policy.participation, len(held))
        accounts.count, accounts.last, accounts.nearest = unpacked(held.values(), 3)

    def clients(self, available: Any) -> Clients:
        """The clients of these ids, looked up once; equal ids are one."""
        ids, digests = [], []
        for client in listed(available):
            ids.append(client)
            digests.append(digest_of(client, self._secret))
        held = np.empty(len(ids), object)
        held[:] = ids
        words = np.frombuffer(b"".join(digests), ">u8").reshape(-1, DIGEST // 8).astype(np.uint64)
        order = np.lexsort((np.arange(len(ids)), words[:, 1], words[:, 0]))
        again = np.zeros(len(ids), bool)
        again[order[1:]] = (words[order[1:]] == words[order[:-1]]).all(axis=1)
        place = self._place
        places = np.array([place.setdefault(digest, len(place)) for digest in digests], np.int64)
        self._accounts.grow(len(place))
        groups = self.policy.groups(words)
        all_of_them = Clients(held, places, groups, order, self)
        return all_of_them.only(~again) if again.any() else all_of_them

    def allowed(self, clients: Clients, step: int) -> NDArray[np.bool_]:
        """Mask of clients that may take part in `step`."""
        clients.check_of(self)
        held = self.policy.turn(step, clients.groups)
        held[held] = self._accounts.may(step, clients.places[held])
        return held

    def charged(self, clients: Clients, step: int) -> NDArray[np.bool_]:
        """Mask of clients that were asked in `step` already: another time costs nothing."""
        clients.check_of(self)
        return np.asarray(self._accounts.last[clients.places] == step)

    def charge(self, clients: Clients, step: int) -> dict[bytes, bytes]:
        """Charge clients with `step`; return the entries that changed, for the state."""
        if not self.allowed(clients, step).all():
            raise GuaranteeError(f"a client was chosen for step {step} that may not take part in it.")
        fresh = ~self.charged(clients, step)
        places, accounts = clients.places[fresh], self._accounts
        accounts.admit(step, places)
        entries = packed(accounts.count[places], accounts.last[places], accounts.nearest[places])
        return {
            digest_of(client, self._secret): entry
            for client, entry in zip(clients.ids[fresh], entries, strict=True)
        }

    def summary(self) -> ParticipationSummary:
        """Largest k and smallest separation that were seen."""
        count, nearest = self._accounts.count, int(self._accounts.nearest.min(initial=NEVER))
        return ParticipationSummary(
            int((count > 0).sum()),
            int(count.sum(dtype=np.int64)),
            int(count.max(initial=0)),
            None if nearest == NEVER else nearest,
        )

"""Who took part when: charged when a client is asked, and never forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import GuaranteeError
from anechoic.federated.clients import Clients, listed
from anechoic.federated.discipline import Discipline, Integers
from anechoic.units.ids import DIGEST, digest_of, secret_of

#: Separation of a client that took part in one step only.
_APART = 2**62


@dataclass(frozen=True)
class ClientEntry:
    """What one client has done so far.

    Attributes:
        digest: keyed, of its id.
        count: steps in which it was asked, >= 1.
        last: the last of them.
        nearest: smallest distance of two of them; 2**62 for one step.
    """

    digest: bytes
    count: int
    last: int
    nearest: int


@dataclass(frozen=True)
class Summary:
    """What a ledger has seen.

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


class ParticipationLedger:
    """Participations of all clients as arrays in memory, written to the state by whoever charges.

    Args:
        discipline: which steps a client may take part in.
        key: 32 secret bytes; ids are known by keyed digests.
        entries: those of a state that goes on.
    """

    def __init__(self, discipline: Discipline, key: bytes, entries: Iterable[ClientEntry] = ()) -> None:
        self.discipline = discipline
        self._secret = secret_of(key)
        self._place: dict[bytes, int] = {}
        self._last: Integers = np.full(64, -1, np.int64)
        self._count: Integers = np.zeros(64, np.int64)
        self._nearest: Integers = np.full(64, _APART, np.int64)
        for entry in entries:
            place = self._place_of(entry.digest)
            self._last[place], self._count[place] = entry.last, entry.count
            self._nearest[place] = entry.nearest

    def clients(self, available: Any) -> Clients:
        """The clients of these ids, looked up once; equal ids are one.

        Raises:
            ValueError: for something else than a list of integers, texts or bytes.
        """
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
        places = np.array([self._place_of(digest) for digest in digests], np.int64)
        groups = self.discipline.groups(ids, words)
        all_of_them = Clients(held, places, groups, order, self)
        return all_of_them.only(~again) if again.any() else all_of_them

    def first_steps(self, clients: Clients, step: int) -> Integers:
        """For each client the first step from `step` on at which it may take part, or `NEVER`."""
        clients.check_of(self)
        places = clients.places
        return self.discipline.first_step(step, self._last[places], self._count[places], clients.groups)

    def allowed(self, clients: Clients, step: int) -> NDArray[np.bool_]:
        """Who may take part in `step`."""
        clients.check_of(self)
        places = clients.places
        return self.discipline.allows(step, self._last[places], self._count[places], clients.groups)

    def charged(self, clients: Clients, step: int) -> NDArray[np.bool_]:
        """Who was asked in `step` already: another time costs nothing."""
        clients.check_of(self)
        found: NDArray[np.bool_] = self._last[clients.places] == step
        return found

    def charge(self, clients: Clients, step: int) -> list[ClientEntry]:
        """Note that they take part in `step`; the entries that changed, for the state.

        Raises:
            GuaranteeError: if one of them may not. Then nothing is noted.
        """
        if not self.allowed(clients, step).all():
            raise GuaranteeError(f"a client was chosen for step {step} that may not take part in it.")
        places = clients.places[self._last[clients.places] != step]
        before = self._last[places]
        apart = np.where(before >= 0, step - before, _APART)
        self._nearest[places] = np.minimum(self._nearest[places], apart)
        self._last[places] = step
        self._count[places] += 1
        changed = set(places.tolist())
        digests = [digest_of(client, self._secret) for client in clients.ids]
        return [self._entry(digest) for digest in digests if self._place[digest] in changed]

    def summary(self) -> Summary:
        """Largest k and smallest separation that were seen."""
        used = len(self._place)
        count = self._count[:used]
        nearest = int(self._nearest[:used].min(initial=_APART))
        return Summary(
            int((count > 0).sum()),
            int(count.sum(dtype=np.int64)),
            int(count.max(initial=0)),
            None if nearest == _APART else nearest,
        )

    def _place_of(self, digest: bytes) -> int:
        place = self._place.setdefault(digest, len(self._place))
        if place == len(self._last):
            self._last = np.concatenate([self._last, np.full(place, -1, np.int64)])
            self._count = np.concatenate([self._count, np.zeros(place, np.int64)])
            self._nearest = np.concatenate([self._nearest, np.full(place, _APART, np.int64)])
        return place

    def _entry(self, digest: bytes) -> ClientEntry:
        place = self._place[digest]
        return ClientEntry(digest, int(self._count[place]), int(self._last[place]), int(self._nearest[place]))

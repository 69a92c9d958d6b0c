"""Available clients: ids looked up once, so that a million of them are checked in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.federated.participation_policy import Integers

#: What names a client for as long as it may come back: a public key, a partition, a user's label.
ClientId = str | int | bytes


class Clients:
    """Ids with what the ledger of one server knows them by; made by `Server.clients`.

    Ids that are equal are one client, and stand here once, at their first place.

    Attributes:
        ids: in the order in which they were given.
        places: in the ledger's arrays.
        groups: of the policy.
    """

    def __init__(
        self,
        ids: NDArray[np.object_],
        places: Integers,
        groups: Integers,
        order: NDArray[np.intp],
        ledger: object,
    ) -> None:
        self.ids, self.places, self.groups = ids, places, groups
        self._order, self._ledger = order, ledger

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, there: Any) -> Clients:
        """Select clients that are there now, by a mask of shape (len(self),)."""
        mask = np.asarray(there)
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise ValueError(
                f"a mask is bool of shape ({len(self)},), one for each of ids, not {mask.dtype} of"
                f" {mask.shape}."
            )
        new = np.cumsum(mask) - 1
        kept = self._order[mask[self._order]]
        return Clients(self.ids[mask], self.places[mask], self.groups[mask], new[kept], self._ledger)

    def check_of(self, ledger: object) -> None:
        """Refuse to be looked up in another ledger, where these places are those of others.

        Raises:
            ValueError: for another one.
        """
        if ledger is not self._ledger:
            raise ValueError(
                "these clients were looked up by another server, or before a restart: call"
                " server.clients(ids) of the one that asks."
            )

    def by_digest(self, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Where the mask holds, in an order that depends on the ids alone, not on that of the caller."""
        return np.asarray(self._order[mask[self._order]])


def listed(available: Any) -> list[Any]:
    """The ids one by one; a list is never made an array, which would change some of them."""
    if isinstance(available, np.ndarray):
        if np.ma.is_masked(available) or available.ndim != 1 or available.dtype.kind not in "iuUO":
            raise ValueError(
                f"available is an array of {available.dtype}, shape {available.shape}: give a list of ids,"
                " each an integer, text or bytes (an array of bytes forgets zeros at their ends)."
            )
        return list(available.tolist())
    if isinstance(available, str | bytes | Mapping) or not isinstance(available, Sequence | Set | Iterable):
        raise ValueError(f"available is a {type(available).__name__}: give a list of the ids of clients.")
    return list(available)

"""The first three stages on the server: public keys, shares of secrets, masked vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anechoic.federated.secure_sum import messages as wire
from anechoic.federated.secure_sum.collecting import Collecting
from anechoic.federated.secure_sum.keys import COMMITMENT_BYTES, KeyPair
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Stage
from anechoic.federated.secure_sum.ring import Words, word_type
from anechoic.federated.secure_sum.roster import SEALED_BYTES, Entry, Roster
from anechoic.federated.secure_sum.terms import Terms
from anechoic.federated.secure_sum.unmasking import MaskedSum, Shared, Unmasking


class RoundKeys(Collecting[Entry]):
    """Everybody advertises public keys."""

    stage = Stage.KEYS

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms, tuple(range(1, terms.clients + 1)))
        self._probe = KeyPair.fresh()
        self._taken: set[bytes] = set()

    def request(self, seat: int) -> Message:
        return self.terms.message(seat)

    def read(self, seat: int, message: Mapping[str, Any]) -> Entry:
        entry = Entry.read(message)
        keys = {entry.encryption_key, entry.mask_key}
        # the other clients would not accept these, and the round would end for all
        if len(keys) < 2 or keys & self._taken:
            raise Refusal(Reason.KEYS, "a key is used twice")
        if any(self._probe.agree(key) is None for key in keys):
            raise Refusal(Reason.KEYS, "a key is a point of low order")
        self._taken |= keys
        return entry

    def next(self) -> Shares:
        return Shares(Roster(self.terms, {seat: self.answers[seat] for seat in self.answered}))


class Shares(Collecting[Shared]):
    """Everybody shares its two secrets among those who sent keys."""

    stage = Stage.SHARES

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster.terms, tuple(roster.entries))
        self._roster, self._fields = roster, roster.fields()

    def request(self, seat: int) -> Message:
        return {**self.head(), **self._fields}

    def read(self, seat: int, message: Mapping[str, Any]) -> Shared:
        count = len(self.asked)
        sealed = wire.octet_list(message, "sealed", count - 1, SEALED_BYTES)
        seed_shares, mask_key_shares = (
            wire.octet_list(message, f"{kind}_share_commitments", count, COMMITMENT_BYTES)
            for kind in ("seed", "mask_key")
        )
        return Shared(
            sealed=dict(zip((other for other in self.asked if other != seat), sealed, strict=True)),
            seed_commitment=wire.octets(message, "seed_commitment", COMMITMENT_BYTES),
            seed_shares=dict(zip(self.asked, seed_shares, strict=True)),
            mask_key_shares=dict(zip(self.asked, mask_key_shares, strict=True)),
        )

    def next(self) -> Masked:
        return Masked(self._roster, {seat: self.answers[seat] for seat in self.answered})


class Masked(Collecting[None]):
    """Everybody who shared secrets sends its masked vector; they are added up as they come."""

    stage = Stage.MASKED

    def __init__(self, roster: Roster, shared: dict[int, Shared]) -> None:
        super().__init__(roster.terms, tuple(shared))
        self._roster, self._shared = roster, shared
        self._total: Words = np.zeros(self.terms.dimension, word_type(self.terms.ring_bits))

    def request(self, seat: int) -> Message:
        sealed = [shared.sealed[seat] for sender, shared in self._shared.items() if sender != seat]
        return {**self.head(), "senders": list(self.asked), "sealed": sealed}

    def read(self, seat: int, message: Mapping[str, Any]) -> None:
        vector = np.frombuffer(wire.octets(message, "vector", self._total.nbytes), self._total.dtype)
        np.add(self._total, vector, out=self._total)

    def next(self) -> Unmasking:
        return Unmasking(MaskedSum(self._roster, self._shared, self.answered, self._total))

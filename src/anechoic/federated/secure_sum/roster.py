"""The roster: whose keys the clients of a round use, and what is bound to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anechoic.federated.secure_sum.keys import KEY_BYTES, SEAL_BYTES, commitment, digest, encoded, expand
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, octet_list, octets, seat_list
from anechoic.federated.secure_sum.shamir import SHARE_BYTES
from anechoic.federated.secure_sum.terms import Terms

#: Kinds of shares, as they are committed to.
SEED, MASK_KEY = b"seed", b"mask key"
#: A client's two shares, sealed for another.
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES


@dataclass(frozen=True)
class Entry:
    """What a client advertises.

    Attributes:
        encryption_key, mask_key: X25519 public keys, 32 bytes each.
    """

    encryption_key: bytes
    mask_key: bytes

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Entry:
        """The entry in a client's answer to the stage of keys."""
        return cls(octets(message, "encryption_key", KEY_BYTES), octets(message, "mask_key", KEY_BYTES))

    def fields(self) -> Message:
        """The entry as the fields of a message."""
        return {"encryption_key": self.encryption_key, "mask_key": self.mask_key}


@dataclass(frozen=True)
class Roster:
    """The clients that sent keys: seat → entry, in ascending order of seats."""

    terms: Terms
    entries: dict[int, Entry]

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ for any two rosters: the salt of every key that is derived in the round."""
        parts = []
        for seat, entry in self.entries.items():
            parts += [seat.to_bytes(8, "big"), entry.encryption_key, entry.mask_key]
        return digest(b"roster", self.terms.digest(), *parts)

    def fields(self) -> Message:
        """The roster as the fields of a message."""
        entries = list(self.entries.values())
        return {
            "seats": list(self.entries),
            "encryption_keys": [entry.encryption_key for entry in entries],
            "mask_keys": [entry.mask_key for entry in entries],
        }

    @classmethod
    def read(cls, message: Mapping[str, Any], terms: Terms) -> Roster:
        """The roster in a message of the server.

        Raises:
            Refusal: if it is malformed, has fewer clients than the threshold, or a key twice.
        """
        seats = seat_list(message, "seats", terms.clients)
        count = len(seats)
        if count < terms.threshold:
            raise Refusal(
                Reason.CLIENTS, f"{count} clients sent keys, below the threshold of {terms.threshold}"
            )
        columns = [octet_list(message, name, count, KEY_BYTES) for name in ("encryption_keys", "mask_keys")]
        if len({key for column in columns for key in column}) < 2 * count:
            raise Refusal(Reason.KEYS, "a key stands in the roster twice")
        entries = [Entry(*row) for row in zip(*columns, strict=True)]
        return cls(terms, dict(zip(seats, entries, strict=True)))

    def self_mask_key(self, seat: int, seed: bytes) -> bytes:
        """The key of the mask that a client's own seed makes."""
        return expand(seed, self.digest, b"self mask", seat.to_bytes(8, "big"))

    def pair_mask_key(self, one: int, other: int, shared: bytes) -> bytes:
        """The key of two clients' common mask, which the lower seat adds and the other subtracts."""
        low, high = sorted((one, other))
        return expand(
            shared,
            self.digest,
            b"pair mask",
            *self._parties(low, high, self.entries[low].mask_key, self.entries[high].mask_key),
        )

    def sealing_key(self, sender: int, receiver: int, shared: bytes) -> bytes:
        """The key under which `sender` seals the shares for `receiver`; the way back has another."""
        return expand(shared, self.digest, b"sealing", *self._sealed_parties(sender, receiver))

    def sealed_for(self, sender: int, receiver: int) -> bytes:
        """What the ciphertext of these shares is bound to."""
        return encoded(b"sealed", self.digest, *self._sealed_parties(sender, receiver))

    def share_commitment(self, kind: bytes, owner: int, holder: int, share: bytes) -> bytes:
        """What `owner` publishes of a share that `holder` gets, 16 bytes."""
        parties = owner.to_bytes(8, "big"), holder.to_bytes(8, "big")
        return commitment(b"share", self.digest, kind, *parties, share)

    def seed_commitment(self, owner: int, seed: bytes) -> bytes:
        """What `owner` publishes of its own mask's seed, 16 bytes."""
        return commitment(b"seed", self.digest, owner.to_bytes(8, "big"), seed)

    def _sealed_parties(self, sender: int, receiver: int) -> tuple[bytes, ...]:
        return self._parties(
            sender, receiver, self.entries[sender].encryption_key, self.entries[receiver].encryption_key
        )

    @staticmethod
    def _parties(one: int, other: int, key: bytes, other_key: bytes) -> tuple[bytes, ...]:
        return one.to_bytes(8, "big"), key, other.to_bytes(8, "big"), other_key

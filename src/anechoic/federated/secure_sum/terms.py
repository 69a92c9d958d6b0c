"""The terms of a round: what every client has to agree to before it sends anything."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anechoic._validate import positive_int
from anechoic.federated.secure_sum.keys import KEY_BYTES, digest
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Stage, head, number, octets
from anechoic.federated.secure_sum.ring import ring_bits
from anechoic.noise.grid import checked_bits

#: Fewest vectors in a sum, unless both sides say otherwise. The exact sum of two shows each of them to the
#: other; of ten, with three of them in league with the server, seven are still hidden in one another.
SMALLEST_SUM = 10
MOST_CLIENTS = 2**16
MOST_ENTRIES = 2**40
_MOST_ROUND_BYTES = 64


@dataclass(frozen=True)
class Terms:
    """Terms of one round.

    Args:
        clients: number of clients asked, n >= 2. Their seats are 1 … n.
        dimension: entries of a vector, >= 0.
        grid_bits: a vector's 2-norm is at most 2**grid_bits; see `noise.grid.checked_bits`.
        threshold: t, how many clients have to answer every stage, and how many shares give a secret;
            2n/3 < t <= n.
        round_id: 1 to 64 bytes that no other round has.
        context: anything that all clients must have seen alike, such as the model they were sent. It is
            bound into every key and not sent.

    Attributes:
        ring_bits: 32 or 64, see `ring`.

    Raises:
        ValueError: if an argument is out of range, or no ring holds the sum.
    """

    clients: int
    dimension: int
    grid_bits: int
    threshold: int
    round_id: bytes
    context: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        n = positive_int("clients", self.clients, minimum=2, remedy="A sum of one vector hides nothing.")
        positive_int("dimension", self.dimension, minimum=0)
        checked_bits(self.grid_bits)
        if n > MOST_CLIENTS or self.dimension > MOST_ENTRIES:
            raise ValueError(
                f"clients={n} and dimension={self.dimension} may be at most {MOST_CLIENTS} and "
                f"{MOST_ENTRIES}."
            )
        ring_bits(n, self.grid_bits)
        least = least_threshold(n)
        if not least <= positive_int("threshold", self.threshold) <= n:
            raise ValueError(
                f"threshold={self.threshold} must lie between {least}, more than two thirds, and clients={n}:"
                " with fewer a third of the clients could help to unmask two lists of survivors, and so"
                " single vectors."
            )
        if not (isinstance(self.round_id, bytes) and 1 <= len(self.round_id) <= _MOST_ROUND_BYTES):
            raise ValueError(f"round_id={self.round_id!r} must be 1 to {_MOST_ROUND_BYTES} bytes.")
        if not isinstance(self.context, bytes):
            raise ValueError(f"context is of type {type(self.context).__name__}, but must be bytes.")

    @property
    def ring_bits(self) -> int:
        return ring_bits(self.clients, self.grid_bits)

    @property
    def context_digest(self) -> bytes:
        """SHA-256 of the context."""
        return hashlib.sha256(self.context).digest()

    def digest(self) -> bytes:
        """32 bytes that differ for any two terms."""
        numbers = (self.clients, self.dimension, self.grid_bits, self.threshold)
        parts = (number.to_bytes(8, "big") for number in numbers)
        return digest(b"terms", self.round_id, self.context_digest, *parts)

    def message(self, seat: int) -> Message:
        """What the client of a seat is asked in the stage of keys."""
        return {
            **head(self.round_id, Stage.KEYS),
            "seat": seat,
            "clients": self.clients,
            "dimension": self.dimension,
            "grid_bits": self.grid_bits,
            "threshold": self.threshold,
            "context": self.context_digest,
        }

    @classmethod
    def read(cls, message: Mapping[str, Any], context: bytes) -> Terms:
        """The terms that a client is offered, with the context that it saw itself.

        Raises:
            Refusal: if a field is malformed, the terms break a rule, or the context is another one.
        """
        if octets(message, "context", KEY_BYTES) != hashlib.sha256(context).digest():
            raise Refusal(Reason.TERMS, "the server's context is not the one that this client saw")
        try:
            return cls(
                clients=number(message, "clients", 0, MOST_CLIENTS),
                dimension=number(message, "dimension", 0, MOST_ENTRIES),
                grid_bits=number(message, "grid_bits", 0, 64),
                threshold=number(message, "threshold", 0, MOST_CLIENTS),
                context=context,
                round_id=octets(message, "round"),
            )
        except ValueError as error:
            raise Refusal(Reason.TERMS, str(error)) from error


def least_threshold(clients: int) -> int:
    """floor(2n/3) + 1: less than a third of the clients may drop out, and a third may be the server's."""
    return 2 * clients // 3 + 1

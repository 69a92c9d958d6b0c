"""Shamir's secret sharing of 32-byte secrets over the integers modulo a prime above 2**256.

The prime exceeds every 32-byte secret, so that all 256 bits are shared as they are: nothing is reduced,
folded or cut into pieces. Any `threshold` shares give the secret; fewer are independent of it.

Reference: Shamir, How to share a secret, Communications of the ACM 22 (1979).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

#: The smallest prime above 2**256.
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, seats: Sequence[int]) -> list[bytes]:
    """One share for each seat: the values of a random polynomial of degree threshold - 1 at the seats.

    Args:
        secret: 32 bytes, the polynomial's value at 0.
        threshold: number of shares that give the secret, between 1 and len(seats).
        seats: distinct integers in [1, 2**256].

    Returns:
        Shares of 33 bytes, in the order of `seats`.
    """
    # highest power first, for Horner's rule
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    constant = int.from_bytes(secret, "big")
    shares = []
    for seat in seats:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * seat % PRIME
        shares.append(((value + constant) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret of as many shares as its threshold, or None if they belong to no 32-byte secret.

    Shares that are too few, or wrong, give another secret or None: who joins compares the secret with what is
    known of it.

    Args:
        shares: seat → share of 33 bytes, at least one.
    """
    seats = tuple(sorted(shares))
    values = (int.from_bytes(shares[seat], "big") for seat in seats)
    secret = sum(weight * value for weight, value in zip(_weights(seats), values, strict=True)) % PRIME
    return secret.to_bytes(SECRET_BYTES, "big") if secret < 2 ** (8 * SECRET_BYTES) else None


@lru_cache(maxsize=16)
def _weights(seats: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights: a polynomial's value at 0 from its values at `seats`."""
    weights = []
    for seat in seats:
        above = below = 1
        for other in seats:
            if other != seat:
                above = above * other % PRIME
                below = below * (other - seat) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)

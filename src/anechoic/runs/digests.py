"""Digests of a run and its releases under its noise key, which show nothing of either."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from typing import Any

from anechoic.keys import derive

DIGEST_KEY_BYTES = 64
_BLOCK, _TAG = 2**22, 16


def identity_of(noise_key: bytes) -> str:
    """Return the name of a run: 32 hexadecimal digits that follow from its key and do not show it.

    Args:
        noise_key: 32 secret bytes, the key of the run's noise.
    """
    return derive(noise_key, "journal identity", size=16).hex()


def digest_key_of(noise_key: bytes) -> bytes:
    """Derive the key of a run's digests: 64 bytes that follow from its noise key.

    Args:
        noise_key: 32 secret bytes, the key of the run's noise.
    """
    return derive(noise_key, "journal digests", size=DIGEST_KEY_BYTES)


def new_salt() -> bytes:
    """Draw 16 random bytes; not secret."""
    return secrets.token_bytes(16)


def digest_of(parts: Iterable[Any], key: bytes) -> str:
    """Return the digest of released bits, 64 hexadecimal digits: HMAC-SHA-256 of lengths and GMAC tags.

    There is one tag for each 4 MiB, which takes a tenth of the time of SHA-256: tags of two different blocks
    are the same with probability 2**-109 at most over the key, whoever chose them without knowing it, and the
    HMAC hides them. Who knows the key could make two releases of one digest, and could as well write another
    journal.

    Args:
        parts: objects with the buffer protocol (bytes, NumPy arrays), each contiguous, none of which is kept.
        key: see `digest_key_of`.

    Raises:
        ValueError: if the key is not 64 bytes long.

    References:
        NIST SP 800-38D (GMAC); Wegman and Carter 1981 (a universal hash under a pseudorandom function).
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not isinstance(key, bytes) or len(key) != DIGEST_KEY_BYTES:
        raise ValueError(
            f"a digest key must be {DIGEST_KEY_BYTES} bytes: take runs.digest_key_of(noise_key)."
        )
    gcm, lengths, tags = AESGCM(key[:32]), bytearray(), bytearray()
    for part in parts:
        view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
        lengths += len(view).to_bytes(8, "little")
        for start in range(0, len(view), _BLOCK):
            # a number that another release has too would give the tags' key away, if the tags were seen
            place = len(tags) // _TAG
            tags += gcm.encrypt(place.to_bytes(12, "little"), b"", view[start : start + _BLOCK])
    return hmac.new(key[32:], lengths + tags, "sha256").hexdigest()

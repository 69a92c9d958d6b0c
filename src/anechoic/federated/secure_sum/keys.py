"""Keys of one round: X25519 pairs, what is derived of them by HKDF-SHA256, and AES-256-GCM.

Every secret is used with all of its 32 bytes. What is derived depends on the round (the salt: the digest of
its terms and of all public keys), on what it is for, and on whose it is.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 12
#: Bytes that sealing adds: the nonce and the tag.
SEAL_BYTES = NONCE_BYTES + 16
#: A share's holder has to find a second preimage, which 128 bits withstand.
COMMITMENT_BYTES = 16


@dataclass(frozen=True)
class KeyPair:
    """An X25519 pair, 32 bytes each."""

    private: bytes
    public: bytes

    @classmethod
    def fresh(cls) -> KeyPair:
        """A new pair from the operating system's entropy."""
        return cls.of(X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """The pair of a private key."""
        return cls(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    @cached_property
    def _loaded(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private)

    def agree(self, public: bytes) -> bytes | None:
        """The 32 bytes shared with the owner of `public`, or None where that is a point of low order."""
        try:
            return self._loaded.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            return None

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


def digest(purpose: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the purpose and the parts, each behind its length."""
    return hashlib.sha256(encoded(purpose, *parts)).digest()


def encoded(*parts: bytes) -> bytes:
    """The parts, each behind its length: no two lists of parts have one encoding."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def expand(secret: bytes, salt: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """32 bytes of a 32-byte secret: HKDF-SHA256 (RFC 5869) bound to the salt, the purpose and the parts."""
    return HKDF(SHA256(), KEY_BYTES, salt, encoded(purpose, *parts)).derive(secret)


def commitment(purpose: bytes, *parts: bytes) -> bytes:
    """16 bytes that bind to the parts and hide them where one is a secret of 256 bits."""
    return digest(purpose, *parts)[:COMMITMENT_BYTES]


def seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """A random nonce and the AES-256-GCM ciphertext of `plaintext`, bound to `associated`."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """The plaintext, or None where the ciphertext is not what `seal` made with this key and `associated`."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
    except InvalidTag:
        return None

"""Private content of a state file, encrypted under the key of its run."""

from __future__ import annotations

import functools
import os
import secrets
from typing import Any

from anechoic.errors import CheckpointError
from anechoic.keys import derive

_NONCE, _TAG = 12, 16
#: Bytes by which something sealed is longer than its content.
SEALED = _NONCE + _TAG
#: Text is filled up to multiples of this, so that its length does not tell how large numbers in it are.
_FILLED = 512


class Sealer:
    """AES-256-GCM with a fresh random nonce for everything that is sealed.

    Guarantee: without the key, what is sealed shows its length and nothing else; and it can be opened under
    the name alone that it was sealed with, unchanged. Nonces have 96 bits: up to 2**32 of them under one key
    the chance that two are equal is below 2**-32 (NIST SP 800-38D, section 8.3).

    Args:
        key: 32 bytes, of the run.
        salt: of the file: parts of another file with the same key do not open here.
    """

    def __init__(self, key: bytes, salt: bytes) -> None:
        self._key = derive(key, f"seal {salt.hex()}", size=32)

    @functools.cached_property
    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)

    def close(self, name: bytes, content: Any) -> bytes:
        """`content`, sealed under `name`; `SEALED` bytes longer."""
        nonce = os.urandom(_NONCE)
        return nonce + bytes(self._cipher.encrypt(nonce, content, name))

    def open(self, name: bytes, sealed: Any) -> bytes:
        """What was sealed under `name`.

        Raises:
            CheckpointError: for anything else.
        """
        from cryptography.exceptions import InvalidTag

        data = bytes(sealed) if isinstance(sealed, bytes | memoryview | bytearray) else b""
        try:
            if len(data) < SEALED:
                raise InvalidTag
            return bytes(self._cipher.decrypt(data[:_NONCE], data[_NONCE:], name))
        except InvalidTag as error:
            raise CheckpointError("it is damaged, or was written at another time") from error


def new_salt() -> bytes:
    """16 random bytes; not secret."""
    return secrets.token_bytes(16)


def filled(text: str) -> bytes:
    """JSON with blanks at its end, up to a multiple of `_FILLED` bytes."""
    data = text.encode()
    return data + b" " * (-len(data) % _FILLED)

"""Keys: 256 secret bits, from which everything random in a run is derived."""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache

from anechoic._validate import positive_int

KEY_BYTES = 32
_LABEL = b"anechoic.derive.1\0"
_NUMBER_LIMIT = 2**64


def new_key() -> bytes:
    """A fresh key of 32 bytes from the operating system's entropy source."""
    return os.urandom(KEY_BYTES)


def key_in_environment(name: str) -> bytes:
    """Return the key in an environment variable; a ValueError where there is none does not show it."""
    text = os.environ.get(name, "").strip()
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise ValueError(f"the environment variable {name} must hold 64 hexadecimal digits of a secret key.")
    return bytes.fromhex(text)


def checked_key(key: bytes, name: str = "key") -> bytes:
    """`key` as bytes if it holds exactly 32 of them.

    Raises:
        ValueError: otherwise; the message never shows the key.
    """
    several = isinstance(key, (bytes, bytearray))
    if several and len(key) == KEY_BYTES:
        return bytes(key)
    raise ValueError(
        f"{name} {f'has {len(key)} bytes' if several else f'is of type {type(key).__name__}'}, but must be"
        f" exactly {KEY_BYTES} bytes: leave it out for fresh entropy, or pass noise.new_key(). An integer"
        " seed holds too few bits; of a longer secret pass the SHA-256 digest."
    )


def derive(key: bytes, domain: str, *numbers: int, size: int) -> bytes:
    """`size` bytes that depend on all of (key, domain, numbers, size): SHAKE-256 of their encoding.

    Every part is encoded with a fixed width or behind its length, so that no two argument lists share an
    encoding. Outputs of different domains, numbers or sizes are unrelated to whoever lacks the key; in
    particular a short output is not the beginning of a longer one.

    Args:
        key: 32 bytes.
        domain: what the bytes are for, such as "noise" or "sampling".
        numbers: integers in [0, 2**64), such as a step.
        size: bytes wanted, >= 1.

    Raises:
        ValueError: if the key is not 32 bytes long, or a number or the size is out of range.

    References:
        NIST FIPS 202 (SHAKE-256, an extendable-output function with 256 bits of security).
    """
    if type(key) is not bytes or len(key) != KEY_BYTES:
        key = checked_key(key)
    found = hashlib.shake_256(_LABEL + key + _head(domain, len(numbers), size))
    for number in numbers:
        plain = type(number) is int and 0 <= number < _NUMBER_LIMIT  # as nearly always: no call for it
        found.update(number.to_bytes(8, "little") if plain else _word("number", number))
    return found.digest(size)


def derive_each(key: bytes, domain: str, numbers: range, *, size: int) -> list[bytes]:
    """derive(key, domain, number, size=size) for each number; what they share is encoded once.

    Raises:
        ValueError: as `derive`.
    """
    if numbers:
        _word("number", min(numbers[0], numbers[-1]))
        _word("number", max(numbers[0], numbers[-1]))
    head, found = hashlib.shake_256(_LABEL + checked_key(key) + _head(domain, 1, size)), []
    for number in numbers:
        one = head.copy()
        one.update(number.to_bytes(8, "little"))
        found.append(one.digest(size))
    return found


@lru_cache(maxsize=1024, typed=True)
def _head(domain: str, count: int, size: int) -> bytes:
    """What is encoded between the key and the numbers."""
    name = domain.encode("utf-8")
    parts = [_word("len(domain)", len(name)), name, _word("size", positive_int("size", size))]
    return b"".join([*parts, _word("len(numbers)", count)])


def _word(name: str, value: int) -> bytes:
    number = positive_int(name, value, minimum=0)
    if number >= _NUMBER_LIMIT:
        raise ValueError(f"{name}={number} must be below 2**64.")
    return number.to_bytes(8, "little")

"""Ids of units: which are the same unit, and the keyed digests under which they are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from anechoic.keys import derive

#: Bytes of a digest.
DIGEST = 16


def secret_of(key: bytes) -> bytes:
    """Derive the key of digests from the 32 bytes of a run."""
    return derive(key, "units", size=64)


def digest_of(unit: Any, secret: bytes) -> bytes:
    """The keyed digest under which a unit is kept, 16 bytes; 7 and "7" are two units.

    Ids that are equal in Python have one digest: those of subclasses (enumerations, NumPy's scalars) count
    by what they hold. NULs at the end of text and bytes do not count: NumPy's arrays and scalars of such drop
    them, and which unit an id is must not depend on how it is handed over.

    Raises:
        ValueError: as `content_of`.
    """
    kind, held = content_of(unit)
    return hashlib.blake2b(held.rstrip(b"\0"), digest_size=DIGEST, key=secret, person=kind).digest()


#: Integers of more bits are written in hexadecimal, for which there is no limit of length.
_DECIMAL_BITS = 1024


def content_of(unit: Any) -> tuple[bytes, bytes]:
    """(kind, content) of an id: two ids are the same unit where both are.

    Raises:
        ValueError: if it is missing, or of a kind that ids do not have. Ids are private: none is shown.
    """
    unit = unit.item() if isinstance(unit, (np.integer, np.str_, np.bytes_)) else unit
    for kind in (int, str, bytes):
        if isinstance(unit, kind) and not isinstance(unit, bool) and type(unit).__eq__ is kind.__eq__:
            return kind.__name__.encode(), _CONTENT[kind](unit)
    raise ValueError(
        f"unit id of type {type(unit).__name__} must be an integer, text or bytes: missing ids could not be"
        " told apart, and types with an equality of their own not be compared. Leave such records out, or"
        " give them an id."
    )


def plain_id(unit: Any) -> int | str | bytes:
    """The id as a built-in integer, text or bytes: what can be written down, and is the same unit.

    Raises:
        ValueError: as `content_of`.
    """
    kind, content = content_of(unit)
    if kind == b"int":
        return int(unit)
    return content.decode("utf-8", "surrogatepass") if kind == b"str" else content


def _of_integer(unit: int) -> bytes:
    plain = int.__index__(unit)
    return (str(plain) if plain.bit_length() <= _DECIMAL_BITS else hex(plain)).encode()


def _of_text(unit: str) -> bytes:
    return str.__str__(unit).encode("utf-8", "surrogatepass")  # half a pair is a letter like others here


def _of_bytes(unit: bytes) -> bytes:
    return bytes(memoryview(unit))


_CONTENT: dict[type, Callable[[Any], bytes]] = {int: _of_integer, str: _of_text, bytes: _of_bytes}

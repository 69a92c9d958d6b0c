"""Masks: the keystream of AES-256-CTR, added to words of a ring."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anechoic.federated.secure_sum.ring import Words
from anechoic.noise.keystream import BLOCK_BYTES, AesCounter

_CHUNK = 2**17  # bytes: what is added stays in a core's own cache, however many masks there are
_ZEROS = bytes(_CHUNK)


def add_masks(words: Words, masks: Iterable[tuple[bytes, int]]) -> None:
    """words += the sum of sign * keystream(key) over all masks, modulo 2**w, in place.

    Word i of a mask is the i-th little-endian word of w bits of the keystream whose first counter block is 0.
    A key must be used for one mask only.

    Args:
        words: unsigned, of 32 or 64 bits, shape (k,), contiguous.
        masks: (key of 32 bytes, sign +1 or -1).
    """
    readers = [(AesCounter(key).reader(0), np.add if sign > 0 else np.subtract) for key, sign in masks]
    raw = np.empty(_CHUNK + BLOCK_BYTES - 1, np.uint8)
    buffer, stream = memoryview(raw.data), raw[:_CHUNK].view(words.dtype)
    step = _CHUNK // words.dtype.itemsize
    for begin in range(0, len(words), step):
        part = words[begin : begin + step]
        size = -(-part.nbytes // BLOCK_BYTES) * BLOCK_BYTES
        zeros = _ZEROS if size == _CHUNK else bytes(size)
        for read, combine in readers:
            read(zeros, buffer)
            combine(part, stream[: len(part)], out=part)

"""Integer vectors as words of a ring that provably holds their sum, and masks on them.

The sum of `clients` vectors of 2-norm at most 2**grid_bits has entries of at most clients * 2**grid_bits. A
ring of 2**w has room for it where that is at most 2**(w - 2): half of the ring. The other half is folded back
when the sum is read,

    0 … 2**(w-2) … 2**(w-1) = -2**(w-1) … -2**(w-2) … 0    as    0 … 2**(w-2) … 0 … -2**(w-2) … 0,

so that the number read never moves further than the word does, and jumps nowhere on the circle. Read as
signed words instead, a client that lies could add 2**(w-1) - 1 and let the unit that another client's vector
adds turn the sum from its largest to its smallest value, which no noise would hide. Folded, a client's vector
changes the sum by at most its own norm, whatever the others send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.noise.grid import square_of
from anechoic.noise.keystream import BLOCK_BYTES, AesCounter

RINGS = (32, 64)

_CHUNK = 2**17  # bytes: what is added stays in a core's own cache, however many masks there are
_ZEROS = bytes(_CHUNK)

Words = NDArray[np.unsignedinteger[Any]]


def ring_bits(clients: int, grid_bits: int) -> int:
    """The narrowest ring, 32 or 64 bits, with clients * 2**grid_bits <= 2**(ring_bits - 2).

    Raises:
        ValueError: if no ring is wide enough.
    """
    for bits in RINGS:
        if clients << grid_bits <= 1 << (bits - 2):
            return bits
    most = RINGS[-1] - 2 - (clients - 1).bit_length()
    raise ValueError(
        f"grid_bits={grid_bits} with {clients} clients: their sum may reach {clients} * 2**{grid_bits}, but "
        f"the widest ring holds 2**{RINGS[-1] - 2}. Take grid_bits of at most {most}, or fewer clients."
    )


def word_type(bits: int) -> np.dtype[Any]:
    """The unsigned type of a ring's words, little-endian as they are sent."""
    return np.dtype(f"<u{bits // 8}")


def checked_vector(vector: Any, dimension: int, grid_bits: int) -> NDArray[np.int64]:
    """`vector` if it is int64, of shape (dimension,), with a 2-norm of at most 2**grid_bits, exactly.

    Raises:
        ValueError: otherwise.
    """
    array = np.asarray(vector)
    if array.dtype != np.int64 or array.shape != (dimension,):
        raise ValueError(
            f"the vector has type {array.dtype} and shape {array.shape}, but the round sums int64 vectors of "
            f"shape ({dimension},): put the update on the grid first."
        )
    if square_of(array, grid_bits) > 4**grid_bits:
        raise ValueError(
            f"the vector's 2-norm exceeds 2**{grid_bits}, which the round's guarantee and ring rest on: clip "
            "it and put it on the grid of grid_bits, rounded towards zero. Noise is added to the sum, by the "
            "server, not to the vectors."
        )
    return array


def encode(vector: NDArray[np.int64], bits: int) -> Words:
    """The words of `vector` modulo 2**bits, a new array."""
    return vector.astype(word_type(bits))


def decode(words: Words) -> NDArray[np.int64]:
    """The folded sum: int64, at most 2**(w - 2) in absolute value, exact where the sum of the vectors is."""
    bits = 8 * words.dtype.itemsize
    signed = words.view(f"<i{bits // 8}")
    quarter = 1 << (bits - 2)
    folded = (words.dtype.type(1 << (bits - 1)) - words).view(signed.dtype)
    return np.where((signed > quarter) | (signed < -quarter), folded, signed).astype(np.int64)


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

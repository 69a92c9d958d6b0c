"""The generators behind noise, batches and allocation: ciphers in counter mode, read at any place.

Every address (domain and numbers) has a subkey of its own, derived from the run's 256-bit key. Byte i of its
keystream is a function of (key, address, i): any slice can be made alone, on any machine, in any order.
To tell a keystream from random bytes, or to compute one byte of it from others, is to break the cipher:
AES-256, or ChaCha20 (`anechoic.noise.chacha20`), which takes no instructions or tables of AES.

`cryptography` is imported when a keystream is first made; its calls release the GIL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.keys import checked_key, derive

BLOCK_BYTES = 16
WORDS_PER_BLOCK = 2
WORD = np.dtype("<u8")
COUNTERS = 2**128


class Keystream(ABC):
    """A keystream that consists of the blocks of the numbers 0, 1, … 2**128 - 1.

    Args:
        subkey: 32 bytes, used for this keystream alone.

    Attributes:
        block_words: words of 64 bits in a block.
    """

    __slots__ = ("_subkey",)
    block_words: ClassVar[int]

    def __init__(self, subkey: bytes) -> None:
        self._subkey = checked_key(subkey, "subkey")

    def reader(self, block: int) -> Callable[[bytes, memoryview], object]:
        """A function (zeros, buffer) that writes the next len(zeros) bytes, from block `block` on.

        The buffer is 15 bytes longer than that, which `cryptography` asks for, and len(zeros) a multiple
        of 16.
        """
        if not 0 <= block < COUNTERS:
            raise ValueError(f"block={block} must lie between 0 and 2**128 - 1.")
        return self._reader(block)

    @abstractmethod
    def _reader(self, block: int) -> Callable[[bytes, memoryview], object]:
        """`reader` of a block that there is."""

    def read(self, block: int, count: int) -> bytes:
        """`count` blocks from block `block` on."""
        size = 8 * self.block_words * count
        buffer = bytearray(size + BLOCK_BYTES - 1)
        self.reader(block)(bytes(size), memoryview(buffer))
        return bytes(buffer[:size])

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Words start … start + count - 1 of 64 bits, little-endian."""
        first = start // self.block_words
        blocks = -(-(start + count) // self.block_words) - first
        skipped = start - first * self.block_words
        found = np.frombuffer(self.read(first, blocks), WORD)
        return found[skipped : skipped + count].astype(np.uint64)

    @abstractmethod
    def at(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The blocks of numbers high * 2**64 + low, as words.

        Args:
            high, low: shape (k,).

        Returns:
            Shape (k, block_words).
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"


class AesCounter(Keystream):
    """The keystream of AES-256-CTR whose first counter block is 0.

    Block i is the encryption of i as a 128-bit big-endian number (NIST SP 800-38A, section 6.5).

    Args:
        subkey: 32 bytes, used for this keystream alone.
    """

    __slots__ = ()
    block_words = WORDS_PER_BLOCK

    def _reader(self, block: int) -> Callable[[bytes, memoryview], object]:
        write: Callable[[bytes, memoryview], object] = self._cipher(block).encryptor().update_into
        return write

    def at(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
        counters = np.empty((len(high), WORDS_PER_BLOCK), ">u8")
        counters[:, 0], counters[:, 1] = high, low
        encrypted = self._cipher(None).encryptor().update(counters.tobytes())
        return np.frombuffer(encrypted, WORD).astype(np.uint64).reshape(-1, WORDS_PER_BLOCK)

    def _cipher(self, block: int | None) -> Any:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # one block at a time is what counter mode is made of: ECB of numbers that never repeat
        mode = modes.ECB() if block is None else modes.CTR(block.to_bytes(BLOCK_BYTES, "big"))
        return Cipher(algorithms.AES256(self._subkey), mode)


def keystream(key: bytes, domain: str, *numbers: int) -> AesCounter:
    """The keystream of an address under a key, by AES-256.

    Args:
        key: 32 secret bytes.
        domain: what it is for.
        numbers: integers in [0, 2**64), such as a step.

    Raises:
        ValueError: as `derive`.
    """
    return AesCounter(derive(key, domain, *numbers, size=32))


class Integers:
    """Random integers that follow from (key, domain, numbers), drawn one after another.

    Given uniform words of 64 bits every law is exact: what would be unequal is drawn again.

    Args:
        key: 32 secret bytes.
        domain, numbers: address, as in `anechoic.noise.derive`.
    """

    def __init__(self, key: bytes, domain: str, *numbers: int) -> None:
        self._stream = keystream(key, domain, *numbers)
        self._used = 0

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Uniform integers in [0, 2**64), shape (count,)."""
        found = self._stream.words(self._used, count)
        self._used += count
        return found

    def below(self, limit: int, count: int) -> NDArray[np.int64]:
        """Uniform integers in [0, limit), shape (count,), for 1 <= limit <= 2**63."""
        if positive_int("limit", limit) > 2**63:
            raise ValueError(f"limit={limit} must be at most 2**63.")
        drawn = self.raw(count)
        last = np.uint64(2**64 - 2**64 % limit - 1)  # so many words are a multiple of the limit
        while len(unequal := np.flatnonzero(drawn > last)):
            drawn[unequal] = self.raw(len(unequal))
        return (drawn % np.uint64(limit)).astype(np.int64)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A uniform permutation of 0 … count - 1: the order of as many words, all different."""
        while True:
            drawn = self.raw(count)
            order = np.argsort(drawn, kind="stable")
            ordered = drawn[order]
            if not (ordered[1:] == ordered[:-1]).any():
                return order

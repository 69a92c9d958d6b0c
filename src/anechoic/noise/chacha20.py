"""ChaCha20 (RFC 8439): additions, exclusive ors and rotations of 32-bit words, which every device has.

`cryptography` makes long stretches of it on the CPU. The block function below is the same by arithmetic
alone: NumPy runs it for scattered blocks, torch for the words of a device. A signed word of 32 bits stands
for the unsigned one with the same bits: sums wrap, and a rotation masks what the arithmetic shift to the
right brings in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.noise.keystream import WORD, Keystream

BLOCK_BYTES = 64
ROUNDS = 20
#: "expand 32-byte k", the first four words of every block's state.
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_COUNTERS = 2**32  # that one nonce has
_AT_ONCE = 2**12  # scattered blocks that are made together: their state stays in a core's own cache


class ChaChaCounter(Keystream):
    """The keystream of ChaCha20 by the numbers of its blocks.

    Block i has the counter i mod 2**32 and the nonce floor(i / 2**32), little-endian (RFC 8439, section 2.3):
    all 128 bits that the state has besides the key. So a block number is never used twice under a subkey.

    Args:
        subkey: 32 bytes, used for this keystream alone.
    """

    __slots__ = ()
    block_words = BLOCK_BYTES // 8

    @property
    def key_words(self) -> list[int]:
        """The subkey as eight words of 32 bits, signed: as secret as itself."""
        return [int(word) for word in np.frombuffer(self._subkey, "<i4")]

    def _reader(self, block: int) -> Callable[[bytes, memoryview], None]:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        encryptor: Any = None
        left = 0

        def read(zeros: bytes, buffer: memoryview) -> None:
            nonlocal block, encryptor, left
            done = 0
            while done < len(zeros):
                if not left:  # a cipher object ends with the counters of its nonce
                    cipher = algorithms.ChaCha20(self._subkey, block.to_bytes(16, "little"))
                    encryptor = Cipher(cipher, mode=None).encryptor()
                    blocks = _COUNTERS - block % _COUNTERS
                    block, left = block + blocks, blocks * BLOCK_BYTES
                some = min(left, len(zeros) - done)
                encryptor.update_into(zeros[:some] if some < len(zeros) else zeros, buffer[done:])
                done, left = done + some, left - some

        return read

    def at(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
        found = np.empty((len(high), self.block_words), np.uint64)
        numbers = np.empty((len(high), 2), WORD)
        numbers[:, 0], numbers[:, 1] = low, high
        counters = numbers.view("<i4")
        for start in range(0, len(high), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            state = np.empty((16, len(counters[part])), np.int32)
            state[:12] = np.array([*CONSTANTS, *self.key_words], np.int32)[:, None]
            state[12:] = counters[part].T
            found[part] = np.ascontiguousarray(block_function(state, _turned).T, "<i4").view(WORD)
        return found


def block_function(state: Any, turned: Callable[[Any, int], Any]) -> Any:
    """The blocks of some states (RFC 8439, section 2.3.1), by operators that arrays of all kinds have.

    Args:
        state: signed words of 32 bits, shape (16, k): constants, key, number of the block.
        turned: (x, j) -> x[j], …, x[3], x[0], …, x[j-1] as new memory, for x of shape (4, k).

    Returns:
        Shape (16, k).
    """
    a, b, c, d = (state[row : row + 4] + 0 for row in range(0, 16, 4))
    for _ in range(ROUNDS // 2):
        a, b, c, d = _quarter_rounds(a, b, c, d)  # of the columns
        a, b, c, d = _quarter_rounds(a, turned(b, 1), turned(c, 2), turned(d, 3))  # of the diagonals
        b, c, d = turned(b, 3), turned(c, 2), turned(d, 1)
    made = state + 0
    for place, row in enumerate((a, b, c, d)):
        made[4 * place : 4 * place + 4] += row
    return made


def _quarter_rounds(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    a += b
    d ^= a
    d = _rotated(d, 16)
    c += d
    b ^= c
    b = _rotated(b, 12)
    a += b
    d ^= a
    d = _rotated(d, 8)
    c += d
    b ^= c
    return a, _rotated(b, 7), c, d


def _rotated(x: Any, bits: int) -> Any:
    right = x >> (32 - bits)
    right &= 2**bits - 1
    right |= x << bits
    return right


def _turned(x: NDArray[np.int32], j: int) -> NDArray[np.int32]:
    return x[[(place + j) % 4 for place in range(4)]]

"""Fresh rows: standard normal numbers as a function of (key, step, coordinate).

Coordinate i of row t has one 64-bit word of the keystream of (key, t), which AES-256 or ChaCha20 makes
under a domain of its own. Eleven bits choose one of 2,045 rectangles of equal mass under the normal curve
(`anechoic.noise.ziggurat`), 53 bits a point in it: one multiplication, whose bits are the same on every
machine. The three indices left over stand for the rest of the curve, tail included, which is sampled by
rejection with words addressed by (coordinate, attempt).

Guarantee: the variate is a real number, of which this is the float64 approximation and `enclosure` gives any
number of digits. Given uniform words its law is exactly N(0, 1) up to |z| < LARGEST; beyond lies a mass of
less than 10**-85. Entries are within ERROR of it, and then rounded once to the precision of the row. See
docs/proofs/noise.md#the-law-of-the-noise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.keys import derive, derive_each
from anechoic.noise.chacha20 import ChaChaCounter
from anechoic.noise.exact_variate import FurtherDraws, floor_of, variate
from anechoic.noise.keystream import BLOCK_BYTES, WORD, WORDS_PER_BLOCK, AesCounter, Keystream
from anechoic.noise.ziggurat import INDEX_BITS, layers
from anechoic.noise.ziggurat_tail import rest

# Entries that a thread works on at a time. They leave no trace in the row.
BLOCK = 2**20
AES, CHACHA = "AES-256", "ChaCha20"  # their names in arguments and saved states
#: What each cipher is made by, and the domains of its words and of the further ones.
CIPHERS: dict[str, tuple[type[Keystream], str, str]] = {
    AES: (AesCounter, "noise", "noise, further words"),
    CHACHA: (ChaChaCounter, "noise by ChaCha20", "noise by ChaCha20, further words"),
}
#: No variate is larger than this in absolute value.
LARGEST = 20.2036
#: Bound on |entry - variate|, absolute, for float64 entries of any size; 2**-50 for those below 4.
ERROR = 2.0**-48
_CHUNK = 2**15  # words: 256 KiB, so that what is computed of them stays in a core's own cache
_ZEROS = bytes(8 * _CHUNK)


class FreshRow:
    """Row z_t of standard normal numbers, any slice of which can be made alone.

    Args:
        key: 32 secret bytes.
        step: t, >= 0.
        cipher: one of CIPHERS.

    Attributes:
        words: the keystream, word i for coordinate i.
    """

    __slots__ = ("_details", "words")

    def __init__(self, key: bytes, step: int, cipher: str = AES) -> None:
        made, first, further = CIPHERS[cipher]
        self.words = made(derive(key, first, step, size=32))
        self._details = FurtherDraws(made(derive(key, further, step, size=32)))

    def fill(self, out: NDArray[np.floating], start: int, scale: float = 1.0) -> None:
        """out = scale * z_t[start : start + len(out)], rounded from float64.

        Args:
            out: float32 or float64, shape (k,).
            start: first coordinate, >= 0.
            scale: factor, applied in float64.
        """
        scratch, table = _SCRATCH, layers().steps
        odd = start % self.words.block_words  # the keystream comes in whole blocks
        read = self.words.reader((start - odd) // self.words.block_words)
        missing = []
        for begin in range(-odd, len(out), _CHUNK):
            stop = min(begin + _CHUNK, len(out))
            scratch.read(read, stop - begin)
            values = scratch.variates(table, stop - begin)
            first = max(begin, 0)
            values = values[first - begin :]
            if scale != 1.0:
                np.multiply(values, scale, out=values)
            out[first:stop] = values
            missing.append(scratch.missing(out[first:stop]) + first)
        places = np.concatenate(missing) if missing else np.zeros(0, np.int64)
        if len(places):
            out[places] = self.rest(places + start) * scale

    def rest(self, coordinates: NDArray[np.int64]) -> NDArray[np.float64]:
        """The variates of coordinates whose words stand for what the rectangles leave."""
        return rest(self._details, coordinates)

    def enclosure(self, coordinate: int, bits: int) -> tuple[int, int]:
        """Integers (low, exponent): the real variate lies in [low, low + 1] * 2**-exponent.

        Args:
            coordinate: i, >= 0.
            bits: binary digits wanted after the point, >= 0.

        Returns:
            floor(x * 2**bits) and `bits`: intervals for more bits lie in those for fewer. The float64 entry
            of the row is within ERROR of x.

        Raises:
            ValueError: if an argument is out of range.
        """
        word = int(self.words.words(positive_int("coordinate", coordinate, minimum=0), 1)[0])
        found = variate(word, self._details, coordinate)
        return floor_of(found, self._details, coordinate, positive_int("bits", bits, minimum=0)), bits


def fresh_rows(key: bytes, steps: range, start: int, length: int, cipher: str = AES) -> NDArray[np.float64]:
    """Entries start … start + length - 1 of z_t for each step t; shape (len(steps), length).

    They are those of `FreshRow.fill`, bit for bit. Where rows are short, many at once take far less time.

    Args:
        key: 32 secret bytes.
        steps: >= 0.
        start, length: a short slice: length at most 2**14.
        cipher: one of CIPHERS.
    """
    made, domain, _ = CIPHERS[cipher]
    found = np.empty((len(steps), length))
    odd = start % made.block_words
    blocks = -(-(odd + length) // made.block_words)
    width, first = made.block_words * blocks, (start - odd) // made.block_words
    group = max(1, _CHUNK // width)
    for begin in range(0, len(steps), group):
        some = steps[begin : begin + group]
        subkeys = derive_each(key, domain, some, size=32)
        _SCRATCH.put(b"".join([made(subkey).read(first, blocks) for subkey in subkeys]))
        values = _SCRATCH.variates(layers().steps, len(some) * width).reshape(len(some), width)
        part = found[begin : begin + group]
        part[...] = values[:, odd : odd + length]
        for place, column in np.argwhere(np.isnan(part)).tolist():
            row = FreshRow(key, some[place], cipher)
            part[place, column] = row.rest(np.array([start + column]))[0]
    return found


class _Scratch(threading.local):
    """Memory for one chunk, of each thread its own."""

    def __init__(self) -> None:
        raw = np.empty(8 * _CHUNK + BLOCK_BYTES, np.uint8)
        self._buffer = memoryview(raw.data)[: 8 * _CHUNK + BLOCK_BYTES - 1]
        self._words = raw[: 8 * _CHUNK].view(WORD).view("<i8")
        self._index = np.empty(_CHUNK, np.int64)
        self._values = np.empty(_CHUNK)
        self._steps = np.empty(_CHUNK)
        self._flags = np.empty(_CHUNK, bool)

    def read(self, read: Callable[[bytes, memoryview], object], count: int) -> None:
        """The next `count` words, rounded up to whole blocks."""
        size = -(-count // WORDS_PER_BLOCK) * BLOCK_BYTES
        if size == len(_ZEROS):
            read(_ZEROS, self._buffer)
        else:
            read(_ZEROS[:size], self._buffer[: size + BLOCK_BYTES - 1])

    def put(self, data: bytes) -> None:
        self._buffer[: len(data)] = data

    def variates(self, table: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Those of the first `count` words, NaN where the index stands for the rest."""
        words, index = self._words[:count], self._index[:count]
        values, steps = self._values[:count], self._steps[:count]
        np.bitwise_and(words, 2**INDEX_BITS - 1, out=index)
        table.take(index, out=steps, mode="clip")  # "raise" would copy; no index is out of range
        np.right_shift(words, INDEX_BITS - 1, out=words)
        np.bitwise_or(words, 1, out=words)  # 2 s + 1: the middle of the place s, of 53 bits with its sign
        np.copyto(values, words)
        return np.multiply(values, steps, out=values)

    def missing(self, values: NDArray[np.floating]) -> NDArray[np.int64]:
        return np.flatnonzero(np.isnan(values, out=self._flags[: len(values)]))


_SCRATCH = _Scratch()


def in_blocks(work: Callable[[slice], None], length: int, threads: int) -> None:
    """Call work(part) for every block of a row, on at most `threads` threads."""
    parts = [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]
    if min(threads, len(parts)) <= 1:
        for part in parts:
            work(part)
        return
    # made per call: a lasting pool would not survive a fork, and costs only 0.1 ms for rows this long
    with ThreadPoolExecutor(min(threads, len(parts))) as pool:
        for _ in pool.map(work, parts):
            pass


def available_threads() -> int:
    """Threads that this process may use: OMP_NUM_THREADS if it is set, else its share of the cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

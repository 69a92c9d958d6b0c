"""Variates as real numbers: as many digits as wanted, and decisions that float64 leaves open.

A variate is start + (place + u) * step with integers start, place, step and a number u of [0, 1) whose
binary digits are read from the keystream, as far as they are asked for. A proposal is accepted where such a
number, times a constant, is below the curve. Here both are enclosed in integers and decimals of growing
length until the answer is certain, so that the law is exact, not that of some floating-point function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from anechoic.noise.keystream import Keystream
from anechoic.noise.ziggurat import (
    GRID_BITS,
    INDEX_BITS,
    PICK_BITS,
    RECTANGLES,
    TAIL_STEP,
    layers,
    stack_height,
)

# what is read at (coordinate, attempt): four words of a proposal, further digits of its place and height
WORDS, PLACE, HEIGHT = range(3)
_PLACE_BITS = 52
_EXPONENT = GRID_BITS + _PLACE_BITS
_PROPOSAL = 4  # words of a proposal


@dataclass(frozen=True)
class FurtherDraws:
    """What is drawn beyond the one word that every coordinate has, addressed by (coordinate, attempt).

    Attempt 0 is the point in the rectangle; the proposals for the rest follow from 1 on. Where a block of the
    keystream has room for several proposals, attempts share it.
    """

    stream: Keystream

    @property
    def at_once(self) -> int:
        """Attempts that are best looked at together."""
        return 3 if self._sharing == 1 else 2 * self._sharing  # about half of all attempts are accepted

    @property
    def _sharing(self) -> int:
        """Attempts whose words lie in one block."""
        return max(1, self.stream.block_words // _PROPOSAL)

    def words(self, coordinate: int, attempt: int) -> list[int]:
        """Four words: piece, sign and place, height, step of the tail."""
        found: list[int] = self.proposals(np.array([coordinate]), attempt, 1)[0, 0].tolist()
        return found

    def proposals(self, coordinates: NDArray[np.int64], attempt: int, count: int) -> NDArray[np.uint64]:
        """The words of `count` attempts from `attempt` >= 1 on, shape (coordinates, count, 4)."""
        first, skipped = divmod(attempt - 1, self._sharing)
        groups = np.arange(first, (attempt + count - 2) // self._sharing + 1)
        indices = np.arange(max(1, _PROPOSAL // self.stream.block_words))
        low = ((groups + 1)[:, None] << 32 | WORDS << 24 | indices).reshape(-1)
        high = np.repeat(coordinates, len(low)).astype(np.uint64)
        found = self.stream.at(high, np.tile(low, len(coordinates)).astype(np.uint64))
        return found.reshape(len(coordinates), -1, _PROPOSAL)[:, skipped : skipped + count]

    def digits(self, coordinate: int, attempt: int, purpose: int, count: int) -> int:
        """The first `count` binary digits of a number of [0, 1), as an integer."""
        width = 64 * self.stream.block_words
        found, blocks = 0, -(-count // width)
        for index in range(blocks):
            low = np.array([attempt << 32 | purpose << 24 | index], dtype=np.uint64)
            for word in self.stream.at(np.array([coordinate], dtype=np.uint64), low)[0].tolist():
                found = found << 64 | word
        return found >> (width * blocks - count)


@dataclass(frozen=True)
class Segment:
    """sign * (start + (place + u) * step) * 2**-102, u uniform in [0, 1); `attempt` addresses its digits."""

    sign: int
    start: int
    place: int
    step: int
    attempt: int

    def interval(self, details: FurtherDraws, coordinate: int, extra: int) -> tuple[int, int, int]:
        """(low, high, exponent): the number before its sign lies in [low, high] * 2**-exponent."""
        place = self.place << extra | details.digits(coordinate, self.attempt, PLACE, extra)
        low = (self.start << extra) + place * self.step
        return low, low + self.step, _EXPONENT + extra


@dataclass(frozen=True)
class Proposal:
    """A point over one piece: `step` of the tail (0 elsewhere, -1 for none), words of place and height."""

    piece: int
    step: int
    place: int
    height: int


def variate(word: int, details: FurtherDraws, coordinate: int) -> Segment:
    """The variate of a coordinate, whose own word is given."""
    index = word % 2**INDEX_BITS
    if index < RECTANGLES:
        signed = (word if word < 2**63 else word - 2**64) >> 11
        return Segment(1, 0, signed, _on_grid(float(layers().widths[index])), 0)
    attempt = 1
    while True:
        proposed = proposal(details.words(coordinate, attempt))
        if accepts(details, coordinate, attempt, proposed):
            return candidate(proposed, attempt)
        attempt += 1


def proposal(words: list[int]) -> Proposal:
    """What four words propose."""
    pick, place, height, steps = words
    piece = int(layers().picks[pick % 2**PICK_BITS])
    step = 0 if piece else (steps & -steps).bit_length() - 1
    return Proposal(piece, step, place, height)


def candidate(proposed: Proposal, attempt: int) -> Segment:
    """The number that is proposed."""
    table, place = layers(), proposed.place
    start = _on_grid(float(table.starts[proposed.piece])) + proposed.step * _on_grid(TAIL_STEP)
    length = _on_grid(float(table.lengths[proposed.piece]))
    return Segment(1 - 2 * (place & 1), start << _PLACE_BITS, place >> 12, length, attempt)


def accepts(details: FurtherDraws, coordinate: int, attempt: int, proposed: Proposal) -> bool:
    """Whether the proposal lies under the curve, exactly.

    Args:
        details: digits beyond those of the words.
        coordinate, attempt: address of the proposal.
        proposed: what its words say.
    """
    piece, step, height = proposed.piece, proposed.step, proposed.height
    if step < 0:
        return False
    segment, ceiling = candidate(proposed, attempt), Decimal(float(layers().ceilings[piece]))
    length = Decimal(float(layers().lengths[piece])) * (1 if piece else 2 ** (step + 1))
    for extra in _lengths():
        low, high, exponent = segment.interval(details, coordinate, extra)
        drawn = height << extra | details.digits(coordinate, attempt, HEIGHT, extra)
        digits = 30 + (64 + extra) * 31 // 100
        below = stack_height(piece, digits)
        with localcontext(Context(prec=digits + 10)):
            slack, unit = Decimal(10) ** -digits, Decimal(2) ** -(64 + extra)
            least = length * (_curve(high, exponent) * (1 - slack) - below * (1 + slack))
            most = length * (_curve(low, exponent) * (1 + slack) - below * (1 - slack))
            if (drawn + 1) * unit * ceiling <= least:
                return True
            if drawn * unit * ceiling >= most:
                return False
    raise AssertionError("unreachable")


def floor_of(segment: Segment, details: FurtherDraws, coordinate: int, bits: int) -> int:
    """floor(x * 2**bits) of the variate x."""
    for extra in _lengths():
        low, high, exponent = segment.interval(details, coordinate, extra)
        if segment.sign < 0:
            low, high = -high, -low
        if exponent >= bits and low >> (exponent - bits) == (high - 1) >> (exponent - bits):
            return low >> (exponent - bits)
    raise AssertionError("unreachable")


def _curve(number: int, exponent: int) -> Decimal:
    x = Decimal(number) / Decimal(2**exponent)
    return (-x * x / 2).exp()


def _on_grid(value: float) -> int:
    return int(value * 2.0**GRID_BITS)


def _lengths() -> Iterator[int]:
    """0, 64, 128, 256, …: further binary digits to read."""
    yield 0
    extra = 64
    while True:
        yield extra
        extra *= 2

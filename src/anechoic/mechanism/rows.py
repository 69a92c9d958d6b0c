"""Integer rows of a mechanism's noise, to be added to sums of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import numpy as np

from anechoic.errors import GuaranteeError
from anechoic.keys import derive
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.noise.grid import MOST, Integers, default_bits

#: Bits below the clip norm: what truncation takes off one contribution is below 1e-8 of it.
_BITS = 28
#: The same where memory is long: below 1e-6.
_FEWEST_BITS = 20
#: Steps beyond two memories, and entries, with which rounding is tried; and how many times the noise.
_TRIED, _SPARE = (64, 4), 8.0
#: Numbers that are made ahead of their use.
_AT_ONCE = 2**14


def on_finest_grid(made: Callable[[int | None], Mechanism], dimension: int) -> Mechanism:
    """The mechanism with the most `grid_bits` for which its rows can be rounded exactly, or with none.

    Args:
        made: gives the mechanism with so many bits, or with sums in floating point (None).
        dimension: entries of a row, >= 1.
    """
    most = min(MOST, max(_BITS, default_bits(dimension)))
    fewest = min(most, max(_FEWEST_BITS, default_bits(dimension)))
    for bits in range(most, fewest - 1, -2):
        mechanism = made(bits)
        if _can_be_exact(mechanism, dimension):
            return mechanism
    return made(None)


def _can_be_exact(mechanism: Mechanism, dimension: int) -> bool:
    """Whether rows can be rounded exactly, with room to spare.

    Not where a memory that never fades has too many entries, nor where so many rows add up to one that
    float64 has no digits left for the grid. The latter depends on the noise that is drawn: it is tried with
    `_SPARE` times as much.
    """
    grid = 2.0 ** -(mechanism.grid_bits or 0)
    try:
        mechanism.stream(dimension)
        tried = NoiseStream(mechanism.strategy, _TRIED[1], std=_SPARE * mechanism.noise_std, grid=grid)
        state = tried.init()
        for _ in range(min(mechanism.steps, 2 * mechanism.strategy.recurrence().rows + _TRIED[0])):
            state = tried.next(state)[1]
    except GuaranteeError:
        return False
    return True


def grid_bits(mechanism: Mechanism, dimension: int) -> int:
    """Bits below the clip norm on which sums are added up: the mechanism's, or enough."""
    given = mechanism.grid_bits
    return min(MOST, max(_BITS, default_bits(dimension))) if given is None else given


class NoiseRows:
    """Rows of noise as integers, in units of clip_norm * 2**-bits.

    With `grid_bits` in the mechanism each is rounded exactly (docs/proofs/noise.md#exact-rounding). Without,
    rows are float64, rounded to the same grid: that hides the digits below it, but the rounded law is that of
    the float64 numbers, which is not exactly the Gaussian one.

    Args:
        mechanism: whose noise it is.
        dimension: entries of a row.
        key: 32 secret bytes.
        salts: (step, salt) of every opening of the run, in order: fresh rows from `step` on follow from the
            key and that salt; see `NoiseStream.rekey`.
    """

    def __init__(
        self, mechanism: Mechanism, dimension: int, key: bytes, salts: Iterable[tuple[int, bytes]] = ()
    ) -> None:
        self.exact = mechanism.grid_bits is not None
        self.bits = grid_bits(mechanism, dimension)
        self._spacing = mechanism.clip_norm * 2.0**-self.bits
        options = {} if self.exact else {"dtype": np.float64}
        self._stream: NoiseStream = mechanism.stream(dimension, key=key, **options)
        for step, salt in salts:
            self._stream.rekey(step, derive(key, f"opening {salt.hex()}", size=32))
        self.state = self._stream.init()

    @cached_property
    def identity(self) -> dict[str, object]:
        return self._stream.identity

    @property
    def rows(self) -> int:
        """Rows that the memory of the noise has; on a grid it is up to twice as large."""
        return int(self._stream.filter.rows)

    def next(self) -> Integers:
        return self.several(1)[0]

    def several(self, count: int) -> list[Integers]:
        """The next `count` rows; see `NoiseStream.several`."""
        rows, self.state = self._stream.several(self.state, count)
        return rows if self.exact else [np.rint(row / self._spacing).astype(np.int64) for row in rows]

    def ahead(self, count: int) -> Iterator[Integers]:
        """The same one by one, made some at a time: take them all, or `state` is ahead of its use."""
        width = max(1, _AT_ONCE // self._stream.length)
        for start in range(0, count, width):
            yield from self.several(min(width, count - start))

    def saved(self) -> tuple[int, str, tuple[int, ...], bytes]:
        """(step, dtype, shape, bytes) of the state."""
        rows = self.state.state_dict(copy=False)["rows"]
        return self.state.step, rows.dtype.str, rows.shape, np.ascontiguousarray(rows).tobytes()

    def restore(self, step: int, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        rows = np.frombuffer(data, dtype).reshape(shape)
        self.state = self._stream.restore({**self._stream.identity, "step": step, "rows": rows})

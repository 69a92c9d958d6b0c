"""Streams of correlated noise: init, next, and a state that is used once and can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn

from anechoic._validate import one_of, positive_float, positive_int
from anechoic.errors import CheckpointError, DesynchronizedError, HorizonError, MismatchError
from anechoic.keys import checked_key, derive, new_key
from anechoic.noise.filter_choice import BYTES, select_filter
from anechoic.noise.fresh import FreshRows, RowKeys
from anechoic.noise.gaussian import AES, CIPHERS
from anechoic.noise.recurrence import Recurrent
from anechoic.noise.torch_arrays import IntegerArrays, make_arrays

FORMAT = 1


class NoiseState:
    """What a stream keeps between two rows. `NoiseStream.next` consumes it and returns its successor.

    The memory is updated in place and handed on, so a state can be used once; it can be neither copied nor
    pickled. To keep it, use `state_dict`.
    """

    __slots__ = ("_memory", "_step", "_stream")

    def __init__(self, stream: NoiseStream, step: int, memory: Any) -> None:
        self._stream = stream
        self._step = step
        self._memory = memory

    @property
    def step(self) -> int:
        """Rows emitted so far, which is the index of the next one."""
        return self._step

    @property
    def consumed(self) -> bool:
        """Whether `next` has used this state."""
        return self._memory is None

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """All that `NoiseStream.restore` needs besides the stream itself: ints, strings and one array.

        It holds past noise and is as secret as the gradients that the noise hides. It does not hold the key,
        only a hash by which another key is recognised.

        Args:
            copy: whether the array is a copy. Without one nothing is allocated (on the CPU), but the array
                changes with the next row: write it to disk before that.

        Raises:
            DesynchronizedError: if the state has been consumed.
        """
        stream = self._stream
        used = self._living()[: stream.filter.used(self._step)]
        return stream.identity | {"step": self._step, "rows": stream.arrays.export(used, copy=copy)}

    def _living(self) -> Any:
        if self._memory is None:
            raise DesynchronizedError(
                f"this noise state was used for row {self._step} already, and a row belongs to one release: "
                "go on with the state that next() returned with that row. If next() was interrupted, restore "
                "a saved state."
            )
        return self._memory

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a NoiseState cannot be copied or pickled: noise would be used twice. Save state_dict() instead."
        )

    def __repr__(self) -> str:
        return f"NoiseState(step={self._step}{', consumed' if self.consumed else ''})"


class NoiseStream:
    """Rows of std * C^-1 Z one after another, Z of shape (n, m) with i.i.d. standard normal entries.

    Where C is rectangular with left inverse L, C^-1 stands for the lower-triangular R with R R^T = L L^T that
    `strategy.recurrence()` describes: R Z and L Z are the same noise, and one fresh row a step is enough
    (docs/proofs/sensitivity.md#more-rows-than-steps).

    Entry i of Z[t] is a function of (key, t, i) and the cipher; see `anechoic.noise.gaussian`. The stream
    does not change; what changes is the state:

        state = stream.init()
        row, state = stream.next(state)

    Guarantee: the emitted rows are those of std * C^-1 Z up to rounding in `dtype`, each once, none beyond
    n. Their bits are those of NumPy and torch, on any device, with any number of threads, and whether the
    row is made whole or in slices; a restored stream continues bit for bit. With a `grid` rounding is exact:
    see docs/proofs/noise.md#exact-rounding.

    Args:
        strategy: C, or anything else with a number of steps `n` and a `recurrence()`.
        dimension: m, entries of one whole row, >= 1.
        offset, length: the entries offset … offset + length - 1 that this stream emits of every row, by
            default all from `offset` on. Every slice is that of the whole row: processes that share a row
            take slices of it under one key.
        std: standard deviation of one entry of the scaled i.i.d. noise, > 0. For the noise of a sum of
            clipped gradients this is noise_std * clip_norm of a mechanism.
        key: 32 secret bytes, used for one stream only; None for fresh ones from the operating system.
        backend: "numpy" or "torch".
        dtype: float32 (default) or float64 of the backend.
        device: torch device of the rows, by default the CPU.
        memory: "store" keeps what later rows need. "regenerate" keeps nothing, and makes the fresh rows of
            earlier steps again, block by block in the cache: for moving averages (`BandedInverse`, `Output`)
            alone, of which each row takes as many fresh ones as the inverse has bands. The rows are the same
            noise as the stored ones, entry by entry but for rounding; on a grid the same integers. A number
            of bytes, or a text such as "2GB", stores what fits into it, and makes the rows again that do not.
            Memory is the host's, whatever the device.
        grid: rows are rounded to multiples of it, exactly, and emitted as int64 in units of it; None for
            floating point. The memory is then float64, for `BLT`s and states twice as much, for windows of 8
            rows and more up to 8 rows more.
        cipher: what fresh rows are drawn with: "AES-256", on the CPU whatever the device, or "ChaCha20",
            which a device draws itself where rows are floats that need no memory. A saved state belongs to
            one of them, and goes on with it on any device. The first is the faster one on CPUs that have
            instructions for it.

    Memory: bands, window or buffers of the strategy times `length` numbers, or none; see `memory_bytes`. The
    attribute `memory` is the word of those above that was chosen.

    Raises:
        ValueError: if an argument is out of range, or the dtype is below float32.

    Example:
        >>> import numpy as np
        >>> from anechoic.strategies import BandedToeplitz
        >>> stream = NoiseStream(BandedToeplitz(4, [1.0, 0.5]), 3, std=2.0, dtype=np.float64)
        >>> state, rows = stream.init(), []
        >>> for _ in range(stream.n):
        ...     row, state = stream.next(state)
        ...     rows.append(row)
        >>> fresh = [stream.fresh(t) for t in range(stream.n)]
        >>> bool(np.allclose(rows, 2.0 * stream.strategy.solve(fresh)))
        True

    References:
        Pillutla et al., Correlated Noise Mechanisms, Algorithms 2.1 (banded) and 2.2 (BLT).
    """

    def __init__(
        self,
        strategy: Recurrent,
        dimension: int,
        *,
        std: float = 1.0,
        key: bytes | None = None,
        backend: str = "numpy",
        dtype: Any = None,
        device: Any = None,
        offset: int = 0,
        length: int | None = None,
        memory: str | float = "store",
        grid: float | None = None,
        cipher: str = AES,
    ) -> None:
        if not isinstance(strategy, Recurrent):
            raise ValueError(f"strategy={strategy!r} must be a Strategy, such as strategies.Identity(n).")
        self.strategy = strategy
        self.n = strategy.n
        self.dimension = positive_int("dimension", dimension, remedy="It counts the entries of one row.")
        self.std = positive_float("std", std, remedy="A run without noise needs no stream.")
        self.offset = positive_int("offset", offset, minimum=0)
        self.length = positive_int("length", self.dimension - self.offset if length is None else length)
        if self.offset + self.length > self.dimension:
            raise ValueError(
                f"offset={self.offset} and length={self.length} go beyond the {self.dimension} entries of a"
                " row: choose a slice of it."
            )
        self.grid = None if grid is None else positive_float("grid", grid)
        self.cipher = one_of("cipher", cipher, tuple(CIPHERS))
        self.arrays: Any = (
            make_arrays(backend, dtype, device) if grid is None else IntegerArrays(backend, dtype, device)
        )
        std = self.std if self.grid is None else self.std / self.grid
        shape = self.dimension, self.length
        kept = select_filter(memory, strategy.recurrence(), std, *shape, self.arrays.precision)
        self.memory: str = kept[0]
        self.filter: Any = kept[1]
        if self.grid is not None:
            self.filter.drift()  # refuses what would drift too far
        self._key = new_key() if key is None else checked_key(key)
        self._keys = RowKeys(self._key, self.cipher)

    @property
    def key(self) -> bytes:
        """The 32 secret bytes that all rows follow from, those before the first `rekey`."""
        return self._key

    def rekey(self, step: int, key: bytes) -> None:
        """Draw Z[step] and all later fresh rows from another key. Those before stay what they were.

        So a run that goes on from a saved state never draws what a run before it may have drawn from there:
        the same state restored twice, with two keys, costs two independent releases. Exact rounding reads
        earlier fresh rows again, so that a restored stream is to be told all keys, in the order of steps.

        Args:
            step: not before that of the last call.
            key: 32 secret bytes.

        Raises:
            ValueError: for a step before that of an earlier call, or a key that is none.
        """
        self._keys.change(positive_int("step", step, minimum=0), key)

    @property
    def memory_bytes(self) -> int:
        """Bytes that a state keeps. Each emitted row is `length` numbers more."""
        rows: int = self.filter.rows
        return rows * self.length * BYTES[self.arrays.precision]

    def init(self) -> NoiseState:
        """Return the state before row 0. Another call gives the same rows again: release each once."""
        return NoiseState(self, 0, self.arrays.empty(self.filter.rows, self.length))

    def next(self, state: NoiseState, *, out: Any = None) -> tuple[Any, NoiseState]:
        """Return row `state.step` of std * C^-1 Z, shape (length,), and the state for the row after it.

        Args:
            state: the one returned with the row before; it is consumed, even where this call is interrupted.
            out: array to write the row into; None for a new one. Either is the caller's: the state keeps no
                reference to it.

        Raises:
            HorizonError: if all n rows have been emitted; the state stays as it is.
            DesynchronizedError: if `state` has been consumed.
            ValueError: if `state` belongs to another stream, or `out` does not fit.
        """
        self._check_left(state, 1)
        memory, t = state._living(), state._step
        row = self.arrays.empty(self.length) if out is None else self.arrays.check_row(out, self.length)
        plan = self.filter.plan(t)
        state._memory = None  # from here on the memory is between two steps, whatever happens

        self.arrays.run(plan, memory, row, FreshRows(self._keys, t, self.offset))
        return row, NoiseState(self, t + 1, memory)

    def several(self, state: NoiseState, count: int) -> tuple[list[Any], NoiseState]:
        """Return the next `count` rows, each as `next` gives it, and the state for the row after them.

        Rows of few entries on a grid, of a `BLT` without gains and restarts, take a tenth of the time so.

        Args:
            state: the one returned with the row before; it is consumed, even where this call is interrupted.
            count: >= 1.

        Raises:
            HorizonError: if fewer rows than `count` are left; the state stays as it is.
            DesynchronizedError, ValueError: as `next`.
        """
        self._check_left(state, positive_int("count", count))
        memory, t = state._living(), state._step
        made: list[Any] = []
        state._memory = None
        while len(made) < count:
            fresh = FreshRows(self._keys, t, self.offset)
            left = min(count - len(made), self._keys.alike(t))
            rows = [] if self.grid is None else self.arrays.several(self.filter, memory, left, fresh)
            if not rows:
                rows = [self.arrays.empty(self.length)]
                self.arrays.run(self.filter.plan(t), memory, rows[0], fresh)
            made += rows
            t += len(rows)
        return made, NoiseState(self, t, memory)

    def _check_left(self, state: NoiseState, count: int) -> None:
        if state._stream is not self:
            raise ValueError("this state belongs to another stream: use the one that made or restored it.")
        state._living()
        last = state._step + count - 1
        if last >= self.n:
            raise HorizonError(
                f"all {self.n} noise rows of this mechanism have been used: row {max(self.n, state._step)}"
                " would not be covered by its guarantee. To train for longer, calibrate a Mechanism with more"
                " steps."
            )

    def fresh(self, step: int) -> Any:
        """Return the i.i.d. row Z[step], shape (length,): what the emitted rows are made of.

        Raises:
            ValueError: if step is not in [0, n).
        """
        if positive_int("step", step, minimum=0) >= self.n:
            raise ValueError(f"step={step} must be below n={self.n}.")
        arrays = self.arrays if self.grid is None else self.arrays.floats
        row = arrays.empty(self.length)
        fresh = FreshRows(self._keys, step, self.offset)
        arrays.run(lambda columns: columns.draw(columns.row, 1.0), arrays.empty(0, 1), row, fresh)
        return row

    def restore(self, saved: Mapping[str, Any]) -> NoiseState:
        """Return the state that `NoiseState.state_dict` described; its array is copied.

        The rows from `saved["step"]` on are emitted again, bit for bit where nothing but the process changed.
        They may be used only for the same batches and the same model state as the first time.

        Raises:
            MismatchError: if the state was saved by a stream of another strategy, std, key, dimension, slice,
                cipher, backend or dtype.
            CheckpointError: if something is missing or damaged.
        """
        for name, expected in self.identity.items():
            if name not in saved:
                raise CheckpointError(f"the saved noise state has no {name!r}: it is not one, or damaged.")
            if type(saved[name]) is not type(expected) or saved[name] != expected:
                raise MismatchError(_difference(name, saved[name], expected))
        step, rows = saved.get("step"), saved.get("rows")
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= self.n:
            raise CheckpointError(
                f"the saved noise state has step={step!r}, but must lie between 0 and {self.n}."
            )
        memory = self.arrays.empty(self.filter.rows, self.length)
        try:
            self.arrays.load(rows, memory[: self.filter.used(step)])
        except ValueError as error:
            raise CheckpointError(f"the saved noise state of step {step} is damaged: {error}") from error
        return NoiseState(self, step, memory)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a saved state to continue this stream; holds no secret."""
        return {
            "format": FORMAT,
            "kind": self.filter.kind,
            "n": self.n,
            "dimension": self.dimension,
            "offset": self.offset,
            "length": self.length,
            "backend": self.arrays.backend,
            "precision": self.arrays.precision,
            "coefficients": self.filter.digest(),
            "cipher": self.cipher,
            "key_check": derive(self._key, "key check", size=16).hex(),
        }

    def __repr__(self) -> str:
        part = "" if self.length == self.dimension else f", offset={self.offset}, length={self.length}"
        return (
            f"NoiseStream({self.strategy!r}, dimension={self.dimension}, std={self.std}, "
            f"backend={self.arrays.backend!r}, precision={self.arrays.precision!r}{part})"
        )


def _difference(name: str, saved: Any, expected: Any) -> str:
    if name == "key_check":
        return (
            "the saved noise state was made with another key: resume with the key of the run that saved it."
        )
    if name == "coefficients":
        return (
            "the saved noise state was made with other coefficients or another std: resume with the "
            "Mechanism of the run that saved it."
        )
    return f"the saved noise state has {name}={saved!r}, but this stream has {name}={expected!r}."

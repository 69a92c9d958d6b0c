"""Where a stream stands between two instructions, kept in memory; `store` keeps it in a file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anechoic.errors import GuaranteeError, HorizonError
from anechoic.keys import checked_key, new_key
from anechoic.mechanism.rows import NoiseRows
from anechoic.runs import digests
from anechoic.streaming.clock import Window
from anechoic.streaming.columns import Integers
from anechoic.streaming.ledger import Table

#: Sums stay below this, so that with a row of noise they stay below 2**63.
SUM_LIMIT = 2**62
#: Numbers of later steps that are kept beside the open one, and written with every commit.
AHEAD = 2**20


@dataclass
class StreamState:
    """The state of a stream: all that its next instruction depends on but key, noise and releases.

    Attributes:
        step: releases made.
        open: sums of the open step, int64, shape (m,).
        total: row step - 1 of A Y, int64, shape (m,).
        counts: of records that were left out or changed, by reason; private.
        time: of the last release that had one.
        ahead: sums of later steps, which some records belong to already.
    """

    step: int
    open: Integers
    total: Integers
    counts: Counter[str]
    time: str | float | None = None
    ahead: dict[int, Integers] = field(default_factory=dict)

    @classmethod
    def first(cls, dimension: int) -> StreamState:
        """Return the state before anything."""
        return cls(0, np.zeros(dimension, np.int64), np.zeros(dimension, np.int64), Counter())

    def end_step(
        self, noise: Integers, over: Window, row_of: Callable[[int], Integers], time: str | float | None
    ) -> Integers:
        """Return row `step` of Y, which is the open step with its noise; begin the next step."""
        row = self.open + noise
        self.total = over.advance(self.total, row, self.step, row_of)
        self.step += 1
        self.open = self.ahead.pop(self.step, np.zeros(len(row), np.int64))
        self.time = self.time if time is None else time
        return row

    def add(self, step: int, sums: Integers) -> None:
        """Add sums to the open step or a later one."""
        if step == self.step:
            self.open = self.open + sums
        else:
            self.ahead[step] = self.ahead.get(step, 0) + sums

    def check_room(self, reach: int) -> None:
        """Refuse what could take a sum of the open step, or one over all steps, to `SUM_LIMIT` or beyond.

        Args:
            reach: what is to be added to an entry, at most in size.

        Raises:
            HorizonError: before anything was added; nothing that was added is lost.
        """
        waiting = np.abs(self.open) + sum(map(np.abs, self.ahead.values()))
        if int((np.abs(self.total) + waiting).max()) + reach >= SUM_LIMIT:
            raise HorizonError(
                "this batch could take a sum beyond the integers of 64 bits in which it is kept, so that it"
                " is refused as a whole. What was added before stays, and can be released. Begin another"
                " stream, whose privacy cost adds to this one's; a mechanism with fewer grid_bits holds more."
            )


class _Units(dict[bytes, bytes]):
    """Accounts of a stream without a state file."""

    def fetch(self, units: Iterable[bytes]) -> Mapping[bytes, bytes]:
        return self

    def write(self, changed: Mapping[bytes, bytes]) -> None:
        self.update(changed)


class InMemory:
    """State that ends with the process: nothing is copied, and nothing survives; `Store` keeps it in a file.

    Everything inside `transaction` is kept together or not at all.

    Attributes:
        key: of the stream.
        openings: from which step on which salt holds.
        salt: of this stream.
        units: accounts of them.
        kept: steps whose release is there for good. It grows when a transaction has ended: nobody may see a
            release before, whose row of noise is used again if the transaction is undone.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = new_key() if key is None else checked_key(key)
        self.salt = digests.new_salt()
        self.openings = [(0, self.salt)]  # two streams with one key share no noise
        self.units: Table = _Units()
        self._rows: list[tuple[str | float | None, bytes]] = []
        self._batches: dict[str, int] = {}
        self.kept = 0
        self._fault = False

    def check(self) -> None:
        """Refuse to go on after a failure."""
        if self._fault:
            raise GuaranteeError(
                "a change of this stream failed half-way, so that repeating it could count records twice, and"
                " without a state file there is no going back. What was released stays readable. Begin a new"
                " stream, whose privacy cost adds to this one's; with state= a stream survives this."
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep what happens inside; after a failure there, Ctrl-C among them, refuse all that follows."""
        self.check()
        self._fault = True
        yield
        self.kept = len(self._rows)
        self._fault = False

    def load(self, noise: NoiseRows) -> StreamState | None:
        """Return where the stream stood when it was saved last, and restore its noise; or None."""
        return None

    def save(self, *_: Any) -> None:
        """Keep where the stream stands, and its noise. In memory the stream's own objects are it."""

    close = save

    def step_of_batch(self, batch_id: str) -> int | None:
        """Return the step into which a batch went, or None."""
        return self._batches.get(batch_id)

    def mark(self, batch_id: str, step: int) -> None:
        """Note that a batch is part of a step."""
        self._batches[batch_id] = step

    def append(self, step: int, time: str | float | None, row: bytes) -> None:
        """Keep what was released: the noisy row Y[step], int64 as bytes."""
        self._rows.append((time, row))

    def published(self, step: int) -> tuple[str | float | None, bytes]:
        """Return the time and the noisy row of a step that was made."""
        return self._rows[step]


def checked_time(before: str | float | None, time: Any) -> str | float | None:
    """Return a time as built-in text or number, which can be kept, and not below that of the last release."""
    plain = time.item() if isinstance(time, np.generic) else time
    if isinstance(plain, str):
        plain = str.__str__(plain)
    elif isinstance(plain, int | float) and not isinstance(plain, bool) and abs(plain) <= sys.float_info.max:
        plain = int.__index__(plain) if isinstance(plain, int) else float.__float__(plain)
    elif plain is not None:
        raise ValueError(
            f"time={time!r:.60} must be text that sorts, as ISO 8601 in UTC (isoformat() of a datetime), a"
            " finite number, or None."
        )
    found: str | float | None = plain
    if found is None or before is None:
        return found
    if isinstance(plain, str) != isinstance(before, str):
        raise ValueError(f"time={plain!r} after {before!r}: give all times as text, or all as numbers.")
    if not plain >= before:
        raise ValueError(f"time={plain!r} lies before {before!r}, that of the last release: time went back.")
    return found

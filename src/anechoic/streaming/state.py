"""Where a stream keeps what it is in the middle of: in memory, or in one SQLite file (`store`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from anechoic.errors import GuaranteeError
from anechoic.keys import checked_key, new_key
from anechoic.mechanism.rows import NoiseRows
from anechoic.runs import openings
from anechoic.streaming.ledger import Table
from anechoic.streaming.stream_state import Standing


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
        units: accounts of them.
        kept: steps whose release is there for good. It grows when a transaction has ended: nobody may see a
            release before, whose row of noise is used again if the transaction is undone.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = new_key() if key is None else checked_key(key)
        self.openings = [(0, openings.new_salt())]  # two streams with one key share no noise
        self.units: Table = _Units()
        self._rows: deque[tuple[str | float | None, bytes]] = deque()
        self._first, self._made = 0, 0
        self._seen: dict[str, int] = {}
        self.kept = 0
        self._fault = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Nothing can be undone here: after a failure inside, Ctrl-C among them, there is no further one.

        Raises:
            GuaranteeError: after such a failure.
        """
        if self._fault:
            raise GuaranteeError(
                "a change of this stream failed half-way, so that repeating it could count records twice, and"
                " without a state file there is no going back. What was released stays readable. Begin a new"
                " stream, whose privacy cost adds to this one's; with state= a stream survives this."
            )
        self._fault = True
        yield
        self.kept = self._made
        self._fault = False

    def load(self, noise: NoiseRows) -> Standing | None:
        """Where the stream stood when it was saved last, and its noise with it; or None."""
        return None

    def save(self, standing: Standing, noise: NoiseRows) -> None:
        """In the place of what was saved before. Here the estimator's own are all there is."""

    def seen(self, batch_id: str) -> int | None:
        """The step into which a batch went, or None."""
        step = self._seen.get(batch_id)
        return None if self._fault and step is not None and step >= self.kept else step

    def mark(self, batch_id: str, step: int) -> None:
        """Note that a batch is part of a step."""
        self._seen[batch_id] = step

    def append(self, step: int, time: str | float | None, row: bytes) -> None:
        """Keep what was released: the noisy row Y[step], int64 as bytes."""
        self._rows.append((time, row))
        self._made = step + 1

    def published(self, step: int) -> tuple[str | float | None, bytes]:
        """The time and the noisy row of a step that was made, and is not forgotten."""
        if step < self._first:
            raise ValueError(f"step {step} is not kept any more: give the stream a larger keep, or a state.")
        return self._rows[step - self._first]

    def forget(self, before: int) -> None:
        """Rows of steps before this one are asked for no more."""
        while self._first < before:
            self._rows.popleft()
            self._first += 1

    def close(self) -> None:
        """Give everything back."""

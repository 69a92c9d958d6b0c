"""Where a stream keeps its state, and the key that it is opened with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from anechoic.errors import GuaranteeError
from anechoic.keys import checked_key, new_key
from anechoic.streaming.state import InMemory, State
from anechoic.streaming.store import Store

P = ParamSpec("P")
R = TypeVar("R")

#: 32 secret bytes, or a function that gives them when they are needed; None for fresh ones.
Key = bytes | Callable[[], bytes] | None


def alone(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method that changes a stream: see `OwnProcess.changing`, of its `owner`."""

    def waiting(self: Any, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self.owner.changing():
            return method(self, *arguments, **options)

    return wraps(method)(waiting)


class OwnProcess:
    """The process that a stream belongs to, as long as it is open, and whose turn it is in there."""

    def __init__(self) -> None:
        self._number = self._made_in = os.getpid()
        self._lock, self._inside = threading.RLock(), False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Alone: other threads wait. What this thread does inside may read, but not begin another change.

        Raises:
            GuaranteeError: as `check`; and for a change within a change, as from a signal handler.
        """
        self.check()  # before the lock too: in a fork it may be held by a thread that is not there
        with self._lock:
            self.check()
            if self._inside:
                raise GuaranteeError(
                    "update, release or steps was called from inside of such a call of the same stream (by a"
                    " signal handler, or by a batch that computes its entries): call it when the other has"
                    " returned. After an interrupt, open the stream again."
                )
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def reading(self) -> AbstractContextManager[Any]:
        """When no other thread changes the stream. A fork reads what it took along, without waiting."""
        return self._lock if self._made_in == os.getpid() else nullcontext()

    def leave(self) -> None:
        """The stream is closed."""
        self._number = -1

    def check(self) -> None:
        """Refuse a stream that is closed, or another process's.

        Raises:
            GuaranteeError: for such a stream.
        """
        if self._number == os.getpid():
            return
        if self._number == -1:
            raise GuaranteeError("this stream is closed: open its state file again.")
        raise GuaranteeError(
            f"this stream belongs to process {self._number}, and process {os.getpid()} is a fork of it:"
            " both would use the same rows of noise. Make the stream in the process that uses it."
        )


def opened(
    state: str | os.PathLike[str] | None,
    identity: str,
    labels: Mapping[str, tuple[str, ...]],
    *,
    key: Key,
    counter: str | os.PathLike[str] | None,
    adopt: bool,
) -> tuple[State, bytes, bytes]:
    """(state, key, salt) of a stream, in memory where no path is given.

    Raises:
        ValueError: for a counter without a state file, or a key that is none.
        CheckpointError, GuaranteeError: as `Store`.
    """
    secret = key() if callable(key) else key
    if state is not None:
        store = Store(state, identity=identity, labels=labels, key=secret, counter=counter, adopt=adopt)
        return store, store.key, store.salt
    if counter is not None:
        raise ValueError(f"counter={counter} without state: give state, the file that it counts for.")
    return InMemory(), new_key() if secret is None else checked_key(secret), b""

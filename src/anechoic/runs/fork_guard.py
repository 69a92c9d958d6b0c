"""Allow one process, and one thread at a time, where rows of noise are used up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from anechoic.errors import GuaranteeError

P = ParamSpec("P")
R = TypeVar("R")


def single_process(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorate a method that changes its object: see `ProcessGuard.changing`, of the `owner` there."""

    def waiting(self: Any, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self.owner.changing():
            return method(self, *arguments, **options)

    return wraps(method)(waiting)


class ProcessBound:
    """Mixin of stream and server: their state is closed at the end, and never copied.

    Attributes:
        owner: its process.
    """

    owner: ProcessGuard
    _state: Any

    def _give_back(self) -> None:
        """Give the state back; it can be opened again."""
        self._state.close()
        self.owner.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._give_back()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        what = f"a {self.owner.what} cannot be copied or pickled: its noise would be used twice."
        raise TypeError(f"{what} Give it a state.")


class ProcessGuard:
    """Process that an open stream or server belongs to, and the lock of its threads.

    Args:
        what: "stream" or "server", for messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._number = self._made_in = os.getpid()
        self._lock, self._inside = threading.RLock(), False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock out other threads. Inside, this thread may read, but not begin another change."""
        self.check()  # before the lock too: in a fork it may be held by a thread that is not there
        with self._lock:
            self.check()
            if self._inside:
                raise GuaranteeError(
                    f"a call that changes this {self.what} came from inside of another one (by a signal"
                    " handler, or by an argument that computes its entries): make it when the other has"
                    f" returned. After an interrupt, open the {self.what} again."
                )
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def reading(self) -> AbstractContextManager[Any]:
        """Wait until no other thread changes it. A fork reads what it took along, without waiting."""
        return self._lock if self._made_in == os.getpid() else nullcontext()

    def leave(self) -> None:
        """Close it."""
        self._number = -1

    def check(self) -> None:
        """Refuse one that is closed, or another process's."""
        if self._number == os.getpid():
            return
        if self._number == -1:
            raise GuaranteeError(f"this {self.what} is closed: open its state again.")
        raise GuaranteeError(
            f"this {self.what} belongs to process {self._number}, and process {os.getpid()} is a fork of it:"
            f" both would use the same rows of noise. Make the {self.what} in the process that uses it."
        )


class NonPicklable:
    """Mixin that refuses copy.copy, copy.deepcopy and pickle."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: the copy would make releases with the same"
            " noise rows, and their difference would show gradients. Copy the model alone, keep"
            " optimizer.state_dict(), and save a run with PrivacyEngine.save_checkpoint."
        )

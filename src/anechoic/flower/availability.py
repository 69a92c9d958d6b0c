"""Waiting for clients: bounded, and with a word now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from numbers import Real
from typing import Any, TypeVar

_log = getLogger("flwr")

There = TypeVar("There", bound=Mapping[Any, Any])

_TELL_EVERY = 10.0  # seconds
_LOOK_EVERY = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.125, 60.0  # between a short round and the next


@dataclass
class Waiting:
    """Waits for enough clients, at most `patience` seconds from `begin` on.

    Attributes:
        fewest: clients to wait for before a round.
        patience: seconds, >= 0.
        sleep, clock: for tests.
    """

    fewest: int
    patience: float
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        given: Any = self.patience
        if isinstance(given, bool) or not isinstance(given, Real) or not float(given) >= 0:
            raise ValueError(f"patience={self.patience!r} must be a number of seconds, at least 0.")
        self._told = -_TELL_EVERY
        self.begin()

    def begin(self) -> None:
        """A round begins now."""
        self._until = self.clock() + self.patience
        self._short = 0

    @property
    def over(self) -> bool:
        """Whether the patience for this round is spent."""
        return self.clock() >= self._until

    def for_enough(self, look: Callable[[], There]) -> There:
        """The clients that are there, once they are enough, or when the patience is spent."""
        there = look()
        while len(there) < self.fewest and not self.over:
            self.say(f"{len(there)} clients are there, {self.fewest} are waited for (min_available)")
            self._pause()
            there = look()
        return there

    def for_others(self, there: There, look: Callable[[], There]) -> There | None:
        """The clients that are there, once they are others than `there`; None when the patience is spent."""
        while not self.over:
            self._pause()
            now = look()
            if now.keys() != there.keys():
                return now
        return None

    def after_short(self) -> bool:
        """Pause before a short round is repeated, twice as long each time; False if the patience is spent.

        Every repetition charges clients again: those who are silent for a moment should not use up a
        population.
        """
        if self.over:
            return False
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._short, 16), self._until - self.clock())
        self._short += 1
        self.sleep(max(0.0, pause))
        return True

    def say(self, what: str) -> None:
        """Log it, but not more often than every ten seconds."""
        now = self.clock()
        if now - self._told >= _TELL_EVERY:
            self._told = now
            _log.info("waiting: %s; %.0f s of patience left", what, max(0.0, self._until - now))

    def _pause(self) -> None:
        self.sleep(max(0.0, min(_LOOK_EVERY, self._until - self.clock())))

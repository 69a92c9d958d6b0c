"""Exchange messages with clients within a time; what a client sends is opened here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from numbers import Real
from typing import Any, TypeVar

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from httpx import HTTPError

from anechoic._validate import positive_float

_log = getLogger("flwr")

Answer = TypeVar("Answer")
Found = TypeVar("Found")
There = TypeVar("There", bound=Mapping[Any, Any])

_TELL_EVERY = 10.0  # seconds
_LOOK_EVERY = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.125, 60.0  # between a short round and the next

# Errors of the connection to the SuperLink, not of a client: what failed is tried again.
AWAY = (OSError, HTTPError)
# Errors by which Flower says that a client did not answer. Every other one is what a client answered.
SILENT = frozenset(
    {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
)


def answer_in(reply: Message, read: Callable[[RecordDict], Answer]) -> Answer | None:
    """What `read` makes of a reply, or None where it is an error or `read` raises.

    The one place where what a client sent is opened. Nothing of it leaves as an exception.
    """
    if reply.has_error():
        return None
    try:
        return read(reply.content)
    except Exception as error:
        _log.warning("a reply was refused: it cannot be read (%s)", type(error).__name__)
        _log.debug("a reply cannot be read", exc_info=error)
        return None


@dataclass(frozen=True)
class MessageExchange:
    """Send messages and yield replies, polling more often at first than Flower's own loop.

    Attributes:
        timeout: seconds to wait for replies, > 0.
        shortest, longest: seconds between two looks; each wait is half as long again as the one before.
        sleep, clock: for tests.
    """

    timeout: float
    shortest: float = 0.05
    longest: float = 1.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        positive_float("timeout", self.timeout)

    def __call__(self, grid: Grid, messages: Sequence[Message]) -> Iterator[Message]:
        """Replies one by one, as they come, until all have, the time is over, or the caller has enough.

        The messages are sent now. One reply is fetched at a time: a sum needs no more of them at once.
        """
        pending: dict[str, Message] = {}
        if messages:
            names = self.reached(lambda: grid.push_messages(list(messages)))
            pending = {name: message for name, message in zip(names, messages, strict=True) if name}
        return self._replies(grid, pending)

    def reached(self, call: Callable[[], Found]) -> Found:
        """What a call to the SuperLink returns, tried again while the connection fails.

        Raises:
            OSError, httpx.HTTPError: if it still fails when the time is over.
        """
        end, wait = self.clock() + self.timeout, self.shortest
        while True:
            try:
                return call()
            except AWAY as error:
                left = end - self.clock()
                if left <= 0:
                    raise
                _log.warning("the SuperLink is not reached now (%s: %s)", type(error).__name__, error)
            self.sleep(min(wait, left))
            wait = min(1.5 * wait, self.longest)

    def _replies(self, grid: Grid, pending: dict[str, Message]) -> Iterator[Message]:
        end, wait = self.clock() + self.timeout, self.shortest
        while pending:
            for name in list(pending):
                found = _pulled(grid, name, pending[name])
                if found:
                    del pending[name]
                yield from found
            left = end - self.clock()
            if not pending or left <= 0:
                return
            self.sleep(min(wait, left))
            wait = min(1.5 * wait, self.longest)


def _pulled(grid: Grid, name: str, message: Message) -> Iterable[Message]:
    """The reply to one message, if it is there; an error reply where what came cannot be decoded."""
    try:
        return list(grid.pull_messages([name]))
    except AWAY as error:  # the reply is looked for again
        _log.warning("replies cannot be fetched now (%s: %s)", type(error).__name__, error)
        return []
    except Exception as error:
        _log.warning("a reply was refused: it is no message (%s)", type(error).__name__)
        _log.debug("a reply is no message", exc_info=error)
        return [Message(Error(ErrorCode.UNKNOWN, "a reply that is no message"), reply_to=message)]


@dataclass
class ClientWait:
    """Wait for enough clients, at most `patience` seconds from `begin` on.

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
        """Begin a round."""
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

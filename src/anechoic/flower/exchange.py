"""Messages out, replies in, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from anechoic._validate import positive_float


@dataclass(frozen=True)
class Exchange:
    """Sends messages and collects what comes back, asking more often at first than Flower's own loop.

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

    def __call__(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """All replies that came in time, whatever they are."""
        if not messages:
            return []
        if getattr(grid, "answers_at_once", False):
            return list(grid.send_and_receive(messages))
        pending = {name for name in grid.push_messages(list(messages)) if name}
        end = self.clock() + self.timeout
        wait, replies = self.shortest, list[Message]()
        while pending:
            found = list(grid.pull_messages(pending))
            replies += found
            pending.difference_update(reply.metadata.reply_to_message_id for reply in found)
            left = end - self.clock()
            if not pending or left <= 0:
                break
            self.sleep(min(wait, left))
            wait = min(1.5 * wait, self.longest)
        return replies

"""What takes more than three seconds says so, on the terminal of whoever waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Seconds after which a call says what it is at.
PATIENCE = 3.0
_WAITING: ContextVar[bool] = ContextVar("_WAITING", default=False)


@contextmanager
def patience(doing: str) -> Iterator[None]:
    """Say on a terminal's stderr what takes so long, once it does; calls inside of it say nothing more.

    A decorator of functions, too.
    """

    def say() -> None:
        print(f"anechoic: {doing}; this can take minutes. Ctrl-C stops it.", file=sys.stderr, flush=True)

    if _WAITING.get() or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    before = _WAITING.set(True)
    try:
        yield
    finally:
        _WAITING.reset(before)
        timer.cancel()

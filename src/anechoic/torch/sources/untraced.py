"""Where layers that ghost clipping traces are plain ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SUSPENDED = ContextVar("anechoic.ghost.suspended", default=False)


@contextmanager
def untraced() -> Iterator[None]:
    """Let traced layers be plain ones: what runs inside of this leaves no trace."""
    token = SUSPENDED.set(True)
    try:
        yield
    finally:
        SUSPENDED.reset(token)

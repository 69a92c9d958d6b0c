"""Openings of a run: each draws a salt, and fresh noise from its first row on follows from key and salt.

So what one process may have drawn is drawn by no other: a state that is opened twice, as an older version of
its file put back, costs two releases with independent noise, and never the exact difference of two.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from anechoic._validate import flag

#: 32 secret bytes, or a function that gives them when they are needed; None for fresh ones.
Key = bytes | Callable[[], bytes] | None
File = TypeVar("File")
Memory = TypeVar("Memory")


def new_salt() -> bytes:
    """16 random bytes; not secret."""
    return secrets.token_bytes(16)


def opened(
    file: Callable[..., File],
    memory: Callable[[bytes | None], Memory],
    state: str | os.PathLike[str] | None,
    *,
    key: Key,
    counter: str | os.PathLike[str] | None,
    adopt: bool,
    **of_run: Any,
) -> File | Memory:
    """The state of a run: in the file at `state`, or in memory where no path is given.

    Args:
        file: a `StateFile`, which is given key, counter, adopt and `of_run` too.
        memory: its like without a file, which is given the key.

    Raises:
        ValueError: for a counter without a state, a key that is none, or `adopt` that is no bool.
        CheckpointError, GuaranteeError: as `StateFile`.
    """
    secret, adopt = key() if callable(key) else key, flag("adopt", adopt)
    if state is not None:
        return file(state, key=secret, counter=counter, adopt=adopt, **of_run)
    if counter is not None:
        raise ValueError(f"counter={counter} without state: give state, the path of what it counts for.")
    return memory(secret)

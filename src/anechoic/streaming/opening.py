"""Where a stream keeps its state, and the key that it is opened with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from anechoic.streaming.state import InMemory
from anechoic.streaming.store import Store

#: 32 secret bytes, or a function that gives them when they are needed; None for fresh ones.
Key = bytes | Callable[[], bytes] | None
State = InMemory | Store


def opened(
    state: str | os.PathLike[str] | None,
    identity: str,
    shown: Mapping[str, str],
    *,
    key: Key,
    counter: str | os.PathLike[str] | None,
    adopt: bool,
) -> State:
    """The state of a stream, in memory where no path is given.

    Raises:
        ValueError: for a counter without a state file, or a key that is none.
        CheckpointError, GuaranteeError: as `Store`.
    """
    secret = key() if callable(key) else key
    if state is not None:
        return Store(state, identity=identity, shown=shown, key=secret, counter=counter, adopt=adopt)
    if counter is not None:
        raise ValueError(f"counter={counter} without state: give state, the file that it counts for.")
    return InMemory(secret)

"""Where a server keeps its state, and the key that it is opened with."""

from __future__ import annotations

import os
from collections.abc import Callable

from anechoic._validate import flag
from anechoic.federated.state import RunInMemory
from anechoic.federated.store import RunStore

#: 32 secret bytes, or a function that gives them when they are needed; None for fresh ones.
Key = bytes | Callable[[], bytes] | None


def opened(
    state: str | os.PathLike[str] | None,
    *,
    identity: str,
    key: bytes | None,
    counter: str | os.PathLike[str] | None,
    adopt: bool,
) -> RunInMemory | RunStore:
    """The state of a run, in memory where no path is given.

    Raises:
        ValueError: for a counter without a state, a key that is none, or `adopt` that is no bool.
        CheckpointError, GuaranteeError: as `RunStore`.
    """
    adopt = flag("adopt", adopt)
    if state is not None:
        return RunStore(state, identity=identity, key=key, counter=counter, adopt=adopt)
    if counter is not None:
        raise ValueError(f"counter={counter} without state: give state, the directory that it counts for.")
    return RunInMemory(key)

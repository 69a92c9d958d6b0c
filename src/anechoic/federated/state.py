"""State of a server in memory; `store` keeps it in a directory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.federated.clients import ClientId
from anechoic.federated.optimizers import Memory
from anechoic.keys import checked_key, new_key
from anechoic.runs import digests


@dataclass
class RunTally:
    """Counts of a run so far; see `RunReport`."""

    short: int = 0
    replies: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass
class RunStanding:
    """Where a server stands between two instructions.

    Attributes:
        step, attempt: releases made, and rounds of the open step that were short.
        asked: clients of the open round, or None.
        model: what is trained, float64, shape (m,).
        memory: of the server optimiser.
        fixed: arrays that are sent but not trained, by name.
        tally: what happened.
    """

    step: int
    attempt: int
    asked: tuple[ClientId, ...] | None
    model: Array
    memory: Memory
    fixed: Mapping[str, np.ndarray[Any, Any]]
    tally: RunTally


class RunInMemory:
    """State that ends with the process. `RunStore` has the same methods, and writes files.

    What is saved inside one `transaction` is kept together or not at all. `charge` saves entries of the
    ledger, `save_model` all else but noise, and `save` the same without vectors. `save_noise` saves the
    memory of the noise, every `rows_between` releases: the next `save` makes it count, `remember` reads it.

    Attributes:
        key, salt: of the run.
        openings: from which row of noise on which salt holds.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = new_key() if key is None else checked_key(key)
        self.salt = digests.new_salt()
        self.openings = [(0, digests.new_salt())]  # two servers with one key share no noise

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def load(self) -> RunStanding | None:
        """Return what was saved last, or None."""
        return None

    def entries(self) -> Mapping[bytes, bytes]:
        """Return the ledger, by digest of the client."""
        return {}

    def rows_between(self, rows: int) -> float:
        return math.inf

    def _keep_nothing(self, *_: Any) -> None:
        pass

    charge = save = save_model = save_noise = remember = close = _keep_nothing

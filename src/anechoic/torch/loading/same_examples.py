"""Whether an index still means the example that it meant: a data set may permute itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from anechoic.torch.loading.repeats import different
from anechoic.torch.randomness.generators import SEED_BYTES, seeded

logger = logging.getLogger("anechoic")

#: Examples looked at in a pass: a permutation leaves one in its place with probability 1/N.
LOOKED_AT = 2
_DOMAIN = "examples looked at"


class SameExamples:
    """Keeps two examples of the first pass that nobody can foresee, and fetches them again in each later one.

    Batches are drawn as indices, so a data set that shuffles itself breaks the guarantee. One that only
    augments by the epoch gives other values as well and is sound, so this warns, once, and refuses nothing.
    """

    def __init__(self) -> None:
        self._asked: list[int] = []
        self._seed = b""
        self._first: list[Any] | None = None
        self._said = False

    def look(
        self, fetch: Callable[[list[int]], list[Any]], examples: int, derived: Callable[..., bytes]
    ) -> None:
        """Fetch them, and compare with the first time.

        Args:
            fetch: examples by their indices; in this process.
            examples: N.
            derived: secret bytes of the run, see `ReleaseLedger.derived`.
        """
        if self._first is None:
            numbers = np.frombuffer(derived(_DOMAIN, size=8 * LOOKED_AT), dtype="<u8")
            self._asked = [int(number) % examples for number in numbers]
            self._seed = derived(_DOMAIN, 0, size=SEED_BYTES)
        with seeded(self._seed):
            found = fetch(self._asked)
        if self._first is None:
            self._first = tree_map(_copied, found)
        elif different(self._first, found, "examples") and not self._said:
            self._said = True
            logger.warning(
                "the data set has another example at an index than in the first pass. If it permutes itself"
                " (set_epoch, a shuffle), the guarantee does not hold: batches are drawn as indices, and"
                " examples then take part more often than is counted. Keep every example at its index, and"
                " leave the order to the loader. If only its augmentation follows the epoch, all is well."
            )


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value

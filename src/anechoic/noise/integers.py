"""Integers with exact laws from a keystream: what batches and allocations are drawn with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.noise.keystream import keystream


class Integers:
    """Random integers that follow from (key, domain, numbers), drawn one after another.

    Given uniform words of 64 bits every law is exact: what would be unequal is drawn again.

    Args:
        key: 32 secret bytes.
        domain, numbers: address, as in `anechoic.noise.derive`.
    """

    def __init__(self, key: bytes, domain: str, *numbers: int) -> None:
        self._stream = keystream(key, domain, *numbers)
        self._used = 0

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Uniform integers in [0, 2**64), shape (count,)."""
        found = self._stream.words(self._used, count)
        self._used += count
        return found

    def below(self, limit: int, count: int) -> NDArray[np.int64]:
        """Uniform integers in [0, limit), shape (count,), for 1 <= limit <= 2**63."""
        if positive_int("limit", limit) > 2**63:
            raise ValueError(f"limit={limit} must be at most 2**63.")
        drawn = self.raw(count)
        last = np.uint64(2**64 - 2**64 % limit - 1)  # so many words are a multiple of the limit
        while len(unequal := np.flatnonzero(drawn > last)):
            drawn[unequal] = self.raw(len(unequal))
        return (drawn % np.uint64(limit)).astype(np.int64)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A uniform permutation of 0 … count - 1: the order of as many words, all different."""
        while True:
            drawn = self.raw(count)
            order = np.argsort(drawn, kind="stable")
            ordered = drawn[order]
            if not (ordered[1:] == ordered[:-1]).any():
                return order

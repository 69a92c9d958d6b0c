"""What strategies made from another one share."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from anechoic._validate import (
    Array,
)
from anechoic.errors import UnsupportedError
from anechoic.strategies.base import Strategy


@dataclass(frozen=True, eq=False, repr=False)
class Wrapper(Strategy):
    """A strategy made from another, square or rectangular as that one is."""

    def solve(self, z: ArrayLike) -> Array:
        """C^-1 z along axis 0, where C is square; z has shape (n, ...).

        Raises:
            UnsupportedError: if C has more rows than columns, and therefore no inverse.
        """
        if self.rows != self.n:
            raise UnsupportedError(
                f"{self.describe()} has {self.rows} rows for {self.n} steps and no inverse: use correlate, or"
                " turn it into a square one with strategies.from_factorization."
            )
        return self.correlate(z)

"""Strategies of one workload by their number of bands, and their errors: computed once."""

from __future__ import annotations

from anechoic.losses import error
from anechoic.optimize import banded, banded_toeplitz
from anechoic.strategies import ColumnNormalized, Identity, Strategy
from anechoic.workloads import Workload

#: Longest run for which column-normalised strategies are tried: their error takes O(n bands) work.
NORMALIZE_UP_TO = 200_000
#: Longest run for which banded Toeplitz strategies are optimised.
BANDED_UP_TO = 10_000_000
#: Work, n bands^2, up to which the columns of a banded strategy are optimised one by one (some 0.3 s).
FREE_UP_TO = 150_000


class Designs:
    """Banded strategies for a Toeplitz workload.

    For as many groups or steps between participations as bands, all columns that one example touches are
    orthogonal, so that the best one for a single participation is the best one whatever the amplification.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._made: dict[int, Strategy] = {}
        self._errors: dict[int, float] = {}

    def toeplitz(self, bands: int) -> Strategy:
        """The best banded Toeplitz strategy, its columns normalised unless the run is very long."""
        if bands not in self._made:
            best: Strategy = banded_toeplitz(self.workload, bands=bands, loss="rms").strategy
            if bands == 1:
                best = Identity(self.workload.n)
            elif self.workload.n <= NORMALIZE_UP_TO:
                best = ColumnNormalized(best)
            self._made[bands] = best
        return self._made[bands]

    def error(self, bands: int) -> float:
        """RMS error of `toeplitz(bands)` for unit noise; its largest column norm is 1."""
        if bands not in self._errors:
            self._errors[bands] = error(self.workload, self.toeplitz(bands)).rms
        return self._errors[bands]

    def free(self, bands: int) -> Strategy | None:
        """The best banded strategy with columns of norm 1, where that is quick to find."""
        if not bands > 1 or self.workload.n * bands**2 > FREE_UP_TO:
            return None
        return banded(self.workload, bands=bands, loss="rms").strategy

"""Pattern of participation that shows the most: where ||C 1_pi|| comes nearest to the sensitivity."""

from __future__ import annotations

from functools import singledispatch
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.participation.base import Participation
from anechoic.strategies.base import Strategy

#: Most patterns that are compared.
MOST = 4096


def strongest_pattern(strategy: Strategy, participation: Participation) -> NDArray[np.bool_]:
    """An allowed pattern with large ||C 1_pi||, shape (n,), found among regular ones.

    It need not be the worst of all patterns: an audit with another one is a weaker audit, not a wrong one.

    Args:
        strategy: C.
        participation: what is allowed.
    """
    n = strategy.n
    compared = candidates(participation, n)
    best, strongest = compared[:, 0], -1.0
    for start in range(0, compared.shape[1], 256):
        block = compared[:, start : start + 256]
        norms = np.square(strategy.multiply(block.astype(np.float64))).sum(axis=0)
        if norms.max() > strongest:
            best, strongest = block[:, int(norms.argmax())], float(norms.max())
    return np.asarray(best, dtype=bool)


@singledispatch
def candidates(participation: Participation, n: int) -> NDArray[np.bool_]:
    """Allowed patterns that are compared, shape (n, at most `MOST`): here, the first that it lists."""
    found = np.zeros((n, MOST), bool)
    patterns = list(islice(participation.patterns(n), MOST))
    for j, pattern in enumerate(patterns):
        found[list(pattern), j] = True
    return found[:, : len(patterns)]


@candidates.register
def _(participation: FullBatch, n: int) -> NDArray[np.bool_]:
    return np.ones((n, 1), bool)


@candidates.register(Single)
@candidates.register(Cyclic)
@candidates.register(OncePerEpoch)
def _(participation: Single | Cyclic | OncePerEpoch, n: int) -> NDArray[np.bool_]:
    period = participation.contained_period(n)
    return np.asarray(np.arange(n)[:, None] % period == _spread(period))


@candidates.register
def _(participation: MinSep, n: int) -> NDArray[np.bool_]:
    gap, count = participation.separation, participation.max_participations_in(n)
    last = n - (count - 1) * gap
    offset = np.arange(n)[:, None] - _spread(last)
    return np.asarray((offset >= 0) & (offset % gap == 0) & (offset < count * gap))


def _spread(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, MOST)).astype(np.int64))

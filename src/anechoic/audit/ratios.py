"""The most powerful score where sampling is secret: the log-likelihood ratio over what was sampled.

The auditor knows C, the noise and the group of the unit, as the proof gives them away, but not the batches
it was in. With y_t = <C[:, t], Y g> a unit that takes part in the steps of pi has the log ratio
(2 sum of y_t over pi - ||C 1_pi||^2) / (2 s^2); each scheme takes its mean over pi in a file of its own, as a
product where columns that one unit can touch together are orthogonal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, positive_float
from anechoic.audit.hazards import Mask
from anechoic.audit.observation import inverted
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy, warn_dense


@dataclass(frozen=True, eq=False)
class StrategyColumns:
    """The strategy as likelihood ratios need it.

    Attributes:
        strategy: C, square.
        gram: C^T C, shape (n, n).
        variance: of one entry of Z, in clip norms.
        energy: ||C[:, t]||^2 / (2 variance), shape (n, 1).
        possible: steps at which a canary could be sampled, shape (n, m).
    """

    strategy: Strategy
    gram: Array
    variance: float
    energy: Array
    possible: Mask

    def overlap(self, sampling: Sampling) -> tuple[int, int] | None:
        """Two columns that one unit can touch together and that are not orthogonal, the worst; None if none.

        Entries are compared with the norms of their own columns.
        """
        together = np.triu(sampling.participation.together(len(self.gram)))
        norms = np.sqrt(self.gram.diagonal())
        cosines = np.where(together, np.abs(self.gram), 0.0) / norms / norms[:, None]
        if cosines.max() <= 1e-12:
            return None
        i, j = np.unravel_index(int(cosines.argmax()), cosines.shape)
        return int(i), int(j)

    def refuse_overlap(self, sampling: Sampling) -> None:
        """Refuse columns that a product formula needs apart.

        Raises:
            UnsupportedError: naming two of them.
        """
        found = self.overlap(sampling)
        if found is not None:
            raise UnsupportedError(
                f"columns {found[0]} and {found[1]} of C overlap, and {type(sampling).__name__} lets one unit"
                " touch both: the likelihood ratio is not a product, and no amplification is proved either."
                " Use fewer bands."
            )


@singledispatch
def log_ratio(sampling: Sampling, columns: StrategyColumns, moved: Array) -> Array:
    """log of the mean over the patterns drawn of exp(sum of moved - ||C 1_pi||^2 / (2 variance)), shape (m,).

    Args:
        sampling: an amplified scheme; each registers its own mean.
        columns: of the strategy.
        moved: y_t / variance of every canary, shape (n, m).

    Raises:
        UnsupportedError: for another scheme, or where columns overlap that the formula needs apart.
    """
    raise UnsupportedError(
        f"{type(sampling).__name__}: no likelihood ratio is implemented for this scheme. Without"
        " amplification use canary_scores."
    )


def likelihood_ratios(
    strategy: Strategy,
    sampling: Sampling,
    rows: ArrayLike,
    noise_std: float,
    *,
    possible: ArrayLike | None = None,
    opposite: bool = False,
) -> Array:
    """Log-likelihood ratio of "put in" against "left out" for every canary, shape (m,).

    Args:
        strategy: C, square.
        sampling: any amplified scheme.
        rows: released sums along the canaries' directions, in clip norms, shape (n, m).
        noise_std: std of one entry of Z, over the clip norm.
        possible: steps at which a canary could be sampled (those of its group), shape (n, m); None for all.
        opposite: whether "left out" means replaced by the opposite contribution (replace-one adjacency).

    Raises:
        UnsupportedError: for another scheme, or where columns overlap that the formula needs apart (random
            allocation, min-sep sampling).
    """
    variance = positive_float("noise_std", noise_std) ** 2
    y = inverted(strategy, rows)
    warn_dense(strategy.n, "likelihood_ratios")
    dense = strategy.to_dense()
    energy = np.square(dense).sum(axis=0)[:, None] / (2 * variance)
    allowed = np.ones(y.shape, bool) if possible is None else np.asarray(possible, dtype=bool)
    columns = StrategyColumns(strategy, dense.T @ dense, variance, energy, allowed)
    products = dense.T @ y / variance
    ratio = log_ratio(sampling, columns, products)
    return ratio - log_ratio(sampling, columns, -products) if opposite else ratio


def log_mix(rate: float, stay: Array, join: Array) -> Array:
    """log((1 - rate) exp(stay) + rate exp(join))."""
    return np.logaddexp(log_rest(rate) + stay, math.log(rate) + join)


def log_rest(rate: float) -> float:
    """log(1 - rate)."""
    return math.log1p(-rate) if rate < 1 else -math.inf

"""Log-likelihood ratios: the most powerful score where sampling is secret.

The auditor knows C, the noise and the group of the unit, as the proof gives them away, but not the batches
it was in. With y_t = <C[:, t], Y g> a unit that takes part in the steps of pi has the log ratio
(2 sum of y_t over pi - ||C 1_pi||^2) / (2 s^2); each scheme takes its mean over pi in a file of its own, as a
product where columns that one unit can touch together are orthogonal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, positive_float
from anechoic.audit.observation import inverted
from anechoic.audit.participation_law import StrategyColumns, law_of
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy, warn_dense


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
    y, law = inverted(strategy, rows), law_of(sampling)
    warn_dense(strategy.n, "likelihood_ratios")
    dense = strategy.to_dense()
    energy = np.square(dense).sum(axis=0)[:, None] / (2 * variance)
    allowed = np.ones(y.shape, bool) if possible is None else np.asarray(possible, dtype=bool)
    columns = StrategyColumns(strategy, dense.T @ dense, variance, energy, allowed)
    products = dense.T @ y / variance
    ratio = law.log_ratio(columns, products)
    return ratio - law.log_ratio(columns, -products) if opposite else ratio

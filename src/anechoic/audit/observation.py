"""Observation of one run by an audit, and the score of a canary in correlated noise.

A canary is a unit whose contribution to every sum it takes part in is one fixed direction g of norm 1 (in
clip norms), orthogonal to all other directions that occur. The release R = G + s C^-1 Z is inverted:
Y = C R = C G + s Z has i.i.d. noise, so canaries do not interfere, and the matched filter of a canary with
pattern pi,

    score = <C 1_pi g^T, Y> / ||C 1_pi||,

is N(0, s^2) without and N(||C 1_pi||, s^2) with it. Cross-terms between participations count in full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.strategies.base import Strategy


@dataclass(frozen=True, eq=False)
class Observation:
    """The released sums of one run along m canary directions, and what the auditor knows of the canaries.

    Args:
        rows: released noisy sums (not means) over the clip norm, projected on the directions, shape (n, m).
        participation: whether canary j is in batch t, shape (n, m), also for those that contribute nothing.
        contribution: what canary j adds where it takes part, along its direction, shape (m,): 1 if it is put
            in; if not, 0 (its contribution is zero), or -1 (it is replaced by its opposite).
        possible: steps at which canary j could have been sampled by what the proof gives away (its group),
            shape (n, m); None for all steps.

    Raises:
        ValueError: if shapes or values do not fit.
    """

    rows: Array
    participation: NDArray[np.bool_]
    contribution: Array
    possible: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        rows = np.asarray(self.rows, dtype=np.float64)
        part = np.asarray(self.participation, dtype=bool)
        contribution = np.asarray(self.contribution, dtype=np.float64)
        possible = np.ones(part.shape, bool) if self.possible is None else np.asarray(self.possible, bool)
        if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
            raise ValueError(
                f"rows have shape {rows.shape}: finite numbers of shape (steps, canaries) needed."
            )
        if part.shape != rows.shape or possible.shape != rows.shape:
            raise ValueError(
                f"participation {part.shape} and possible {possible.shape} must have the shape of rows,"
                f" {rows.shape}."
            )
        if (part & ~possible).any():
            t, j = np.argwhere(part & ~possible)[0].tolist()
            raise ValueError(f"canary {j} is in batch {t}, where it could not be: check `possible`.")
        if contribution.shape != rows.shape[1:] or not np.isin(contribution, (-1.0, 0.0, 1.0)).all():
            raise ValueError(f"contribution must hold 1, 0 or -1 for each of {rows.shape[1]} canaries.")
        for name, value in (
            ("rows", rows),
            ("participation", part),
            ("contribution", contribution),
            ("possible", possible),
        ):
            object.__setattr__(self, name, value)

    @property
    def put_in(self) -> NDArray[np.bool_]:
        """Which canaries are put in, shape (m,)."""
        return self.contribution > 0

    def noise(self) -> Array:
        """The emitted noise: rows without what the canaries added, shape (n, m)."""
        return self.rows - self.participation * self.contribution


def canary_scores(strategy: Strategy, rows: ArrayLike, participation: ArrayLike) -> tuple[Array, Array]:
    """Scores <C 1_pi, Y_j> / ||C 1_pi|| with Y = C rows, and the norms ||C 1_pi||, both of shape (m,).

    Args:
        strategy: C, square: with a rectangular one C R does not give the noise back.
        rows: shape (n, m), see `Observation`.
        participation: pattern of every canary, shape (n, m), or one for all, shape (n,).

    Returns:
        Scores (0 where a canary never takes part) and norms.

    Raises:
        UnsupportedError: if C is not square.
    """
    whole = inverted(strategy, rows)
    pattern = np.asarray(participation, dtype=np.float64)
    filters = strategy.multiply(pattern if pattern.ndim == 2 else pattern[:, None])
    norms = np.sqrt(np.square(filters).sum(axis=0))
    products = (filters * whole).sum(axis=0)
    norms = np.broadcast_to(norms, products.shape).copy()
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0), norms


def inverted(strategy: Strategy, rows: ArrayLike) -> Array:
    """Y = C rows, whose noise is independent, shape (n, m).

    Raises:
        UnsupportedError: if C is not square.
    """
    if strategy.rows != strategy.n:
        raise UnsupportedError(
            f"{strategy.describe()} is not square: C times the release does not give independent noise back,"
            " so this audit does not apply. Audit a square strategy."
        )
    return strategy.multiply(np.asarray(rows, dtype=np.float64))

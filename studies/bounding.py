"""How often one owner of many examples takes part in batches in time order, and how that is bounded.

Nothing here reads a feature or a label: who owns what, and in which batch it falls, is taken as public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import FullBatch, MinSep
from anechoic.participation.accounts import Accounts

Owners = NDArray[np.int64]

#: Separations that are tried, each with as many participations as fit into the run and with half of them.
SEPARATIONS = (16, 32, 64, 128)
#: Bounds whose predicted error is this close (relative) count as equal; the one that keeps most wins.
TOLERANCE = 0.05


@dataclass(frozen=True)
class ContributionBound:
    """Contribution bounding: what is used of an owner's examples.

    An owner takes part in a batch with all its examples there, or with none: with none where it took part
    less than `separation` batches ago, or `limit` times before. What others do has no part in it.

    Args:
        separation: least number of steps between two participations, >= 1.
        limit: most participations, >= 1.
    """

    separation: int
    limit: int

    def __post_init__(self) -> None:
        positive_int("separation", self.separation)
        positive_int("limit", self.limit)

    def kept(self, owners: Owners, batch_size: int, steps: int) -> NDArray[np.bool_]:
        """Which of the first steps * batch_size examples, in batches of their order, are used.

        Args:
            owners: owner of each example, 0, 1, …
            batch_size, steps: batch t holds the examples from t * batch_size on.

        Returns:
            Shape (N,); False for examples after the last batch.
        """
        keep = np.zeros(len(owners), dtype=bool)
        accounts = Accounts(MinSep(self.separation, self.limit), int(owners.max()) + 1)
        for t in range(steps):
            part = slice(t * batch_size, (t + 1) * batch_size)
            keep[part] = accounts.admit(t, owners[part])
        return keep


def batches_in_order(kept: NDArray[np.bool_], batch_size: int, steps: int) -> list[list[int]]:
    """Indices of the used examples of each batch."""
    ends = np.minimum(np.arange(steps + 1) * batch_size, len(kept)).tolist()
    return [(a + np.flatnonzero(kept[a:b])).tolist() for a, b in pairwise(ends)]


def participation_of(batches: Sequence[Sequence[int]], owners: Owners) -> MinSep:
    """The strictest min-sep promise that batches keep to: what their most frequent owners do.

    Args:
        batches: indices of the examples of each batch.
        owners: owner of each example, 0, 1, …

    Raises:
        ValueError: if nobody takes part.
    """
    accounts = Accounts(FullBatch(), int(owners.max()) + 1)
    for t, batch in enumerate(batches):
        accounts.admit(t, owners[np.asarray(batch, dtype=np.int64)])
    if not accounts.count.any():
        raise ValueError("no batch holds an example: there is nothing to promise.")
    return MinSep(min(len(batches), int(accounts.nearest.min())), int(accounts.count.max()))


def owners_in(batches: Sequence[Sequence[int]], owners: Owners) -> float:
    """Owners that take part in a batch, on average."""
    found = [len(np.unique(owners[np.asarray(batch, dtype=np.int64)])) for batch in batches]
    return float(np.mean(found))


def choose(
    owners: Owners,
    batch_size: int,
    steps: int,
    predicted: Callable[[MinSep, int], float],
) -> tuple[ContributionBound, list[dict[str, Any]]]:
    """The bound to take, and what was compared.

    Args:
        owners: owner of each example.
        batch_size, steps: of the batches in time order.
        predicted: error of the mechanism that `plan` chooses for a promise and a number of owners a batch.

    Returns:
        The one that keeps most examples among those whose predicted error is within 5 % of the least; and
        one entry a candidate.
    """
    rows: list[dict[str, Any]] = []
    for separation in [s for s in SEPARATIONS if s < steps] or [1]:
        fits = -(-steps // separation)
        for limit in sorted({fits, -(-fits // 2)}, reverse=True):
            kept = ContributionBound(separation, limit).kept(owners, batch_size, steps)
            batches = batches_in_order(kept, batch_size, steps)
            size = owners_in(batches, owners)
            promise = participation_of(batches, owners)
            rows.append(
                {
                    "separation": separation,
                    "limit": limit,
                    "kept": float(kept[: steps * batch_size].mean()),
                    "owners_a_batch": size,
                    "participations": promise.max_participations,
                    "predicted": predicted(promise, max(1, round(size))),
                }
            )
    least = min(row["predicted"] for row in rows)
    near = [row for row in rows if row["predicted"] <= least * (1 + TOLERANCE)]
    best = max(near, key=lambda row: row["kept"])
    return ContributionBound(best["separation"], best["limit"]), rows


def counts_in_order(owners: Owners, batch_size: int, steps: int) -> NDArray[np.float64]:
    """Examples of each owner in each batch of the order, shape (steps, owners)."""
    used = owners[: steps * batch_size]
    when = np.repeat(np.arange(steps), batch_size)[: len(used)]
    table = np.zeros((steps, int(owners.max()) + 1))
    np.add.at(table, (when, used), 1.0)
    return table


def owner_mu(mechanism: Mechanism, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a statement about single examples is worth for each owner of several: mu of Gaussian DP.

    An owner with m_t examples in batch t moves its sum by at most m_t clip norms, and so all releases by at
    most sqrt(m' |C'C| m) in every dimension (exactly so where C'C has no negative entry). Over the noise std,
    that is mu.

    Args:
        mechanism: of examples, without amplification, zero-out adjacency.
        counts: m, shape (steps, owners).

    Returns:
        Shape (owners,).
    """
    dense = mechanism.strategy.to_dense()
    gram = np.abs(dense.T @ dense)
    squares: NDArray[np.float64] = np.einsum("to,to->o", counts, gram @ counts)
    return np.sqrt(squares) / mechanism.noise_std

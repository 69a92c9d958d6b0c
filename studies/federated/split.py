"""How examples are spread over clients, and when each client is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import positive_float, positive_int

Indices = NDArray[np.int64]

#: Hours of a day; windows come back every day.
DAY = 24.0


def dirichlet_split(
    labels: ArrayLike, clients: int, concentration: float, rng: np.random.Generator
) -> list[Indices]:
    """Indices of the examples of each client: every class is cut by a Dirichlet law of its own.

    The smaller the concentration, the fewer classes a client has, and the more sizes differ. It is a
    partition, and no client is empty: one that the law gave nothing takes an example of the largest.

    Args:
        labels: class of each example, shape (examples,).
        clients: at least 1, and at most as many as examples.
        concentration: of the symmetric Dirichlet law over clients, > 0 (alpha).
        rng: of the law and the order.

    Raises:
        ValueError: for an argument out of range.

    References:
        Li et al., Federated learning on non-IID data silos, ICDE 2022 (label skew by Dirichlet laws).
    """
    classes = np.asarray(labels)
    if positive_int("clients", clients) > len(classes):
        raise ValueError(
            f"clients={clients} exceeds the {len(classes)} examples: each has at least one. Take fewer."
        )
    alpha = np.full(clients, positive_float("concentration", concentration))
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(classes):
        indices = rng.permutation(np.flatnonzero(classes == label))
        cuts = np.rint(np.cumsum(rng.dirichlet(alpha))[:-1] * len(indices)).astype(np.int64)
        for part, piece in zip(parts, np.split(indices, cuts), strict=True):
            part.append(piece)
    found = [rng.permutation(np.concatenate(part)) for part in parts]
    for empty in (i for i, part in enumerate(found) if not len(part)):
        rich = max(range(clients), key=lambda i: len(found[i]))
        found[empty], found[rich] = found[rich][:1], found[rich][1:]
    return found


@dataclass(frozen=True, eq=False)
class DailyWindows:
    """The daily window of each client: it is there from `start` on, for `length` hours of every day.

    Args:
        start: hour of the day, shape (clients,), in [0, 24).
        length: hours, shape (clients,), in (0, 24].
    """

    start: NDArray[np.float64]
    length: NDArray[np.float64]

    @classmethod
    def drawn(cls, clients: int, rng: np.random.Generator) -> DailyWindows:
        """Windows of 6 to 10 hours from around 22 o'clock on, give or take 3 hours: phones on a charger."""
        return cls(rng.normal(22.0, 3.0, clients) % DAY, rng.uniform(6.0, 10.0, clients))

    def there(self, hour: float) -> NDArray[np.bool_]:
        """Which clients are there, `hour` hours after the first midnight."""
        return (hour - self.start) % DAY < self.length

    def __len__(self) -> int:
        return len(self.start)

"""Success rates of the best attacker, from the trade-off curve.

The attacker sees everything that is released and knows everything but one unit. Whatever it computes, its
true and false positive rates lie below a curve: that of N(mu, 1) against N(0, 1) for a mu-GDP release, which
the likelihood ratio reaches, and two lines for an (epsilon, delta)-DP one. The lowest of those that are known
holds. Proofs: docs/proofs/budget.md#attack-risk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtr, ndtri

from anechoic.statement.rounding import round_up

#: Probabilities before the attack, shares of others that are accused, and numbers of equally likely values.
PRIORS, ACCUSED, VALUES = (0.5, 0.1, 0.01), (0.1, 0.01, 0.001), (2, 10, 100)
_SLACK = 1e-12  # relative, of what ndtr and ndtri may lose


@dataclass(frozen=True)
class Attacker:
    """The best attacker on a release that is (epsilon, delta)-DP for each point, and mu-GDP if mu is given.

    Args:
        points: (epsilon, delta), each >= 0; at least one.
        mu: > 0, or None.
        replaced: whether neighbours differ by a replacement, so that any two values of a unit are neighbours.
    """

    points: tuple[tuple[float, float], ...]
    mu: float | None = None
    replaced: bool = False

    def true_positive_rate(self, accused: float) -> float:
        """Largest true positive rate: of members, where a share `accused` of the others is accused too."""
        rates = [1.0]
        for epsilon, delta in self.points:
            rates.append(1.0 - math.exp(-epsilon) * max(0.0, 1.0 - delta - accused))
            if accused == 0.0 or epsilon + math.log(accused) < 0.0:
                rates.append(accused * math.exp(epsilon) + delta if accused else delta)
        if self.mu is not None:
            rates.append(float(ndtr(ndtri(accused) + self.mu)))
        return min(1.0, min(rates) * (1 + _SLACK))

    def accuracy(self, prior: float) -> float:
        """Largest probability of being right about a unit that is in with probability `prior`, in (0, 1)."""
        rare = min(prior, 1.0 - prior)
        strike = (1.0 - rare) / rare
        gains = [1.0]
        for epsilon, delta in self.points:
            gains.append(max(delta, 1.0 - (1.0 + strike) * _corner(epsilon, delta)))
        if self.mu is not None:
            middle = math.log(strike) / self.mu
            gains.append(float(ndtr(self.mu / 2 - middle) - strike * ndtr(-self.mu / 2 - middle)))
        return min(1.0, (1.0 - rare) + rare * (max(0.0, min(gains)) + _SLACK))

    def believed(self, prior: float, accused: float) -> float:
        """Largest share of members among those whom it accuses, where it accuses `accused` of the others."""
        caught = prior * self.true_positive_rate(accused)
        return caught / (caught + (1.0 - prior) * accused)

    def guessing_rate(self, values: int) -> float:
        """Largest probability of naming the one of so many equally likely values that a unit has."""
        best = self.true_positive_rate(1.0 / values)
        return min(best, self.accuracy(0.5)) if self.replaced and values == 2 else best

    def record(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "from": "(epsilon, delta)" + " and the Gaussian curve of mu" * (self.mu is not None),
            "membership": [
                {
                    "prior": p,
                    "right": self.accuracy(p),
                    "by_chance": max(p, 1.0 - p),
                    "believed_at_1_percent": self.believed(p, 0.01),
                }
                for p in PRIORS
            ],
            "rates": [{"false_positive": r, "true_positive": self.true_positive_rate(r)} for r in ACCUSED],
            "attribute": [{"values": k, "right": self.guessing_rate(k), "by_chance": 1 / k} for k in VALUES],
        }

    def sentence(self, unit: str) -> str:
        """For people."""
        whether = f"which of two {unit} records is in" if self.replaced else f"whether one {unit} is in"
        return (
            f"who sees all releases and knows everything but {whether}, which is as likely as not, is right"
            f" with probability at most {round_up(self.accuracy(0.5))} (0.5 by chance), and finds at most"
            f" {round_up(100 * self.true_positive_rate(0.01))} % of those who are in where 1 % of the others"
            f" are accused too; which of 10 equally likely values one {unit} has is guessed with probability"
            f" at most {round_up(self.guessing_rate(10))} (0.1 by chance)"
        )


def attacker_of(record: Mapping[str, Any]) -> Attacker | None:
    """That of a statement's record; None for one without epsilon."""
    said = record.get("guarantee", {})
    if "epsilon" not in said:
        return None
    points = ((said["epsilon"], said["delta"]), *map(tuple, said.get("profile", ())))
    return Attacker(points, said.get("mu"), record.get("adjacency", {}).get("name") == "replace_one")


def _corner(epsilon: float, delta: float) -> float:
    """The false positive rate at which both lines meet, where the false negative rate is the same."""
    return (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))

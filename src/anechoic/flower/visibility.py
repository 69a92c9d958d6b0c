"""What the server gets to see of single clients, as `CorrelatedFedOpt` is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.serverapp.strategy import Strategy

from anechoic._validate import flag, positive_int
from anechoic.federated.compatibility import check_fewest
from anechoic.federated.secure_sum.terms import SMALLEST_SUM, least_threshold


@dataclass(frozen=True)
class Seen:
    """Single updates or masked sums, and what leaves clients without protection.

    Attributes:
        masked: whether only sums of updates are seen.
        smallest_sum: fewest clients in a masked sum.
        metrics: names of numbers that clients send unprotected.
        evaluation: the strategy by which clients evaluate models, or None.

    Raises:
        ValueError: for what excludes each other, or is no collection of names.
    """

    masked: bool
    smallest_sum: int
    metrics: tuple[str, ...]
    evaluation: Strategy | None

    def __post_init__(self) -> None:
        given: Any = self.metrics
        if isinstance(given, str):
            raise ValueError(
                f"unprotected_metrics={given!r} must be a collection of names, such as [{given!r}]."
            )
        object.__setattr__(self, "metrics", tuple(given))
        object.__setattr__(self, "masked", flag("masked", self.masked))
        if self.masked and self.metrics:
            raise ValueError(
                f"unprotected_metrics={list(self.metrics)} would show single clients to the server,"
                " from which masked=True hides them: give one of the two."
            )
        positive_int("smallest_sum", self.smallest_sum, minimum=2)
        if not self.masked and self.smallest_sum != SMALLEST_SUM:
            raise ValueError(
                f"smallest_sum={self.smallest_sum} is for masked sums: give masked=True with it."
            )

    @property
    def setting(self) -> dict[str, Any]:
        """By which a state that is opened again is recognised: what leaves is the same for the whole run."""
        return {
            "masked": self.masked,
            "unprotected_metrics": sorted(self.metrics),
            "unprotected_evaluation": type(self.evaluation).__name__,
        }

    def fewest(self, given: int | None, clients_per_round: int, asked: int) -> int:
        """The fewest answers for a release: `given`, or what it is where nothing is.

        Args:
            asked: most clients asked in a round, of whose replies `clients_per_round` are taken.

        Raises:
            ValueError: for another number than from 1, or `smallest_sum` with masks, to `clients_per_round`.
        """
        least = self.smallest_sum if self.masked else 1
        if clients_per_round < least:
            raise ValueError(
                f"clients_per_round={clients_per_round} with masked=True: a sum has at least"
                f" smallest_sum={least} clients. Ask more in a round, or give a smaller smallest_sum= here"
                " and to ClippedUpdate at the clients."
            )
        if self.masked and least_threshold(asked) > clients_per_round:
            raise ValueError(
                f"a masked sum needs more than two thirds of the {asked} clients asked, but a round takes"
                f" {clients_per_round} replies: give over_selection below .5."
            )
        fewest = check_fewest(least if given is None else given, clients_per_round)
        if fewest < least:
            raise ValueError(
                f"min_replies={given} with masked=True: a sum has at least smallest_sum={least} clients, so"
                " take as many or more."
            )
        return fewest

    @property
    def updates(self) -> str:
        """How updates reach the server, and what it is trusted with for that."""
        if not self.masked:
            return "single updates reach the server"
        return (
            f"sums only of at least {self.smallest_sum} reach the server (masks), which is trusted to follow"
            " the protocol: masks guard against looking, not against a server that lies"
        )

    def lines(self) -> Iterable[tuple[str, str]]:
        """(heading, text) pairs for the statement."""
        yield "Updates", f"{self.updates}."
        if self.metrics:
            yield (
                "No protection",
                f"the numbers {', '.join(self.metrics)}, which each client asked sends as they are: the"
                " server sees them, and their means are in the result.",
            )
        if self.evaluation is not None:
            yield (
                "No protection",
                "what clients answer when they evaluate a model, and the means of it"
                f" ({type(self.evaluation).__name__}).",
            )

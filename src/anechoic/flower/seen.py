"""What the server gets to see of single clients, as `CorrelatedFedOpt` is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.serverapp.strategy import Strategy

from anechoic._validate import flag
from anechoic.federated.clients import ClientId
from anechoic.federated.fitting import check_fewest
from anechoic.federated.secure_sum.keys import checked_identity


@dataclass(frozen=True)
class Seen:
    """Single updates or masked sums, and what leaves clients without protection.

    Attributes:
        masked: whether only sums of updates are seen.
        signers: public Ed25519 keys by client, 32 bytes each, for masked sums that are signed; or None.
        metrics: names of numbers that clients send unprotected.
        evaluation: the strategy by which clients evaluate models, or None.

    Raises:
        ValueError: for what excludes each other, or is no collection of names or keys.
    """

    masked: bool
    signers: Mapping[ClientId, bytes] | None
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
        if self.signers is None:
            return
        if not self.masked:
            raise ValueError("signers are for masked sums: give masked=True with them, or leave them out.")
        if not isinstance(self.signers, Mapping) or not self.signers:
            raise ValueError(
                f"signers={self.signers!r} must map every client that may take part to its public Ed25519"
                " key."
            )
        keys = [checked_identity(key, f"signers[{client!r}]") for client, key in self.signers.items()]
        if len(set(keys)) < len(keys):
            raise ValueError("signers gives two clients one key: each signs with a key of its own.")

    @property
    def setting(self) -> dict[str, Any]:
        """By which a state that is opened again is recognised: what leaves is the same for the whole run."""
        found: dict[str, Any] = {
            "masked": self.masked,
            "unprotected_metrics": sorted(self.metrics),
            "unprotected_evaluation": type(self.evaluation).__name__,
        }
        return found if self.signers is None else {**found, "signed": True}

    def fewest(self, given: int | None, clients_per_round: int) -> int:
        """The fewest answers for a release: `given`, or what it is where nothing is.

        Raises:
            ValueError: for another number than from 1, or 2 with masks, to `clients_per_round`.
        """
        if given is None:
            given = 2 if self.masked else 1
        if self.masked and given == 1:
            raise ValueError(
                "min_replies=1 with masked=True: a sum of one update hides nothing, so take 2 or more."
            )
        return check_fewest(given, clients_per_round)

    @property
    def updates(self) -> str:
        """How updates reach the server, and what it is trusted with for that."""
        if not self.masked:
            return "single updates reach the server"
        if self.signers is None:
            return (
                "sums only reach the server (masks), which is trusted to follow the protocol: the keys of"
                " masks are signed by nobody, and two sums of the same updates would show single ones"
            )
        return (
            "sums only reach the server (masks); each client signs the keys of its masks, and takes none that"
            " are not signed by clients it knows, which guards against swapped keys and split lists within"
            " one sum. The server is trusted to make no second sum of the same updates: if one client is in"
            " one of the two only, their difference is its update"
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

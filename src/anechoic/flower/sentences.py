"""What the statement of a run says of its clients, and of what leaves them unprotected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anechoic.flower.identity import ClientIdentity


def statement_of_run(
    statement: str, identity: ClientIdentity, metrics: Sequence[str], evaluation: object | None
) -> str:
    """The server's statement with a section on what Flower's side adds.

    Args:
        statement: of `federated.Server`.
        identity: how clients are known.
        metrics: names of numbers that clients send unprotected.
        evaluation: the strategy by which clients evaluate models, or None.
    """
    lines = [("Clients", identity.sentence), *_unprotected(metrics, evaluation)]
    own = "\n".join(f"{head:<21}{words}" for head, words in lines)
    return f"{statement}\n\nFLOWER\n{own}"


def _unprotected(metrics: Sequence[str], evaluation: object | None) -> Iterable[tuple[str, str]]:
    if metrics:
        yield (
            "No protection",
            f"the numbers {', '.join(metrics)}, which each client asked sends as they are: the server sees"
            " them, and their means are in the result.",
        )
    if evaluation is not None:
        yield (
            "No protection",
            "what clients answer when they evaluate a model, and the means of it"
            f" ({type(evaluation).__name__}).",
        )

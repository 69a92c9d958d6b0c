"""Report of what a run enforces and what happened in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anechoic.federated.ledger import ParticipationSummary
from anechoic.federated.participation_policy import ParticipationPolicy
from anechoic.federated.state import RunStanding
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.statement_text import KEYS
from anechoic.sampling.base import counted
from anechoic.statement.formats import render
from anechoic.statement.rounding import round_up
from anechoic.statement.statement import statement_of


@dataclass(frozen=True)
class RunReport:
    """Report of a run so far.

    Attributes:
        released, rounds: releases made, and planned.
        epsilon, delta: of the releases made; epsilon is that of the next power of two of them.
        short: rounds that were closed without a release: too few had answered.
        replies: that were answers, refused ones among them.
        refused: replies that did not count, by reason; not for publication, as it depends on what was sent.
        ledger: participations so far, those of short rounds too.
    """

    released: int
    rounds: int
    epsilon: float
    delta: float
    short: int
    replies: int
    refused: dict[str, int]
    ledger: ParticipationSummary

    @classmethod
    def of(cls, standing: RunStanding, mechanism: Mechanism, ledger: ParticipationSummary) -> RunReport:
        """Return the report of a server in this state."""
        # few different numbers of steps: each takes a sensitivity of its own
        steps = min(mechanism.steps, 2 ** max(0, standing.step - 1).bit_length()) if standing.step else 0
        spent = mechanism.epsilon(steps=steps), mechanism.delta
        return cls(standing.step, mechanism.steps, *spent, **vars(standing.tally), ledger=ledger)

    def __str__(self) -> str:
        return "\n".join(f"{head:<21}{text}" for head, text in self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """(heading, text) pairs."""
        refused = ", ".join(f"{count} x {reason}" for reason, count in sorted(self.refused.items()))
        return [
            (
                "Released",
                f"{self.released} of {counted(self.rounds, 'round')}; epsilon so far at most"
                f" {round_up(self.epsilon)}",
            ),
            ("Ledger", str(self.ledger)),
            ("Rounds", f"{self.short} short"),
            ("Replies", f"{self.replies}; refused: {refused or 'none'}"),
        ]


def statement_of_run(
    report: RunReport,
    mechanism: Mechanism,
    policy: ParticipationPolicy,
    clients_per_round: int,
    *,
    durable: bool,
) -> str:
    """What the server adds to its mechanism's statement, and that statement. It holds no secret.

    Args:
        durable: whether the ledger outlives the process.
    """
    unit = mechanism.unit
    lines = [
        ("Protected", f"one {unit}: all its updates, in all rounds together"),
        (
            "Participation",
            f"{policy.participation.describe()}. Enforced by {policy.describe()['kind']}: charged"
            f" {'and on disk ' if durable else ''}before anything is sent, also for rounds that release"
            f" nothing{'' if durable else '. The ledger ends with the process: there is no state directory'}",
        ),
        *report.lines()[:2],
        (
            "One update",
            f"norm at most {mechanism.clip_norm!r} over all arrays together, rounded towards zero to"
            f" integers; equal weights; every sum is divided by {clients_per_round}, however many answer",
        ),
        ("Noise", "one row a release, on the sum, before the server optimiser"),
        (
            "Trusted",
            "the server, with every update as it comes, with the noise and with the key. Clients are trusted"
            " with nothing: what they send is clipped here",
        ),
        (
            "Not protected",
            f"which {unit}s are there, are asked and answer, and when; a {unit} whose data decide whether"
            " or how soon it answers shows that. Metrics, counts and whatever else a message carries beside"
            " the update",
        ),
        ("Chosen in advance", "clip norm, learning rates and rounds: without looking at the data"),
        ("Proof", "sensitivity.md#federated-rounds, under 'Proofs' in the documentation"),
    ]
    text = "\n".join(f"{head:<21}{words}." for head, words in lines)
    stated = replace(statement_of(mechanism), duties=_duties(unit, durable))
    return f"FEDERATED RUN\n{text}\n\n{render(stated, 'text')}"


def _duties(unit: str, durable: bool) -> tuple[str, ...]:
    """What a federation must still ensure, in the place of what a training loop must."""
    return (
        f"each update uses one {unit}'s data alone: that {unit}'s, and models that were released before",
        KEYS,
        "only released models leave: they, and what is computed from them"
        + ("; the state directory, which holds noise and key, stays" if durable else ""),
        "one server goes on from one state directory: started again, from the newest one; of two copies"
        " only one goes on, and a budget book tells an older one"
        if durable
        else "the run ends with this server: another one has a ledger of its own, and its privacy"
        " cost adds up with this one",
        "other releases add up: those from the same data, with this one",
    )

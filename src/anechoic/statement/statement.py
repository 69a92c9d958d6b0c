"""Privacy statements as data, laid out by the files beside this one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from anechoic.statement.attacker import attacker_of
from anechoic.statement.theorem import Theorem


@dataclass(frozen=True)
class Assumption:
    """Something about the access to data that the theorem takes for granted.

    Attributes:
        who: keeps the promise.
        what: the promise.
    """

    who: str
    what: str


@dataclass(frozen=True)
class Statement:
    """A privacy statement, ready to be laid out.

    Attributes:
        items: (heading, text) pairs, in the order a reviewer reads.
        assumptions: on the access to data, with who keeps them.
        observer: what the guarantee is against: what they see and know, and what they do not.
        proofs: theorems that the numbers rest on.
        duties: what a deployment must still ensure.
        not_covered: what is outside the guarantee.
        software: name -> version.
        fingerprint: of the mechanism, or a sentence saying why there is none.
        record: the numbers and names, as plain data.
    """

    items: tuple[tuple[str, str], ...]
    assumptions: tuple[Assumption, ...]
    observer: str
    proofs: tuple[Theorem, ...]
    duties: tuple[str, ...]
    not_covered: tuple[str, ...]
    software: dict[str, str]
    fingerprint: str
    record: dict[str, Any]

    @property
    def attack(self) -> list[tuple[str, str]]:
        """What an attacker gains at most, as one more item; none where there is no epsilon."""
        attacker = attacker_of(self.record)
        return [] if attacker is None else [("Attacker", attacker.sentence(str(self.record["unit"])))]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Everything but the software as (heading, text) pairs."""
        return [
            *self.items,
            *self.attack,
            ("Access to data", "; ".join(f"{each.who}: {each.what}" for each in self.assumptions)),
            ("Observer", self.observer),
            ("Deployment", "; ".join(self.duties)),
            ("Not covered", "; ".join(self.not_covered)),
            ("Proofs", "; ".join(f"{proof.title}: docs/proofs/{proof.page}" for proof in self.proofs)),
            ("Fingerprint", self.fingerprint),
        ]


@singledispatch
def statement_of(mechanism: object) -> Statement:
    """The statement of anything that gives a guarantee: each kind registers what it says.

    Raises:
        TypeError: for a kind that has registered nothing.
    """
    raise TypeError(f"{type(mechanism).__name__} has no privacy statement: register one with statement_of.")

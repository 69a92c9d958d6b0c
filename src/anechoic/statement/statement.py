"""Privacy statements as data, laid out by the files beside this one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

from anechoic.statement.attacker import attacker_of
from anechoic.statement.theorem import Theorem

_ABOUT = {"data": "Data set", "model": "Model"}
_UNDER = "under 'Proofs' in the documentation: "
#: Keeps what a reviewer need not sign for.
LIBRARY = "the library's sampler (anechoic.torch, anechoic.batches)"


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

    def about(self, **said: str) -> Statement:
        """Say what was trained on what (`data`, `model`), or leave these lines to be filled in."""
        if not all(isinstance(words, str) for words in said.values()):
            given = " and ".join(f"{name}={type(words).__name__}" for name, words in said.items())
            raise ValueError(f"{given} must be your words for it, such as data='Flights, 2008'.")
        lines = tuple((_ABOUT[name], words or "______") for name, words in said.items())
        record = self.record | {name: words or None for name, words in said.items()}
        return replace(self, items=lines + self.items, record=record)

    @property
    def attack(self) -> tuple[tuple[str, str], ...]:
        """What an attacker gains at most, as one more item; none where there is no epsilon."""
        attacker = attacker_of(self.record)
        return () if attacker is None else (("Attacker", attacker.sentence(str(self.record["unit"]))),)

    @property
    def signed(self) -> list[tuple[str, str]]:
        """The lines that a reviewer signs, of which `pairs` are the details."""
        said, told = dict(self.items), self.record
        first = {"Guarantee": said["Guarantee"]}
        if "Delta" in said:
            permitted = said["Delta"].rpartition(": ")[2].partition(";")[0]
            first["Delta"] = permitted.replace("one of them as it is", "one record")
        first["Privacy unit"] = said["Privacy unit"].split(". Enforced")[0]
        first["Adjacency"] = told["adjacency"]["meaning"]
        first |= {key: said[key] for key in ("Data set", "Model", "Runs", "Released") if key in said}
        if "Batches" in said:
            formed, divisor = re.split("[:,]", said["Batches"])[0], said["Divisor"].split()[-1]
            first["Batches"] = f"{formed}; every noisy sum is divided by {divisor}"
        if (promise := said.get("Participation", "")) not in said["Privacy unit"]:
            first["Participation"] = promise
        if noise := told.get("noise"):
            sensitivity = told["sensitivity"]
            kind = " (unamplified)" * ("unamplified" in said["Sensitivity"])
            kind += ", exact" if sensitivity["exact"] else ", an upper bound"
            std = f"std {noise['std']:.6g} x clip norm {noise['clip_norm']!r}"
            first |= {
                "Noise": f"Gaussian, {std} before it is correlated",
                "Mechanism": f"{told['strategy']['name']}; sensitivity {sensitivity['value']:.6g}{kind}",
            }
        way = said.get("Also", said["Notion"])
        way = "amplified by secret batches" if told["guarantee"].get("epsilon_is_amplified") else way
        sure = told.get("accounting", {}).get("confidence")
        if not sure and "fail together" in said["Notion"]:  # of a composition
            sure = "the bounds fail" + said["Notion"].split("fail together")[1].replace("which is ", "")
        kept = (each.what for each in self.assumptions if each.who != LIBRARY)
        first["Accounting"] = f"{way}; {sure}" if sure else way
        for heading, sentences in (("Deployment", (*kept, *self.duties)), ("Not covered", self.not_covered)):
            first[heading] = "; ".join(sentence.split(": ")[0] for sentence in sentences)
        return [*first.items(), ("Fingerprint", self.fingerprint)]

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
            ("Proofs", _UNDER + "; ".join(f"{each.title}: {each.page}" for each in self.proofs)),
            ("Fingerprint", self.fingerprint),
        ]


@singledispatch
def statement_of(mechanism: object) -> Statement:
    """The statement of anything that gives a guarantee: each kind registers what it says, or it has none."""
    raise TypeError(f"{type(mechanism).__name__} has no privacy statement: register one with statement_of.")

"""Policies of participation: cohorts of a fixed population, or a least separation in an open one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.participation import Cyclic, MinSep
from anechoic.participation.base import Participation
from anechoic.sampling.base import counted

Integers = NDArray[np.int64]

#: Clients there should be, of those that a plan needs at the very least.
SPARE = 1.2


@dataclass(frozen=True)
class ParticipationPolicy(ABC):
    """Policy of participation: which steps a client may take part in; turns of groups narrow it.

    A client that was asked in a step may be asked again in the same step, where the first round of it was
    short: it still takes part in one step, and in one release.
    """

    @property
    @abstractmethod
    def participation(self) -> Participation:
        """What it enforces, for the mechanism."""

    def turn(self, step: int, groups: Integers) -> NDArray[np.bool_]:
        """Whether the step is a turn of each of `groups`; always, by default."""
        return np.ones(len(groups), bool)

    def check_supply(self, *, rounds: int, clients: int, per_round: int) -> str | None:
        """Refuse a plan whose rounds so many clients cannot fill; return a warning where they just can.

        Clients that are away, silent or charged for a short round come on top of those who rest.

        Raises:
            ValueError: with the arithmetic.
        """
        if per_round > clients:
            raise ValueError(
                f"a round of {counted(per_round, 'client')} needs as many different ones, but there are"
                f" {clients}. Plan at most {counted(clients, 'client')} a round, or with more clients."
            )
        most, apart = self.participation.max_participations_in(rounds), self.apart(rounds)
        wanted, supplied = per_round * rounds, clients * most
        if wanted > supplied:
            raise ValueError(
                f"{counted(per_round, 'client')} x {counted(rounds, 'round')} ="
                f" {counted(wanted, 'participation')}, but {counted(clients, 'client')} that take part at"
                f" most {counted(most, 'time')} each ({self!r}) supply {clients} x {most} = {supplied}. Plan"
                " fewer rounds or smaller ones, or let clients take part more often."
            )
        if per_round * apart > clients:
            raise ValueError(
                f"{counted(per_round, 'client')} x {apart} rounds = {per_round * apart} different clients,"
                f" since nobody takes part in two of {apart} rounds in a row ({self!r}), but there are"
                f" {clients}. Plan smaller rounds, or at most {counted(clients // per_round, 'round')} from"
                " one participation to the next."
            )
        needed = max(per_round * apart, -(-wanted // most))
        if apart == 1 or clients >= SPARE * needed:
            return None
        return (
            f"{clients} clients for {counted(per_round, 'client')} x {apart} rounds that nobody takes part in"
            f" twice ({self!r}) leave little to spare: {needed} are needed at least. Where more are away or"
            f" silent for one round, no client can be asked any more, and the run ends. Plan for"
            f" {math.ceil(SPARE * needed)} clients, smaller rounds or a shorter rest."
        )

    @abstractmethod
    def apart(self, rounds: int) -> int:
        """Return how many rounds in a row need different clients."""

    def groups(self, digests: NDArray[np.uint64]) -> Integers:
        """What `turn` is to know of each client; nothing by default.

        Args:
            digests: keyed ones of the ids, shape (clients, 2), uniform for whoever lacks the key.
        """
        return np.zeros(len(digests), np.int64)

    def remark(self, rounds: int) -> str | None:
        """Return a warning for a run of so many rounds, or None."""
        return None

    def describe(self) -> dict[str, Any]:
        """Kind and settings, as plain data, by which a run is recognised."""
        return {"kind": type(self).__name__, **vars(self)}


def checked_policy(policy: Any) -> ParticipationPolicy:
    """Return `policy`, or refuse what is none with a ValueError."""
    if not isinstance(policy, ParticipationPolicy):
        raise ValueError(f"policy={policy!r} must be Cohorts(count) or MinSeparation(separation, …).")
    return policy


@dataclass(frozen=True)
class Cohorts(ParticipationPolicy):
    """Fixed population in `count` cohorts: step t asks clients of cohort t mod count, and no others.

    Each client takes part in steps of one residue at most, `Cyclic(count)`. A keyed hash of its id says in
    which, so that cohorts differ in size, and a client that joins later joins as the others did.

    Args:
        count: number of cohorts, >= 1 (monograph: b).

    Raises:
        ValueError: for an argument out of range.
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", positive_int("count", self.count))

    @property
    def participation(self) -> Participation:
        return Cyclic(self.count)

    def turn(self, step: int, groups: Integers) -> NDArray[np.bool_]:
        return np.asarray(groups == step % self.count)

    def groups(self, digests: NDArray[np.uint64]) -> Integers:
        return (digests[:, 0] % np.uint64(self.count)).astype(np.int64)

    def apart(self, rounds: int) -> int:
        return self.count  # cohorts that no round reaches hold their share of the clients too

    def remark(self, rounds: int) -> str | None:
        if self.count <= rounds:
            return None
        return (
            f"Cohorts(count={self.count}) are more than the {counted(rounds, 'round')} of the run: clients of"
            f" {counted(self.count - rounds, 'cohort')} are never asked, and nobody takes part twice. Take"
            f" count={rounds} or fewer, unless that is meant."
        )


@dataclass(frozen=True)
class MinSeparation(ParticipationPolicy):
    """Open population: who took part in step t may again from step t + separation on, so many times.

    The participation is `MinSep(separation, max_participations)`.

    Args:
        separation: >= 1 (monograph: b).
        max_participations: >= 1, or None for as many as fit (monograph: k).
    """

    separation: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        checked = MinSep(self.separation, self.max_participations)
        object.__setattr__(self, "separation", checked.separation)
        object.__setattr__(self, "max_participations", checked.max_participations)

    @property
    def participation(self) -> Participation:
        return MinSep(self.separation, self.max_participations)

    def apart(self, rounds: int) -> int:
        return min(self.separation, rounds)

    def remark(self, rounds: int) -> str | None:
        if self.separation < rounds or self.max_participations == 1 or rounds == 1:
            return None
        return (
            f"MinSeparation(separation={self.separation}) is as long as the run of {counted(rounds, 'round')}"
            " or longer: nobody takes part twice. A separation counts rounds, not hours; give a smaller one,"
            " or max_participations=1 if once is meant."
        )

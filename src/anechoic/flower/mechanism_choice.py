"""Choose the mechanism of a run: given, or planned once the model is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anechoic._validate import fraction, one_of, positive_int
from anechoic.errors import MismatchError
from anechoic.federated.participation_policy import ParticipationPolicy
from anechoic.federated.planning import ROUND_CHOICES, Choice, plan_rounds
from anechoic.mechanism.mechanism import Mechanism


@dataclass(frozen=True)
class MechanismChoice:
    """Mechanism, or what `plan_rounds` makes one from: its `clients` are `population` here.

    Raises:
        ValueError: for neither or both of them.
    """

    mechanism: Mechanism | Choice | None
    rounds: int | None
    population: int | None
    plan: Mapping[str, Any]

    def __post_init__(self) -> None:
        needed = {"rounds": self.rounds, "population": self.population, "epsilon": self.plan["epsilon"]}
        planned = {**needed, "delta": self.plan["delta"], "memory_budget": self.plan["memory_budget"]}
        given = isinstance(self.mechanism, Mechanism)
        if not given:
            one_of("mechanism", self.mechanism or "auto", ROUND_CHOICES, remedy="Or give a Mechanism.")
        if any(value is not None for value in planned.values()) if given else None in needed.values():
            raise ValueError(
                "give a Mechanism, or rounds, population and epsilon (and delta) to plan one from; given were"
                f" mechanism={self.mechanism!r}, {planned}."
            )

    def remarks(self, policy: ParticipationPolicy) -> Iterable[str]:
        """Yield warnings of rounds that cannot be meant."""
        given, delta = self.mechanism, self.plan["delta"]
        rounds = given.steps if isinstance(given, Mechanism) else positive_int("rounds", self.rounds)
        if (remark := policy.remark(rounds)) is not None:
            yield remark
        if delta is not None and fraction("delta", delta) > 1 / positive_int("population", self.population):
            yield (
                f"delta={delta:g} is more than 1 / population: a mechanism that publishes one client"
                " whole has such a guarantee. Take one far below it"
            )

    def mechanism_for(self, *, unit: str, **of_run: Any) -> Mechanism:
        """Return the mechanism for a model; `of_run` are the other arguments of `plan_rounds`.

        Raises:
            ValueError: as `plan_rounds`.
            MismatchError: for a mechanism of another unit.
        """
        given = self.mechanism
        if not isinstance(given, Mechanism):
            both: dict[str, Any] = {"rounds": self.rounds, "clients": self.population}
            return plan_rounds(mechanism=given or "auto", unit=unit, **both, **self.plan, **of_run)
        if given.unit != unit:
            raise MismatchError(
                f"the mechanism protects one {given.unit}, and this identity tells {unit}s"
                f" apart: calibrate it with unit={unit!r}, or take Labels(function) where one user has"
                " several devices, or several users share one."
            )
        return given

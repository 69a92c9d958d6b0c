"""Choose the mechanism of a run: given, or planned once the model is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anechoic._validate import one_of
from anechoic.errors import MismatchError
from anechoic.federated.compatibility import asked_per_round
from anechoic.federated.optimizers import ServerOptimizer
from anechoic.federated.participation_policy import ParticipationPolicy
from anechoic.federated.planning import ROUND_CHOICES, Choice, plan_rounds
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.objective import Kept


@dataclass(frozen=True)
class MechanismChoice:
    """Mechanism, or arguments to plan one: those of `CorrelatedFedOpt`.

    Raises:
        ValueError: for neither or both of them.
    """

    mechanism: Mechanism | Choice | None
    rounds: int | None
    population: int | None
    epsilon: float | None
    delta: float | None
    memory_budget: float | None
    over_selection: float
    optimizer: ServerOptimizer | None
    keep: Kept | float

    def __post_init__(self) -> None:
        needed = {"rounds": self.rounds, "population": self.population, "epsilon": self.epsilon}
        planned = {**needed, "delta": self.delta, "memory_budget": self.memory_budget}
        given = isinstance(self.mechanism, Mechanism)
        if not given:
            one_of("mechanism", self.mechanism or "auto", ROUND_CHOICES, remedy="Or give a Mechanism.")
        if any(value is not None for value in planned.values()) if given else None in needed.values():
            raise ValueError(
                "give a Mechanism, or rounds, population and epsilon (and delta) to plan one from; given were"
                f" mechanism={self.mechanism!r}, {planned}."
            )

    def remarks(self, policy: ParticipationPolicy, clients_per_round: int) -> Iterable[str]:
        """Refuse rounds that the population cannot fill; yield warnings of others."""
        if self.rounds is not None and self.population is not None:
            asked = asked_per_round(clients_per_round, self.over_selection)
            policy.check_supply(rounds=self.rounds, clients=self.population, per_round=asked)
        rounds = self.mechanism.steps if isinstance(self.mechanism, Mechanism) else self.rounds
        if rounds is not None and (remark := policy.remark(rounds)) is not None:
            yield remark
        if self.delta is not None and self.population is not None and self.delta > 1 / self.population:
            yield (
                f"delta={self.delta:g} is more than 1 / population: a mechanism that publishes one client"
                " whole has such a guarantee. Take one far below it"
            )

    def made(
        self, size: int, *, policy: ParticipationPolicy, clients_per_round: int, clip_norm: float, unit: str
    ) -> Mechanism:
        """Return the mechanism for a model of so many trained parameters.

        Raises:
            ValueError: as `plan_rounds`.
            MismatchError: for a mechanism of another unit.
        """
        if isinstance(self.mechanism, Mechanism):
            if self.mechanism.unit != unit:
                raise MismatchError(
                    f"the mechanism protects one {self.mechanism.unit}, and this identity tells {unit}s"
                    f" apart: calibrate it with unit={unit!r}, or take Labels(function) where one user has"
                    " several devices, or several users share one."
                )
            return self.mechanism
        names = ("rounds", "epsilon", "delta", "memory_budget", "over_selection", "optimizer", "keep")
        return plan_rounds(
            clients=self.population,  # type: ignore[arg-type]  # checked above, as rounds and epsilon
            clients_per_round=clients_per_round,
            policy=policy,
            clip_norm=clip_norm,
            dimension=size,
            unit=unit,
            mechanism=self.mechanism or "auto",
            **{name: getattr(self, name) for name in names},
        )

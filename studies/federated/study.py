"""The study of a federation: every kind of noise at every epsilon, each with its own best learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anechoic.mechanism.mechanism import Mechanism
from studies.comparison.record import mechanism_record
from studies.comparison.study import Arm, Outcome, TrainingRun, best, next_rate
from studies.federated.arms import arms
from studies.federated.tasks import FederatedTask, load

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Learning rates are chosen on this seed, and figures are those of the seeds after it.
TUNING_SEED = 0
SEEDS = 3
#: First learning rates of an arm, as powers of 2 times a guess from the error that its mechanism predicts.
FIRST = (-1, 0, 1)
#: The guess at a predicted error of one clip norm.
GUESS = 0.0625
#: The largest guess: the rate of the arm without noise.
MOST = 0.25
#: How far from its guess an arm is followed, as a factor.
WIDEST = 64.0


@dataclass(frozen=True)
class FederatedStudy:
    """Arms of one federation, and how their learning rates are found.

    Each arm is first tried at `rates` learning rates that double, around a guess; as long as the best lies at
    an end, one more beyond it is tried. That is done with one seed; the figures are those of other seeds.

    Args:
        task: the federation.
        arms: at least one.
        seeds: of the figures.
        rates: the first learning rates of each arm, by its name.
        delta: of every guarantee.
    """

    task: FederatedTask
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    rates: Mapping[str, tuple[float, ...]] = field(repr=False)
    delta: float

    @classmethod
    def of(
        cls,
        task: FederatedTask,
        *,
        epsilons: tuple[float, ...] = EPSILONS,
        seeds: int = SEEDS,
        rates: tuple[float, ...] | None = None,
    ) -> FederatedStudy:
        """All arms at each epsilon, with delta = 1 / N**1.1.

        Args:
            task: the federation.
            epsilons: of the guarantees.
            seeds: how many, after the one that learning rates are chosen on.
            rates: the first learning rates, the same for all arms; None for those around each arm's guess.

        Raises:
            ValueError: if the population cannot fill the rounds.
        """
        data = load(task)
        width, classes = data.shape
        found = arms(task.rounds, epsilons=epsilons, clients=data.clients, dimension=width * classes)
        grids = {arm.name: rates or tuple(guess(arm) * 2.0**power for power in FIRST) for arm in found}
        chosen = tuple(range(TUNING_SEED + 1, TUNING_SEED + 1 + seeds))
        delta = next(Mechanism.from_json(arm.mechanism).delta for arm in found if arm.mechanism)
        return cls(task, found, chosen, grids, delta)

    @property
    def steps(self) -> int:
        """Rounds of every run."""
        return self.task.rounds.rounds

    def runs(self, **options: Any) -> list[TrainingRun]:
        """With which the search for learning rates begins; `options` go to every run, here and below."""
        return [
            TrainingRun(self.task, arm, rate, TUNING_SEED, self.steps, **options)
            for arm in self.arms
            for rate in self.rates[arm.name]
        ]

    def beyond(self, outcomes: Sequence[Outcome], **options: Any) -> list[TrainingRun]:
        """The next run of every arm that did best at an end of what it tried so far; see `WIDEST`."""
        found = []
        for arm in self.arms:
            rate = next_rate([outcome for outcome in outcomes if outcome.arm == arm.name])
            first = self.rates[arm.name]
            if rate is not None and min(first) / WIDEST <= rate <= max(first) * WIDEST:
                found.append(TrainingRun(self.task, arm, rate, TUNING_SEED, self.steps, **options))
        return found

    def final(self, outcomes: Sequence[Outcome], **options: Any) -> list[TrainingRun]:
        """The runs of the figures: every arm at its best rate, with the other seeds."""
        rates = {
            arm.name: best([o for o in outcomes if o.arm == arm.name and o.seed == TUNING_SEED]).learning_rate
            for arm in self.arms
        }
        return [
            TrainingRun(self.task, arm, rates[arm.name], seed, self.steps, **options)
            for arm in self.arms
            for seed in self.seeds
        ]


def guess(arm: Arm) -> float:
    """A learning rate near the best one, a power of 2, from the error that the arm's mechanism predicts.

    The error enters the model times the learning rate. Where the guess is wrong the search goes on, for every
    arm by the same rule.
    """
    if arm.mechanism is None:
        return MOST
    predicted = mechanism_record(arm)["predicted"]
    return float(min(MOST, 2.0 ** round(math.log2(GUESS / predicted))))

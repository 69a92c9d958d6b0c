"""The learning rate to try first, from the noise that a plan leaves in the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from anechoic._validate import Array
from anechoic.planning.records import PlanRow
from anechoic.planning.update import UpdateRule

#: Euclidean norm of the noise in an iterate at the best rate: about this, and in every run that was measured
#: within a factor of `WITHIN` of it (docs/choosing.md).
NORM, WITHIN = 12.0, 3.0


@dataclass(frozen=True)
class Advice:
    """Where to look for the learning rate, without looking at private data: it costs no privacy.

    At a rate r the noise in the model has norm r * predicted error * root of the dimension. Where that is far
    above `NORM` it drowns the model; far below, the noise would bear larger steps. A rule of thumb, which was
    measured on small models, not proved: large epsilon and stiff tasks want less than it says.

    Attributes:
        rate: to try first: of SGD with the plan's momentum, the largest of its schedule.
        momentum: that the plan is for.
        rates: of the planned schedule over the largest, shape (n,); None for a constant one.
    """

    rate: float
    momentum: float
    rates: Array | None = field(default=None, compare=False, repr=False)

    @property
    def lowest(self) -> float:
        """Of the rates that are worth trying."""
        return self.rate / WITHIN

    @property
    def highest(self) -> float:
        """Of the rates that are worth trying."""
        return self.rate * WITHIN

    def factor(self, step: int) -> float:
        """What the rate is multiplied with at a step, as `torch.optim.lr_scheduler.LambdaLR` asks for it.

        That is the schedule which the plan is for; after the last step its last one.
        """
        return 1.0 if self.rates is None else float(self.rates[min(step, len(self.rates) - 1)])

    def __str__(self) -> str:
        which = "" if self.rates is None else ", the largest of the schedule"
        absent = [*([] if self.momentum else ["momentum"]), *([] if self.rates is not None else ["a cosine"])]
        more = f" Plans with {' and '.join(absent)} mostly had better models." if absent else ""
        return (
            f"Learning rate to try first{which}: {self.rate:.2g}, then {self.lowest:.2g} to"
            f" {self.highest:.2g} (docs/choosing.md).{more}"
        )


def advice_for(row: PlanRow, update: UpdateRule, dimension: int | None) -> Advice | None:
    """Of a row whose workload is what the update adds up to.

    None for adaptive optimizers, without dimension, or without noise.
    """
    if dimension is None or update.kind == "adam" or not row.predicted:
        return None
    rate = NORM / (row.predicted * row.mechanism.clip_norm * math.sqrt(dimension))
    return Advice(rate, update.momentum, row.objective.workload.rates)

"""The learning rate to try first, from the noise that a plan leaves in the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from anechoic._validate import Array
from anechoic.planning.records import PlanRow
from anechoic.planning.update import UpdateRule

#: At the best rate: std of the noise in a parameter where noise bounds the rate, and where the task does rate
#: times clip norm of SGD; and a factor within which best rates lay (docs/measured.md).
NOISE, STEP, WITHIN = 0.16, 5.0, 2.5


@dataclass(frozen=True)
class Advice:
    """Where to look for the learning rate, without looking at private data: it costs no privacy.

    At a rate r the noise in a parameter has std r * predicted * clip norm: far above `NOISE` it drowns the
    model. Where there is next to no noise the task bounds r * clip norm, at `STEP` * root of 1 - momentum.
    The rate is half the harmonic mean of the two: a rule of thumb for inputs of about unit size, which was
    measured on small models, not proved.

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
        there = {"momentum .9": self.momentum > 0.0, 'scheduler="cooldown"': self.rates is not None}
        absent = [name for name, known in there.items() if not known]
        more = f" Plans with {' and '.join(absent)} mostly had better models." if absent else ""
        return (
            f"Learning rate to try first{which}: {self.rate:.2g}, then {self.lowest:.2g} to"
            f" {self.highest:.2g} (docs/choosing.md).{more}"
        )


def advice_for(row: PlanRow, update: UpdateRule) -> Advice | None:
    """Of a row whose workload is what the update adds up to.

    None for adaptive optimizers, or without noise.
    """
    if update.kind == "adam" or not row.predicted:
        return None
    return advice_of(row.predicted, row.mechanism.clip_norm, update, update.schedule(row.objective.workload))


def advice_of(predicted: float, clip_norm: float, update: UpdateRule, rates: Array | None) -> Advice:
    """From the predicted error of what an update adds up to, > 0, in clip norms.

    Args:
        predicted: see `PlanRow`.
        clip_norm: > 0.
        update: linear in the gradients.
        rates: of its schedule over the largest, shape (n,); None for a constant one.
    """
    task = STEP * math.sqrt(1.0 - update.momentum) / (1.0 - update.dampening)
    inverse = predicted / NOISE + 1.0 / task
    return Advice(1.0 / (inverse * clip_norm), update.momentum, rates)

"""The learning rate to try first, from the noise that a plan leaves in the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from anechoic._validate import Array
from anechoic.planning.objective import PlanObjective
from anechoic.planning.records import PlanRow
from anechoic.planning.update import UpdateRule

#: At the best rate: std of the noise in a parameter where noise bounds the rate, and where the task does rate
#: times clip norm of SGD; a factor within which best rates lay; that of Adam's over them, as the grid has it.
NOISE, STEP, WITHIN, ADAM = 0.16, 5.0, 2.5, 1.5


@dataclass(frozen=True)
class Advice:
    """Where to look for the learning rate, without looking at private data: it costs no privacy.

    At a rate r the noise in a parameter has std r * predicted * clip norm: far above `NOISE` it drowns the
    model. Where there is next to no noise the task bounds r * clip norm, at `STEP` * root of 1 - momentum.
    The rate is half the harmonic mean of the two: a rule of thumb for inputs of about unit size, which was
    measured on small models, not proved. Adam divides by what is mostly the noise of a step, so that its rate
    is `ADAM` times that of SGD times `PlanRow.step_noise` * clip norm.

    Attributes:
        rate: to try first: of SGD with the plan's momentum, or of Adam, the largest of its schedule.
        momentum: that the plan is for; None for Adam's rates.
        rates: of the planned schedule over the largest, shape (n,); None for a constant one.
        larger: at which another plan, for sums, is better, where the rate at hand decided against it.
    """

    rate: float
    momentum: float | None
    rates: Array | None = field(default=None, compare=False, repr=False)
    larger: float | None = None

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
        of = "" if self.rates is None else ", the largest of the schedule"
        there = {"momentum .9": self.momentum != 0.0, 'scheduler="cooldown"': self.rates is not None}
        absent = [name for name, known in there.items() if not known]
        more = f" Plans with {' and '.join(absent)} mostly had better models." if absent else ""
        better = f" Better: give lr={self.larger:.2g} and plan again." if self.larger else ""
        noise = " with the noise of this plan" if self.larger else ""
        return (
            f"Learning rate to try first{noise}{of}: {self.rate:.2g},"
            f" then {self.lowest:.2g} to {self.highest:.2g}.{better}{more}"
            " Any clip norm up to the median gradient norm will do, if rate x clip norm is kept."
        )


def advice_for(row: PlanRow, update: UpdateRule, sums: PlanObjective | None = None) -> Advice | None:
    """Of a row, whose objective is what the update adds up to, or `sums` is.

    None without noise, and for what is planned for as "sums".
    """
    if update.kind == "sums" or not row.predicted:
        return None
    objective, clip_norm = sums or row.objective, row.mechanism.clip_norm
    rates, predicted = update.schedule(objective.workload), _in(row, objective)
    if update.kind == "sgd":
        return advice_of(predicted, clip_norm, update, rates)
    # Adam and its kin divide the mean gradient by the noise in a step
    found = advice_of(predicted, update.gain / (ADAM * row.step_noise), UpdateRule(), rates)
    return replace(found, momentum=None)


def _in(row: PlanRow, objective: PlanObjective) -> float:
    """The predicted error of a row in another objective than it was planned for."""
    return row.noise_std * objective.measure(row.mechanism.strategy) / row.batch_size


def suited_to_rate(
    best: PlanRow, plain: PlanRow | None, update: UpdateRule, buffered: PlanRow | None = None
) -> tuple[str, str]:
    """Which noise Adam or its kin profits from at the learning rate at hand, and what to say of it.

    Larger noise of a step makes Adam's steps smaller. Noise planned for sums is the best from the lowest rate
    that is advised, if noise bounds the rate, and from about the advised rate if the task does. Below these,
    noise planned for the buffer is: its steps are shorter by the ratio of the noise in a step, and its noise
    in sums is less by their ratio. Below both times the rate of independent noise, that was better.

    Args:
        best: of rows that are planned for sums.
        plain: of independent noise.
        update: of Adam or its kin.
        buffered: of rows that are planned for the buffer, where these are known.

    Returns:
        "sums", "buffer" or "independent", and the sentence.
    """
    name = update.name
    asked, usual = advice_for(best, update), None if plain is None else advice_for(plain, update)
    if asked is None or usual is None or plain is best:
        return "sums", ""
    more = f"noise planned for sums is better at larger ones: give lr={asked.rate:.2g} and plan again."
    bound = asked.rate * update.gain / (ADAM * best.step_noise * STEP)  # by the task, not noise: 0 to 1
    from_rate = asked.lowest + bound * (0.95 * asked.rate - asked.lowest)  # .95: messages round to two digits
    if update.rate is None or update.rate >= from_rate:
        said = f"{name} divides by the noise of a step, which correlation makes larger: so is its best rate."
        below = f" Below {from_rate:.2g} independent noise may be better: plan with the torch optimizer."
        return "sums", said + below
    least = 1.0 / ADAM
    if buffered is not None and plain is not None:
        fewer = _in(buffered, best.objective) / _in(plain, best.objective)
        least = max(least, fewer * buffered.step_noise / plain.step_noise)
    if update.rate >= least * usual.rate and update.momentum:
        return "buffer", f"The plan is for {name}'s buffer, at its learning rate of {update.rate:g}; {more}"
    return "independent", f"{name}'s learning rate of {update.rate:g} is for small noise of a step; {more}"


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

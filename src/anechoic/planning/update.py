"""Update rule of an optimizer, as far as a plan needs it: momentum, decay, learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np

from anechoic._validate import Array, decaying, finite_array, one_of
from anechoic.planning.records import OptimizerKind
from anechoic.workloads.base import Workload
from anechoic.workloads.optimizers import momentum, nesterov
from anechoic.workloads.sums import exponential_decay, prefix_sum

#: Schedules that have a name: all begin at the rate given, and all but the constant one end near 0.
ScheduleName = Literal["constant", "cooldown", "cosine", "linear"]
COOLDOWN = 0.2  #: the last part of a run, in which "cooldown" falls linearly after a constant rate
Interval = Literal["step", "epoch"]
#: Learning rates below this part of the largest count as that: a plan divides by them.
LEAST_RATE = 1e-3


@dataclass(frozen=True)
class UpdateRule:
    """How an optimizer adds up the gradients of a run.

    Attributes:
        kind: "sgd" where updates are linear in the gradients, "adam" where they divide by their size, "sums"
            where sums of gradients count all the same.
        momentum: beta of heavy ball or Nesterov's method, or of the buffer of "adam" (beta_1), in [0, 1).
        weight_decay: part of the parameters that a step takes away in the long run, in [0, 1).
        rates: learning rates of so many steps, or epochs, shape (count,), > 0; None for a constant one.
        interval: what they are rates of.
        nesterov: whether the momentum is Nesterov's.
        dampening: d in [0, 1), as torch has it: every gradient but the first enters with 1 - d; beta_1 of
            Adam.
        rate: the learning rate of the optimizer at hand, the largest of its schedule; None where unknown.
        name: of the optimizer, in messages.

    Raises:
        ValueError: for a number out of range.
    """

    kind: OptimizerKind = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    rates: Callable[[int], Array] | None = None
    interval: Interval = "step"
    nesterov: bool = False
    dampening: float = 0.0
    rate: float | None = None
    name: str = "Adam"

    def __post_init__(self) -> None:
        for name in ("momentum", "weight_decay", "dampening"):
            decaying(name, getattr(self, name))

    @property
    def gain(self) -> float:
        """What a gradient moves the model by in the long run, at a rate of 1."""
        return (1.0 - self.dampening) / (1.0 - self.momentum)

    def learning_rates(self, n: int, period: int) -> Array | None:
        """Of n steps, `period` of them an epoch, over the largest; None where they are constant."""
        if self.rates is None:
            return None
        each = period if self.interval == "epoch" else 1
        found = np.repeat(self.rates(-(-n // each)), each)[:n]
        largest = float(found.max())
        if not largest > 0.0 or found.min() == largest:
            return None
        return np.asarray(np.maximum(found / largest, LEAST_RATE))

    def buffer(self, n: int) -> Workload:
        """What the direction of a step is read from: decayed sums of gradients."""
        return exponential_decay(n, self.momentum)

    def workload(self, n: int, period: int) -> Workload:
        """Iterates of n steps as sums of the gradients, up to their sign and the largest learning rate.

        Adam's are sums without its momentum: noise planned for sums of the buffer asked for larger rates, and
        was no better.
        """
        if self.kind != "sgd":
            return replace(self, kind="sgd", momentum=0.0, dampening=0.0).workload(n, period)
        rates = self.learning_rates(n, period)
        if self.dampening:
            rates = self._damped(n) if rates is None else rates * self._damped(n)
        if not self.momentum and not self.weight_decay and rates is None:
            return prefix_sum(n)
        made = nesterov if self.nesterov else momentum
        return made(n, self.momentum, weight_decay=self.weight_decay, learning_rates=rates)

    def schedule(self, workload: Workload) -> Array | None:
        """Learning rates over the largest, of a `workload` of this rule; None where they are constant."""
        rates = workload.rates
        if self.kind == "sgd" and self.dampening and rates is not None:
            rates = rates / self._damped(workload.n)
            return None if np.ptp(rates) < LEAST_RATE * 1e-6 else rates
        return rates

    def _damped(self, n: int) -> Array:
        return np.where(np.arange(n) > 0, 1.0 - self.dampening, 1.0)


def _has_rule(rule: Any, thing: Any) -> bool:
    """Whether `rule` knows an object of torch, whose rules are imported with the first one."""
    if any(cls.__module__.startswith("torch.") for cls in type(thing).__mro__):
        import_module("anechoic.torch.optimizer_kinds")
    return rule.dispatch(type(thing)) is not rule.dispatch(object)


@singledispatch
def update_of(optimizer: Any) -> UpdateRule:
    """What is known of an optimizer, which is "sgd", "adam", or one of torch."""
    if _has_rule(update_of, optimizer):
        return update_of(optimizer)
    raise ValueError(f"optimizer={optimizer!r:.60} must be 'sgd', 'adam', or a torch optimizer. {READ}")


#: What of an optimizer a plan knows.
READ = (
    "Momentum, Nesterov's too, dampening and weight decay are read from torch.optim.SGD. CorrectedAdam and"
    " Muon count as 'sums', all others as 'adam': AdamW, NAdam, RMSprop, Lion."
)


@update_of.register
def _(optimizer: str) -> UpdateRule:
    one_of("optimizer", optimizer, ("sgd", "adam"), remedy=READ)
    return UpdateRule() if optimizer == "sgd" else UpdateRule("adam", 0.9, dampening=0.9)


@update_of.register
def _(optimizer: UpdateRule) -> UpdateRule:
    return optimizer


@singledispatch
def rates_of(scheduler: Any) -> Callable[[int], Array] | None:
    """Learning rates of so many steps, or epochs, as a scheduler has them; None for a constant one.

    Takes the name of a schedule, the rates themselves, a function that returns those of n steps, or a
    scheduler of torch.

    Raises:
        ValueError: for anything else.
    """
    if _has_rule(rates_of, scheduler):
        return rates_of(scheduler)
    if callable(scheduler):
        return lambda count: _checked(scheduler(count), count)
    if isinstance(scheduler, (Sequence, np.ndarray)):
        return lambda count: _checked(scheduler, count)
    raise ValueError(
        f"scheduler={scheduler!r} must be a torch scheduler, 'cooldown',"
        " 'cosine', 'linear', the learning rates, or a function that returns those of n steps."
    )


@rates_of.register
def _(scheduler: str) -> Callable[[int], Array] | None:
    name = one_of("scheduler", scheduler, get_args(ScheduleName))
    return None if name == "constant" else lambda count: named_rates(name, count)  # type: ignore[arg-type]


def named_rates(name: ScheduleName, steps: int) -> Array:
    """Learning rates of a schedule, shape (steps,), the first 1."""
    t = np.arange(steps) / steps
    falling = {"cosine": (1.0 + np.cos(np.pi * t)) / 2.0, "linear": 1.0 - t, "constant": np.ones(steps)}
    return np.asarray(falling.get(name, np.minimum(1.0, (1.0 - t) / COOLDOWN)))


def with_schedule(update: UpdateRule, scheduler: Any, interval: Interval) -> UpdateRule:
    """The same with the learning rates of a scheduler, which is stepped once a step or once an epoch."""
    one_of("scheduler_interval", interval, get_args(Interval))
    return update if scheduler is None else replace(update, rates=rates_of(scheduler), interval=interval)


def _checked(rates: Any, count: int) -> Array:
    found = finite_array("scheduler", rates, length=count)
    if found.min() < 0.0 or not found.any():
        raise ValueError(f"scheduler has learning rates from {found.min()} to {found.max()}: give some > 0.")
    return found

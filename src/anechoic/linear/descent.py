"""Gradient descent on a linear model: the mechanism is planned for it, and its rate follows from the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import lambertw

from anechoic._validate import Array
from anechoic.accounting.accountant import adjacency_factor
from anechoic.accounting.gaussian import gaussian_mu
from anechoic.errors import MismatchError
from anechoic.linear.scaling import INTERCEPT
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.noise.grid import MOST, Integers
from anechoic.planning.advice import Advice, advice_for, advice_of
from anechoic.planning.compare import STRATEGIES, plan
from anechoic.planning.integer_noise import on_finest_grid
from anechoic.planning.objective import PlanObjective
from anechoic.planning.result import Plan, mechanism_in
from anechoic.planning.update import UpdateRule, with_schedule

#: Largest multiplications of a fit: batches become smaller beyond them.
WORK = 3e9
#: The advice is for inputs of about unit size; rows here have norm at most 1, and this many times the rate.
RATE = 10.0
MOMENTUM = 0.9
#: Of the largest stable rate.
_STABLE = 0.9
#: Excess of the log loss by clipping is about e^(-_FADING clip norm), and by noise _NOISE times that of the
#: square of clip norm * entries / (units mu): one rule for ten data sets ('Linear models for tables').
_FADING, _NOISE, _LEAST_CLIP = 11.5, 48.0, 0.15
#: Of squared errors: noise of a release at the clip norm, and the ends of clip norms; measured there too.
_SQUARES_NOISE, _SQUARES_CLIP = 2e-3, (0.05, 2.0)
#: Bits of the grid that may be given up where the noise is large.
_FEWER = 12


@dataclass(frozen=True)
class FitRequest:
    """Arguments of a fit's plan.

    Attributes:
        mechanism, sampling, batch_size: "auto", or what an estimator takes.
        units, dimension: N, and entries of the model.
        slower: factor of the rate, > 0.
        curvature: bound on the second derivative of the loss by the scores.
        flatter: whether residuals are at most 1, so that a clip norm below 1 makes the loss less curved.
    """

    epsilon: float
    delta: float
    clip_norm: float
    mechanism: Any
    sampling: Any
    batch_size: Any
    steps: int
    units: int
    dimension: int
    adjacency: Adjacency
    unit: str
    slower: float
    curvature: float
    flatter: bool = False

    @property
    def noise(self) -> float:
        """Length of the noise of a release of everything at once, without sampling, over units clip norms."""
        factor = adjacency_factor(self.adjacency) / gaussian_mu(self.epsilon, self.delta)
        return factor * self.dimension / self.units

    @property
    def update(self) -> UpdateRule:
        """What adds up the gradients."""
        return with_schedule(UpdateRule("sgd", MOMENTUM), "cooldown", "step")


@dataclass(frozen=True)
class DescentPlan:
    """A mechanism with the rates of its steps.

    Attributes:
        mechanism: on a grid.
        plan: where it was planned.
        advice: on the rate.
        predicted: noise in the model at a rate of 1, in clip norms.
        asked: of it.
    """

    mechanism: Mechanism
    plan: Plan | None
    advice: Advice
    predicted: float
    asked: FitRequest

    @property
    def rate(self) -> float:
        """The largest: as advised, and where the loss is curved no more than heavy ball is stable at.

        That is 2 (1 + momentum) over the largest eigenvalue of the mean of x x^T, times the curvature; rows
        with bounds have norm 1 at most, but for the intercept.
        """
        advised = RATE * self.asked.slower * self.advice.rate
        largest = self.asked.curvature * (1.0 + INTERCEPT**2)
        if self.asked.flatter:
            largest *= min(1.0, self.mechanism.clip_norm)
        return min(advised, _STABLE * 2.0 * (1.0 + MOMENTUM) / largest)

    def rates(self) -> Array:
        """Of each step, shape (n,)."""
        return self.rate * np.array([self.advice.factor(t) for t in range(self.mechanism.steps)])

    def noise(self) -> float:
        """Standard deviation of the noise in a weight of the model, predicted."""
        return self.rate * self.predicted * self.mechanism.clip_norm


def logistic_clip_norm(noise: float) -> float:
    """The clip norm at which clipping and noise together should add least to the log loss.

    A clipped gradient is too short where the model is most wrong, so that coefficients come out too large;
    `noise` (`FitRequest.noise`) grows with the clip norm. From 1 on next to nothing is clipped: rows have
    norm 1, residuals less.
    """
    # least of e^(-k c) + a (c v)^2: k c e^(k c) = k^2 / (2 a v^2)
    found = float(lambertw(_FADING**2 / (2.0 * _NOISE * noise**2)).real) / _FADING
    return min(1.0, max(_LEAST_CLIP, found))


def squares_clip_norm(noise: float) -> float:
    """The same for squared errors: clipping draws a skewed target towards its median."""
    return min(_SQUARES_CLIP[1], max(_SQUARES_CLIP[0], _SQUARES_NOISE / noise))


def size_of(asked: FitRequest) -> int:
    """Units a step: as given, or all of them unless that takes too long."""
    if isinstance(asked.batch_size, str) and asked.batch_size == "auto":
        return max(1, min(asked.units, int(WORK / (asked.steps * asked.dimension))))
    size = asked.batch_size
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 1 <= size <= asked.units:
        raise ValueError(
            f'batch_size={size!r} must be "auto" or an integer from 1 to the number of {asked.unit}s,'
            f" {asked.units}."
        )
    return int(size)


def wants_mechanism(asked: FitRequest) -> bool:
    """Whether all about the releases is left to the library."""
    choices = (asked.mechanism, asked.sampling, asked.batch_size)
    return all(isinstance(one, str) and one == "auto" for one in choices)


def planned(asked: FitRequest) -> DescentPlan:
    """The mechanism of a fit, planned or given.

    Raises:
        ValueError, UnsupportedError, GuaranteeError: as `plan`.
        MismatchError: if a given mechanism is not for this data.
    """
    given = mechanism_in(asked.mechanism)
    if isinstance(given, Mechanism):
        return _given(asked, given)
    if not isinstance(given, str) or given not in STRATEGIES:
        raise ValueError(
            f"mechanism={asked.mechanism!r} must be a Mechanism, 'auto', or the name of a strategy:"
            f" {', '.join(map(repr, STRATEGIES))}."
        )
    size = size_of(asked)
    whole = size == asked.units  # nothing can be drawn: a fixed order needs no secret
    sampling = None if isinstance(asked.sampling, str) and asked.sampling == "auto" else asked.sampling
    names = ("steps", "epsilon", "delta", "dimension", "clip_norm", "adjacency", "unit")
    found = plan(
        examples=asked.units,
        batch_size=size,
        random_sampling=not whole,
        optimizer=asked.update,
        strategy=given,  # type: ignore[arg-type]
        keep="last",
        sampling=sampling,
        **{name: getattr(asked, name) for name in names},
    )
    found = on_finest_grid(found, asked.dimension, asked.epsilon, MOST, _FEWER)
    advice = advice_for(found.chosen, asked.update)
    if advice is None:
        raise ValueError(f"epsilon={asked.epsilon!r} leaves no noise: give a smaller one.")
    return DescentPlan(found.mechanism, found, advice, found.chosen.predicted, asked)


def _given(asked: FitRequest, mechanism: Mechanism) -> DescentPlan:
    sampling = mechanism.sampling
    if sampling.formed_outside:
        said = sampling.describe(mechanism.unit)
        raise MismatchError(f"the mechanism has {said}: fit() forms batches itself.")
    if sampling.examples != asked.units:
        raise MismatchError(
            f"the mechanism is for {sampling.examples} {mechanism.unit}s, and the data hold {asked.units}:"
            " calibrate one for these."
        )
    if mechanism.unit != asked.unit:
        raise MismatchError(
            f"the mechanism protects one {mechanism.unit!r}, and unit={asked.unit!r} here: give unit_ids"
            " where a unit owns several rows, and the same word for it."
        )
    if mechanism.grid_bits is None:
        raise MismatchError(
            f"the mechanism adds up floating-point numbers, and sums here are exact: give grid_bits={MOST} to"
            " calibrate."
        )
    return with_advice(asked, mechanism)


def with_advice(asked: FitRequest, mechanism: Mechanism) -> DescentPlan:
    """A given mechanism with the rates that follow from its noise."""
    sampling, update = mechanism.sampling, asked.update
    objective = PlanObjective.of(update.workload(mechanism.steps, mechanism.steps), "last")
    predicted = mechanism.noise_std * objective.measure(mechanism.strategy) / sampling.expected_batch_size
    advice = advice_of(predicted, mechanism.clip_norm, update, objective.workload.rates)
    return DescentPlan(mechanism, None, advice, predicted, asked)


def descend(
    mechanism: Mechanism,
    rates: Array,
    sum_of: Callable[[int, Array], Integers],
    *,
    outputs: int,
    penalty: Array,
    key: bytes,
    momentum: float = MOMENTUM,
) -> Array:
    """Heavy ball on noisy mean gradients, one release a step; returns the weights, shape (outputs, m).

    Args:
        mechanism: on a grid.
        rates: of the steps, shape (n,).
        sum_of: from a step and the weights to the exact sum of its batch, shape (outputs, m).
        penalty: lambda of lambda / 2 times the squared weights, shape (m,). It needs no noise.
        key: of the noise, 32 bytes.
        momentum: in [0, 1).
    """
    weights = velocity = np.zeros((outputs, len(penalty)))
    stream = mechanism.stream(weights.size, key=key)
    state = stream.init()
    for t, rate in enumerate(rates):
        row, state = stream.next(state)
        total = sum_of(t, weights).reshape(-1)
        mean = mechanism.grid.release(total, row).reshape(weights.shape)
        velocity = momentum * velocity + rate * mean
        # the penalty at the end of the step: no rate is too large for it
        weights = (weights - velocity) / (1.0 + rate / (1.0 - momentum) * penalty)
    return weights

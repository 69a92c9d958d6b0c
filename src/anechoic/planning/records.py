"""What a plan is made of: candidates, the goal they are calibrated to, rows of the table, and the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anechoic.accounting import Verified
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.sampling import Sampling
from anechoic.strategies import Strategy

#: How a plan may account for schemes that offer Monte Carlo.
AccountingChoice = Literal["deterministic", "verified"]


@dataclass(frozen=True)
class Goal:
    """What every candidate is calibrated to, see `plan`."""

    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    clip_norm: float
    adjacency: Adjacency
    unit: str
    accounting: AccountingChoice

    @property
    def verified(self) -> Verified:
        """The Monte Carlo that `calibrate(accounting="verified")` does."""
        return Verified.within(self.delta)


@dataclass(frozen=True)
class Candidate:
    """A strategy with the sampling it is meant for.

    Attributes:
        strategy: C.
        sampling: of as many steps.
        noise_std: a point estimate by Monte Carlo where only that is known yet, else None.
        enough: a noise std that a bound has shown to suffice, else None: calibration begins there.
    """

    strategy: Strategy
    sampling: Sampling
    noise_std: float | None = None
    enough: float | None = None


@dataclass(frozen=True)
class PlanRow:
    """One candidate of a plan.

    Attributes:
        name: the strategy in words.
        sampling: how batches are formed, in words.
        noise_std: std of one entry of Z over the clip norm.
        noise_multiplier: noise_std over the reference sensitivity.
        rms_error: root mean square over steps of the prefix-sum error for unit noise, ||B||_F / sqrt(n).
        predicted: noise_std * rms_error / batch size: predicted error of the prefix sums of mean gradients,
            in clip norms, per coordinate.
        memory: bytes of noise state for float32, None where the dimension is unknown.
        history: rows of noise state.
        batch_size: B, the expected one where batches are drawn.
        mechanism: with this noise: calibrated, so that its epsilon is at most the one asked for, unless
            `estimated`.
        chosen: whether this is the plan's choice.
        estimated: whether the noise is a Monte Carlo estimate that nothing guarantees; `mechanism.epsilon()`
            then verifies what this noise gives, which takes minutes and may exceed what was asked for.
    """

    name: str
    sampling: str
    noise_std: float
    noise_multiplier: float
    rms_error: float
    predicted: float
    memory: int | None
    history: int
    batch_size: float
    mechanism: Mechanism
    chosen: bool = False
    estimated: bool = False

"""Records of a plan: the goal, candidates, and rows of the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.thinning import thinned
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.planning.families import family
from anechoic.planning.objective import PlanObjective
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy

#: Steps of a curve; more could not be told apart in a picture.
_POINTS = 800
#: What a plan knows of an optimiser: "sgd" for updates that are linear in the gradients (momentum and
#: Nesterov too), "adam" for those that divide by the size of gradients (AdamW, RMSprop, Adagrad), "sums" for
#: others that take sums of gradients and no rate of SGD (Muon, CorrectedAdam).
OptimizerKind = Literal["sgd", "adam", "sums"]


@dataclass(frozen=True)
class Goal:
    """What every candidate is calibrated to, see `plan`.

    Attributes:
        epsilon: of every candidate; None where a noise multiplier gives 0, and only that one is compared.
        noise_multiplier: of independent noise, where the caller gave it.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    clip_norm: float
    adjacency: Adjacency
    unit: str


@dataclass(frozen=True)
class Candidate:
    """A strategy with the sampling it is meant for, and about the noise that it needs.

    Attributes:
        strategy: C.
        sampling: of as many steps.
        expected: about the noise std that calibration gives, and `hope` times as much the least that it may.
        hope: in (0, 1].
        enough: a noise std that a bound has shown to suffice, else None: calibration begins there.
        costly: whether calibration takes seconds: only where it may be the best one.
        made: the calibrated mechanism, where it cost next to nothing.
    """

    strategy: Strategy
    sampling: Sampling
    expected: float
    hope: float = 1.0
    enough: float | None = None
    costly: bool = False
    made: Mechanism | None = None


@dataclass(frozen=True)
class PlanRow:
    """One candidate of a plan.

    Attributes:
        name: the strategy in words, without its number of steps.
        sampling: how batches are formed, in words.
        noise_std: std of one entry of Z over the clip norm.
        noise_multiplier: noise_std over the reference sensitivity.
        rms_error: root of the objective for unit noise: the weighted mean square over the steps of the error
            of what the optimizer adds up, see `plan`.
        predicted: noise_std * rms_error / batch size: predicted error of the iterates, per coordinate, in
            clip norms at a learning rate of 1 (the largest one).
        step_noise: std of the noise in the mean gradient of one step, RMS over the steps, in clip norms, per
            coordinate: the noise-to-batch ratio. It is what an adaptive optimiser divides by.
        memory: bytes of noise state, None where the dimension is unknown.
        seconds: about the time of one core for the noise of one step, None where the dimension is unknown.
        history: rows of noise state: none where they are made again.
        batch_size: B, the expected one where batches are drawn.
        mechanism: calibrated, so that its epsilon is at most the one asked for.
        objective: what `rms_error` is the root of, over the iterates of this row's run.
        chosen: whether this is the plan's choice.
        frontier: whether no row has both less noise state and a smaller predicted error.
        number_bytes: of one number of the noise state: 4, or 8 where noise is rounded to a grid.
        noise_storage: for `NoiseStream(memory=…)`: "store", or "regenerate" where rows do not fit the
            budget, and are sums of few fresh ones, which are made again in each step.
    """

    name: str
    sampling: str
    noise_std: float
    noise_multiplier: float
    rms_error: float
    predicted: float
    step_noise: float
    memory: int | None
    seconds: float | None
    history: int
    batch_size: float
    mechanism: Mechanism
    objective: PlanObjective = field(repr=False, compare=False)
    chosen: bool = False
    frontier: bool = False
    number_bytes: int = 4
    noise_storage: str = "store"

    @property
    def family(self) -> str:
        """Family of the strategy: see `planning.families`."""
        return family(self.mechanism.strategy)

    def noise_over_time(self) -> tuple[Array, Array]:
        """Return steps from 1 to n, at most 800, and the std of the noise in the iterates there.

        In the units of `predicted`, which is the root mean square over all steps, as the objective weights
        them, or the largest one.
        """
        errors = error(self.objective.workload, self.mechanism.strategy).per_step
        places = thinned(errors, _POINTS)
        return np.asarray(places + 1.0), np.asarray(self.noise_std * errors[places] / self.batch_size)

    @property
    def relative(self) -> float:
        """Predicted error over the number of steps, for runs of different length."""
        return self.predicted / self.mechanism.steps

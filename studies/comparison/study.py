"""A study as data: arms, runs and outcomes, and how the best learning rate of each arm is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from anechoic._validate import positive_float, positive_int
from anechoic.demo.metrics import mean_and_error

Kind = Literal["plain", "clipped", "independent", "planned", "damped", "tree", "blt", "banded"]
Scheme = Literal["fixed", "poisson", "cool-down"]
#: How people call each kind.
KINDS: dict[Kind, str] = {
    "plain": "not private, not clipped",
    "clipped": "not private",
    "independent": "independent noise",
    "planned": "planned mechanism",
    "damped": "damped root",
    "tree": "tree",
    "blt": "BLT",
    "banded": "banded",
}
#: How far beyond the ends of its grid a study follows an arm, as a factor.
MOST_WIDER = 64.0


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        kind: "plain" (neither clipped nor noisy), "clipped" (the private training without its noise),
            "independent", "planned" (correlated noise), "damped" (the root of one tuned
            number ν), or the class of the noise by name.
        scheme: how batches are formed: "fixed" order, "poisson" (secret random batches, of the scheme that
            was planned), or "cool-down" (rounds of clients that rest in between).
        clip_norm: largest norm of an example's gradient; None where nothing is clipped.
        epsilon: what the mechanism was calibrated to; None where the arm is not private.
        mechanism: the mechanism as JSON; None where the arm is not private.
        unit: what is clipped, and protected where the arm is private: "example", or an owner of several.
        local_steps: SGD steps that a unit makes on its own examples; 1 is its gradient.
    """

    kind: Kind
    scheme: Scheme
    clip_norm: float | None = None
    epsilon: float | None = None
    mechanism: str | None = None
    unit: str = "example"
    local_steps: int = 1

    @property
    def private(self) -> bool:
        """Whether the arm has a guarantee."""
        return self.mechanism is not None

    @property
    def name(self) -> str:
        """Unique within a study, and fit for a file name."""
        unit = [self.unit] if self.unit != "example" else []
        level = [f"eps{self.epsilon:g}"] if self.epsilon is not None else []
        return "-".join([self.kind, self.scheme, *unit, *level])

    @property
    def title(self) -> str:
        """For people."""
        what = KINDS[self.kind]
        how = ", sampled" if self.scheme == "poisson" else ""
        how += f", {self.unit}" if self.unit != "example" else ""
        return what + how + (f", ε = {self.epsilon:g}" if self.epsilon is not None else "")


@dataclass(frozen=True)
class TrainingRun:
    """One training run: a task, an arm, a learning rate, a seed.

    Args:
        task, arm, learning_rate, seed: what is trained, and how; such as `studies.comparison.task.Flights`.
        steps: of the optimizer.
        checkpoint: folder to keep state and outcome in; None keeps nothing.
        checkpoint_every: steps between two checkpoints, >= 1.
        resume: whether to go on from what the folder holds.
    """

    task: Any
    arm: Arm
    learning_rate: float
    seed: int
    steps: int
    checkpoint: str | None = None
    checkpoint_every: int = 256
    resume: bool = False

    def __post_init__(self) -> None:
        positive_int("checkpoint_every", self.checkpoint_every)

    @property
    def name(self) -> str:
        """Unique within a study, and fit for a file name."""
        return f"{self.arm.name}-lr{self.learning_rate:g}-seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """Every arm at every learning rate of one grid, with every seed.

    Args:
        task: data, model, metric.
        arms: at least one.
        rates: learning rates, one grid for all arms.
        seeds: at least one.
        steps: of every run.
        delta: of every guarantee.
        widen: whether to go beyond the end of the grid at which an arm does best, until none does.
        taken: the rate at which arms are compared too, without a choice, where the grid has it.
    """

    task: Any
    arms: tuple[Arm, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int
    delta: float
    widen: bool = False
    taken: float | None = None

    def __post_init__(self) -> None:
        for name in ("arms", "rates", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name}={values!r} must hold at least one value, and none twice.")
        for rate in self.rates:
            positive_float("learning rate", rate)
        positive_int("steps", self.steps)

    def runs(self, **options: Any) -> list[TrainingRun]:
        """All runs, arm by arm; `options` go to every `TrainingRun`.

        Where nothing random is left without noise, an arm without it runs with the first seed only.
        """
        pairs = [(arm, rate) for arm in self.arms for rate in self.rates]
        return self._runs(pairs, options)

    def beyond(self, outcomes: Sequence[Outcome], **options: Any) -> list[TrainingRun]:
        """The runs at the next learning rate of every arm that does best at an end of its grid so far.

        A grid grows by the ratio of its two outer rates, at most `MOST_WIDER` times beyond each of its first
        ends: an arm that still gains there is left to `Best.edge`, which says so.
        """
        if not self.widen:
            return []
        first = min(self.rates) / MOST_WIDER, max(self.rates) * MOST_WIDER
        pairs = []
        for arm in self.arms:
            rate = next_rate([outcome for outcome in outcomes if outcome.arm == arm.name])
            if rate is not None and first[0] <= rate <= first[1]:
                pairs.append((arm, rate))
        return self._runs(pairs, options)

    def _runs(self, pairs: Sequence[tuple[Arm, float]], options: Mapping[str, Any]) -> list[TrainingRun]:
        return [
            TrainingRun(self.task, arm, rate, seed, self.steps, **options)
            for arm, rate in pairs
            for seed in (self.seeds if arm.private or self.task.random else self.seeds[:1])
        ]


@dataclass(frozen=True)
class Outcome:
    """What a run reached.

    Args:
        arm: name of the arm.
        learning_rate, seed: of the run.
        metric: AUC or accuracy.
        seconds: wall-clock time of the run, data loading left out.
        epsilon: what the engine states was spent, at the study's delta; None without privacy.
        facts: what else is worth telling of a run, as numbers by name.
    """

    arm: str
    learning_rate: float
    seed: int
    metric: float
    seconds: float
    epsilon: float | None = None
    facts: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """The best learning rate of an arm, by the mean over seeds, and what it reached.

    Args:
        learning_rate: of the grid.
        mean, error: of the metric over the seeds; `error` is a standard error.
        metrics: one a seed, in the order of the seeds.
        edge: "lowest" or "highest" where the choice is at an end of a grid of several, else "".
    """

    learning_rate: float
    mean: float
    error: float
    metrics: tuple[float, ...]
    edge: Literal["", "lowest", "highest"] = ""


def by_rate(outcomes: Sequence[Outcome]) -> dict[float, tuple[float, float]]:
    """Mean and standard error of the metric at every learning rate, in ascending order of the rate."""
    rates = sorted({outcome.learning_rate for outcome in outcomes})
    return {rate: mean_and_error([o.metric for o in outcomes if o.learning_rate == rate]) for rate in rates}


def best(outcomes: Sequence[Outcome]) -> Best:
    """The learning rate with the largest mean metric; the smaller one of two that tie.

    The same seeds choose the rate and are reported, as is usual; the guarantee of a run does not cover it.

    Args:
        outcomes: of one arm, at least one.

    Raises:
        ValueError: if there are none, or they belong to several arms.
    """
    if len({outcome.arm for outcome in outcomes}) != 1:
        raise ValueError(f"outcomes of {len({o.arm for o in outcomes})} arms: the best is that of one arm.")
    table = by_rate(outcomes)
    rate = max(table, key=lambda r: table[r][0])
    chosen = sorted((o for o in outcomes if o.learning_rate == rate), key=lambda o: o.seed)
    ends = {min(table): "lowest", max(table): "highest"} if len(table) > 1 else {}
    return Best(rate, *table[rate], tuple(o.metric for o in chosen), ends.get(rate, ""))  # type: ignore[arg-type]


def next_rate(outcomes: Sequence[Outcome]) -> float | None:
    """The next learning rate beyond the end of its grid at which an arm does best; None if it is inside.

    Args:
        outcomes: of one arm, at least one.
    """
    grid, edge = sorted(by_rate(outcomes)), best(outcomes).edge
    if not edge:
        return None
    end, inner = (grid[0], grid[1]) if edge == "lowest" else (grid[-1], grid[-2])
    return end * (end / inner)


def gain(planned: Best, independent: Best) -> tuple[float, float]:
    """Mean difference planned - independent and its standard error, paired by seed where numbers allow."""
    if len(planned.metrics) == len(independent.metrics):
        return mean_and_error([p - i for p, i in zip(planned.metrics, independent.metrics, strict=True)])
    return planned.mean - independent.mean, (planned.error**2 + independent.error**2) ** 0.5

"""A study as data: arms, runs and outcomes, and how the best learning rate of each arm is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from anechoic._validate import positive_float, positive_int
from anechoic.demo.metrics import mean_and_error

Kind = Literal["plain", "clipped", "independent", "planned", "tree", "blt", "banded"]
Scheme = Literal["fixed", "poisson", "cool-down"]
#: How people call each kind.
KINDS: dict[Kind, str] = {
    "plain": "not private, not clipped",
    "clipped": "not private",
    "independent": "independent noise",
    "planned": "planned mechanism",
    "tree": "tree",
    "blt": "BLT",
    "banded": "banded",
}
#: How far beyond the ends of its grid an arm is followed, as a factor.
MOST_WIDER = 64.0


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        kind: "plain" (neither clipped nor noisy), "clipped" (the private training without its noise), or the
            noise: "planned" is correlated noise that `plan` chose.
        scheme: how batches are formed: in "fixed" order, "poisson" (secret random batches, of the scheme that
            was planned), or "cool-down" (rounds of clients that rest in between).
        clip_norm: largest norm of an example's gradient; None where nothing is clipped.
        epsilon: what the mechanism was calibrated to; None where the arm is not private.
        mechanism: the mechanism as JSON; None where the arm is not private.
        unit: what is clipped, and protected where the arm is private: "example", or an owner of several.
    """

    kind: Kind
    scheme: Scheme
    clip_norm: float | None = None
    epsilon: float | None = None
    mechanism: str | None = None
    unit: str = "example"

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
        sampled = ", sampled" if self.scheme == "poisson" else ""
        unit = f", {self.unit}" if self.unit != "example" else ""
        return KINDS[self.kind] + sampled + unit + (f", ε = {self.epsilon:g}" if self.epsilon else "")


@dataclass(frozen=True)
class TrainingRun:
    """One training run; with `resume` an outcome that the folder `checkpoint` holds is taken."""

    task: Any
    arm: Arm
    learning_rate: float
    seed: int
    steps: int
    checkpoint: str | None = None
    resume: bool = False

    @property
    def name(self) -> str:
        """Unique within a study, and fit for a file name."""
        return f"{self.arm.name}-lr{self.learning_rate:g}-seed{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a run reached: metric, seconds (loading left out), epsilon that the engine states, and facts."""

    arm: str
    learning_rate: float
    seed: int
    metric: float
    seconds: float
    epsilon: float | None = None
    facts: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """The best learning rate of an arm, its metric at each seed, and at which end of the grid it lies."""

    learning_rate: float
    mean: float
    error: float
    metrics: tuple[float, ...]
    edge: Literal["", "lowest", "highest"] = ""


@dataclass(frozen=True)
class Study:
    """Every arm at every learning rate of its grid, with every seed; the best rate is chosen on all of them.

    With `tuned_on`, rates are tried on that seed alone, beyond the end of a grid as long as an arm does best
    there; the figures are those of the other seeds at the rate that was chosen.

    Args:
        task: data, model, metric.
        arms: at least one.
        rates: learning rates: one grid for all arms, or one each by the arm's name.
        seeds: of the figures, at least one.
        steps: of every run.
        delta: of every guarantee.
        tuned_on: the seed that learning rates are chosen on.
    """

    task: Any
    arms: tuple[Arm, ...]
    rates: tuple[float, ...] | Mapping[str, tuple[float, ...]]
    seeds: tuple[int, ...]
    steps: int
    delta: float
    tuned_on: int | None = None

    def __post_init__(self) -> None:
        grids = {f"rates of {arm.name}": self.grid(arm) for arm in self.arms}
        for name, values in {"arms": self.arms, "seeds": self.seeds, **grids}.items():
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name}={values!r} must hold at least one value, and none twice.")
        for rate in sum(grids.values(), ()):
            positive_float("learning rate", rate)
        positive_int("steps", self.steps)

    def grid(self, arm: Arm) -> tuple[float, ...]:
        """Return the first learning rates of an arm."""
        return self.rates if isinstance(self.rates, tuple) else self.rates[arm.name]

    def runs(self, **options: Any) -> list[TrainingRun]:
        """Return the runs to begin with, arm by arm; `options` go to every run, here and below.

        Where nothing random is left without noise, an arm without it runs with the first seed only.
        """
        return [run for arm in self.arms for rate in self.grid(arm) for run in self._at(arm, rate, options)]

    def beyond(self, outcomes: Sequence[Outcome], **options: Any) -> list[TrainingRun]:
        """Return the next run of every arm that did best at an end of what it tried; see `MOST_WIDER`."""
        found: list[TrainingRun] = []
        for arm in self.arms if self.tuned_on is not None else ():
            own = of_arm(arm, outcomes)
            tried, edge, first = sorted(by_rate(own)), best(own).edge, self.grid(arm)
            if edge:
                end, inner = tried[:2] if edge == "lowest" else tried[:-3:-1]
                rate = end * (end / inner)
                if min(first) / MOST_WIDER <= rate <= max(first) * MOST_WIDER:
                    found += self._at(arm, rate, options)
        return found

    def final(self, outcomes: Sequence[Outcome], **options: Any) -> list[TrainingRun]:
        """Return the runs of the figures, where rates were chosen on another seed."""
        if self.tuned_on is None:
            return []
        return [
            TrainingRun(
                self.task, arm, best(of_arm(arm, outcomes)).learning_rate, seed, self.steps, **options
            )
            for arm in self.arms
            for seed in self.seeds
        ]

    def figures(self, arm: Arm, outcomes: Sequence[Outcome]) -> Best:
        """Return what an arm reached at the learning rate that was chosen for it."""
        own = of_arm(arm, outcomes)
        if self.tuned_on is None:
            return best(own)
        chosen = best([one for one in own if one.seed == self.tuned_on])
        found = best([one for one in own if one.seed != self.tuned_on])
        return Best(chosen.learning_rate, found.mean, found.error, found.metrics, chosen.edge)

    def _at(self, arm: Arm, rate: float, options: Mapping[str, Any]) -> list[TrainingRun]:
        seeds = self.seeds if self.tuned_on is None else (self.tuned_on,)
        seeds = seeds if arm.private or self.task.random else seeds[:1]
        return [TrainingRun(self.task, arm, rate, seed, self.steps, **options) for seed in seeds]


@lru_cache(maxsize=2)
def load(task: Any) -> Any:
    """Return the data of a task, read once a process."""
    return task.load()


def of_arm(arm: Arm, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of one arm."""
    return [outcome for outcome in outcomes if outcome.arm == arm.name]


def by_rate(outcomes: Sequence[Outcome]) -> dict[float, tuple[float, float]]:
    """Return mean and standard error of the metric at every learning rate, in ascending order of the rate."""
    rates = sorted({outcome.learning_rate for outcome in outcomes})
    return {rate: mean_and_error([o.metric for o in outcomes if o.learning_rate == rate]) for rate in rates}


def best(outcomes: Sequence[Outcome]) -> Best:
    """Return the learning rate of one arm with the largest mean metric; the smaller one of two that tie."""
    if len({outcome.arm for outcome in outcomes}) != 1:
        raise ValueError(f"outcomes of {len({o.arm for o in outcomes})} arms: the best is that of one arm.")
    table = by_rate(outcomes)
    rate = max(table, key=lambda r: table[r][0])
    chosen = sorted((o for o in outcomes if o.learning_rate == rate), key=lambda o: o.seed)
    ends = {min(table): "lowest", max(table): "highest"} if len(table) > 1 else {}
    return Best(rate, *table[rate], tuple(o.metric for o in chosen), ends.get(rate, ""))  # type: ignore[arg-type]


def gain(other: Best, base: Best) -> tuple[float, float]:
    """Return the mean difference other - base and its standard error, paired by seed if numbers allow."""
    if len(other.metrics) == len(base.metrics):
        return mean_and_error([p - i for p, i in zip(other.metrics, base.metrics, strict=True)])
    return other.mean - base.mean, (other.error**2 + base.error**2) ** 0.5

"""Strategies and schemes that a user gives or registers, and what a plan is restricted to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from anechoic._validate import one_of
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import LossNorm
from anechoic.participation.base import Participation
from anechoic.planning.amplified_candidates import AmplifiedCandidates
from anechoic.planning.balls_in_bins_candidates import BallsInBinsCandidates
from anechoic.planning.calibration import calibrate_to_goal
from anechoic.planning.families import PLAN_CHOICES
from anechoic.planning.records import Candidate, Goal
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

#: From what a plan minimises to strategies of as many steps.
Maker = Callable[[Workload, Participation, LossNorm], Iterable[Strategy]]
_REGISTERED: dict[str, Maker] = {}
#: Names that registered functions cannot have: those of `plan`, and of `plan_rounds` beside them.
RESERVED = (*PLAN_CHOICES, "tree")
#: Names of the schemes that a plan can be restricted to, and their classes.
SchemeName = Literal[
    "fixed_order", "poisson", "fixed_size", "cyclic_poisson", "random_allocation", "balls_in_bins"
]
SCHEMES: dict[SchemeName, tuple[str, ...]] = {
    "fixed_order": ("FixedOrder", "External"),
    "poisson": ("Poisson",),
    "fixed_size": ("FixedSize",),
    "cyclic_poisson": ("CyclicPoisson",),
    "random_allocation": ("RandomAllocation",),
    "balls_in_bins": ("BallsInBins",),
}


def register_strategies(name: str) -> Callable[[Maker], Maker]:
    """Decorate a function that makes strategies of a class of yours, which every plan compares then.

    That is `plan`, `federated.plan_rounds`, and what streams with a horizon plan for themselves.

    Args:
        name: by which `plan(strategy=…)` and `plan_rounds(mechanism=…)` take it alone; not one of their own.

    The function takes the workload, the participation of one unit, and the loss ("rms", "max", "last" or
    weights of the steps), and gives strategies of as many steps. They compete in a fixed order, and where
    batches are drawn by the number of their bands; noise is calibrated by their own sensitivity.

    Raises:
        ValueError: for a name that is taken.
    """
    if not isinstance(name, str) or name in RESERVED or name in _REGISTERED:
        raise ValueError(f"name={name!r} must be new: {', '.join([*RESERVED, *_REGISTERED])} are taken.")

    def keep(make: Maker) -> Maker:
        _REGISTERED[name] = make
        return make

    return keep


@dataclass(frozen=True)
class Restriction:
    """What `plan(strategy=…, sampling=…)` restricts a plan to.

    Attributes:
        families: of the strategies that a plan makes itself.
        makers: registered ones.
        strategies: given as they are.
        schemes: names of the classes of schemes, None for all.
        samplings: given as they are.
    """

    families: frozenset[str]
    makers: tuple[Maker, ...]
    strategies: tuple[Strategy, ...]
    schemes: frozenset[str] | None
    samplings: tuple[Sampling, ...]

    @classmethod
    def of(
        cls,
        strategy: Any,
        sampling: Any = None,
        choices: Mapping[Any, frozenset[str]] = PLAN_CHOICES,
        argument: str = "strategy",
    ) -> Restriction:
        """From names and objects, one or several of them.

        Args:
            strategy, sampling: as `plan` takes them.
            choices: names of strategies that are made here, and their families.
            argument: what the caller calls strategies.

        Raises:
            ValueError: for anything else.
        """
        named: set[str] = set()
        makers: list[Maker] = []
        strategies: list[Strategy] = []
        for one in _as_list(strategy):
            if isinstance(one, Strategy):
                strategies.append(one)
                continue
            one_of(argument, one, (*choices, *_REGISTERED), remedy="Or give a Strategy.")
            named |= choices.get(one, frozenset())
            makers += [make for name, make in _REGISTERED.items() if one in (name, "auto")]
        schemes: set[str] = set()
        samplings: list[Sampling] = []
        for each in [] if sampling is None else _as_list(sampling):
            if isinstance(each, Sampling):
                samplings.append(each)
            else:
                one_of("sampling", each, tuple(SCHEMES), remedy="Or give a Sampling.")
                schemes.update(SCHEMES[cast(SchemeName, each)])
        only = None if sampling is None else frozenset(schemes)
        return cls(frozenset(named), tuple(makers), tuple(strategies), only, tuple(samplings))

    def takes(self, scheme: type[Sampling]) -> bool:
        """Whether a class of schemes is among those asked for."""
        return self.schemes is None or scheme.__name__ in self.schemes

    def made(self, workload: Workload, schema: Participation, loss: LossNorm) -> list[Strategy]:
        """All strategies from outside, for a run.

        Raises:
            ValueError: for one of another number of steps, or what is none.
        """
        found = [*self.strategies, *(one for make in self.makers for one in make(workload, schema, loss))]
        for one in found:
            if not isinstance(one, Strategy):
                raise ValueError(f"a registered function made {one!r}, which is no Strategy.")
            if one.n != workload.n:
                raise ValueError(
                    f"strategy={one.describe()} has n={one.n} steps but the run has {workload.n}: make it for"
                    f" n={workload.n}."
                )
        return found


def _as_list(given: Any) -> Sequence[Any]:
    found = list(given) if isinstance(given, (list, tuple, set, frozenset)) else [given]
    if not found:
        raise ValueError("an empty list of strategies or schemes was given: name at least one.")
    return found


def amplified(found: Iterable[Strategy], drawn: AmplifiedCandidates, *, binned: bool) -> Iterable[Candidate]:
    """Strategies with groups for their bands and, if `binned`, in bins without a negative coefficient."""
    if drawn.goal.epsilon is None:
        return
    bins = BallsInBinsCandidates(drawn)
    for strategy in found:
        bands = strategy.structure.bands
        groups = [b for b in drawn.least_noise if bands is not None and b >= bands]
        if groups:
            yield drawn.in_groups(strategy, *drawn.least_noise[min(groups)])
        if binned and bins.apply and strategy.structure.nonnegative:
            yield bins.candidate(strategy)


def under_sampling(
    sampling: Sampling, own: Iterable[Strategy], given: Iterable[Strategy], goal: Goal
) -> tuple[list[Candidate], list[str]]:
    """Each strategy under a given scheme, and a note of each given one that no theorem covers there.

    Raises:
        ValueError: for a scheme of another number of steps.
    """
    found: list[Candidate] = []
    notes: list[str] = []
    for strategy, mine in [*((one, True) for one in own), *((one, False) for one in given)]:
        if sampling.steps != strategy.n:
            raise ValueError(
                f"sampling={type(sampling).__name__} has {sampling.steps} steps but the run has"
                f" {strategy.n}: give one of {strategy.n} steps."
            )
        try:
            made = calibrate_to_goal(goal, strategy, sampling)
        except UnsupportedError:
            if not mine:
                notes.append(f"{strategy.describe()} is not covered under {type(sampling).__name__}.")
            continue
        found.append(Candidate(strategy, sampling, made.noise_std, made=made))
    return found, notes

"""The arguments of make_private for a type checker: which ones there are, and what comes back for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any, Literal, Required, TypedDict, TypeVar

from torch import nn, optim
from torch.utils.data import DataLoader

from anechoic._validate import byte_count, fraction, positive_float
from anechoic.errors import MismatchError
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.participation.base import Participation
from anechoic.planning.families import StrategyName
from anechoic.planning.objective import Kept
from anechoic.planning.result import Plan, mechanism_in
from anechoic.planning.update import Interval
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.setup.clip_norms import ClippingName, MaxGradNorm, flat_norm
from anechoic.torch.sources.base import ALIASES, AUTO
from anechoic.units.ownership import Units
from anechoic.workloads.base import Workload

#: Modes that return (module, optimizer, criterion, data_loader).
WithCriterion = Literal["ghost", "vmap_loss"]
WithoutCriterion = Literal["auto", "rows", "hooks", "functorch", "labels"]
#: What comes back: the module is the given one, wrapped.
Three = tuple[nn.Module, CorrelatedOptimizer, PrivateDataLoader]
Four = tuple[nn.Module, CorrelatedOptimizer, Any, PrivateDataLoader]


class _Common(TypedDict, total=False):
    module: Required[nn.Module]
    optimizer: Required[optim.Optimizer]
    criterion: Any
    data_loader: Required[DataLoader[Any]]
    max_grad_norm: MaxGradNorm
    batch_first: bool
    loss_reduction: str
    poisson_sampling: bool
    clipping: ClippingName
    noise_generator: None
    rand_on_empty: bool
    mechanism: Mechanism | Plan | StrategyName
    epochs: int | None
    steps: int | None
    adjacency: Adjacency | None
    unit: str | None
    participation: Participation | None
    scheduler: Any
    scheduler_interval: Interval
    keep: Kept | float
    workload: Workload | Callable[[int], Workload] | None
    memory_budget: float | str | None
    unit_ids: Any
    exact_sums: bool | None


class ByNoise(_Common, total=False):
    """Of `PrivacyEngine.make_private`."""

    noise_multiplier: float | None
    target_delta: float | None


class ByEpsilon(_Common, total=False):
    """Of `PrivacyEngine.make_private_with_epsilon`."""

    target_epsilon: Required[float]
    target_delta: Required[float]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What was asked for, with a value for every argument; see `PrivacyEngine`.

    `epsilon` and `noise_multiplier` are what a mechanism is planned for, or what a given one must keep. Those
    of Opacus have Opacus's defaults, but for the mode.
    """

    module: nn.Module
    optimizer: optim.Optimizer
    data_loader: DataLoader[Any]
    criterion: Any = nn.CrossEntropyLoss()  # noqa: RUF009 - has no state
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    epochs: int | None = None
    max_grad_norm: MaxGradNorm = None
    batch_first: bool = True
    loss_reduction: str = "mean"
    poisson_sampling: bool = True
    clipping: ClippingName = "flat"
    noise_generator: Any = None
    grad_sample_mode: str = AUTO
    wrap_model: bool = True
    rand_on_empty: bool = False
    mechanism: Mechanism | StrategyName = "auto"
    steps: int | None = None
    adjacency: Adjacency | None = None
    unit: str | None = None
    participation: Participation | None = None
    scheduler: Any = None
    scheduler_interval: Interval = "step"
    keep: Kept | float = "last"
    workload: Workload | Callable[[int], Workload] | None = None
    memory_budget: float | str | None = None
    unit_ids: Any = None
    exact_sums: bool | None = None
    way: str = "store"  # how a given Plan has its noise: the word for NoiseStream(memory=…)

    @classmethod
    def of(cls, options: dict[str, Any]) -> Setup:
        """From the arguments of make_private, or of make_private_with_epsilon.

        Raises:
            ValueError: for a target that is out of range.
        """
        given = DEFAULTS | options
        epsilon, delta = (given.pop(name) for name in _TARGETS.values())
        if "target_epsilon" in options:
            remedy = "Only infinitely much noise gives epsilon = 0."
            epsilon = positive_float("target_epsilon", epsilon, remedy=remedy)
            delta = fraction("target_delta", delta)
        # single rows are run as they are, and what torch.compile made of a model is that model
        given["module"] = getattr(given["module"], "_orig_mod", given["module"])
        if isinstance(given["mechanism"], Plan):
            given["way"] = given["mechanism"].chosen.way
        given["mechanism"] = mechanism_in(given["mechanism"])
        mode = given["grad_sample_mode"]
        if isinstance(mode, str):
            given["grad_sample_mode"] = ALIASES.get(mode, mode)
        return cls(epsilon=epsilon, delta=delta, **given)

    @property
    def clip_norm(self) -> float | None:
        """What a contribution is clipped to over all parameters together, as `max_grad_norm` says."""
        return flat_norm(self.max_grad_norm)

    @property
    def budget(self) -> int | None:
        """`memory_budget` in bytes."""
        return None if self.memory_budget is None else int(byte_count("memory_budget", self.memory_budget))

    @property
    def examples(self) -> int:
        """Length of the data set."""
        return len(self.data_loader.dataset)  # type: ignore[arg-type]

    @cached_property
    def units(self) -> Units | None:
        """Who owns which example; None where an example is a unit."""
        return units_of(self.unit_ids, self.examples)

    @property
    def given(self) -> bool:
        """Whether the loader's own batches of examples are used."""
        if isinstance(self.mechanism, Mechanism):
            return self.mechanism.sampling.formed_outside
        return self.participation is not None

    @property
    def count(self) -> int:
        """N of the mechanism: what batches are drawn from, units or examples."""
        return self.examples if self.units is None or self.given else self.units.count

    @property
    def period(self) -> int:
        """Steps in one pass of the loader."""
        loader = self.data_loader
        if self.units is None or self.given or loader.batch_size is None:
            return len(loader)
        whole, rest = divmod(self.count, loader.batch_size)
        return whole if loader.drop_last or not rest else whole + 1


def units_of(unit_ids: Any, examples: int) -> Units | None:
    """`unit_ids` as Units for a data set of `examples`; None stays None.

    Raises:
        ValueError: for labels that are missing or not hashable.
        MismatchError: if they are not those of `examples` examples.
    """
    if unit_ids is None:
        return None
    units = unit_ids if isinstance(unit_ids, Units) else Units(unit_ids)
    if units.examples != examples:
        raise MismatchError(
            f"unit_ids name the owners of {units.examples} examples, and the data set has {examples}: give"
            " one label for each index of data_loader.dataset, in its order."
        )
    return units


#: What a target of make_private_with_epsilon is here.
_TARGETS = {"epsilon": "target_epsilon", "delta": "target_delta"}
#: What an argument that is not given means.
DEFAULTS: dict[str, Any] = {
    _TARGETS.get(one.name, one.name): one.default for one in fields(Setup) if one.default is not MISSING
}
_Method = TypeVar("_Method", bound=Callable[..., Any])


def spelled(options: Any, *required: str) -> Callable[[_Method], _Method]:
    """Decorator of a method that takes `options` as keywords: `inspect.signature` and help() list them.

    Args:
        options: a TypedDict. What has no default in `DEFAULTS` is required.
        required: what is so beside it.
    """
    known = {"grad_sample_mode", "wrap_model", *options.__required_keys__, *options.__optional_keys__}
    needed = [*(name for name in options.__annotations__ if name not in DEFAULTS), *required]
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in needed]
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default)
        for name, default in DEFAULTS.items()
        if name in known and name not in needed
    ]

    def spell(method: _Method) -> _Method:
        method.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return method

    return spell

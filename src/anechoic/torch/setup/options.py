"""The arguments of make_private for a type checker: which ones there are, and what comes back for them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Literal, Required, TypedDict, TypeVar

from torch import nn, optim
from torch.utils.data import DataLoader

from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.participation.base import Participation
from anechoic.planning.families import StrategyName
from anechoic.planning.objective import Kept
from anechoic.planning.result import Plan
from anechoic.planning.update import Interval
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.sources.base import AUTO
from anechoic.workloads.base import Workload

#: Modes that return (module, optimizer, criterion, data_loader).
WithCriterion = Literal["ghost", "vmap_loss"]
WithoutCriterion = Literal["auto", "rows", "vmap", "hooks", "functorch"]
#: What comes back: the module is the given one, wrapped.
Three = tuple[nn.Module, CorrelatedOptimizer, PrivateDataLoader]
Four = tuple[nn.Module, CorrelatedOptimizer, Any, PrivateDataLoader]


class _Common(TypedDict, total=False):
    module: Required[nn.Module]
    optimizer: Required[optim.Optimizer]
    criterion: Any
    data_loader: Required[DataLoader[Any]]
    max_grad_norm: float | None
    batch_first: bool
    loss_reduction: str
    poisson_sampling: bool
    clipping: Literal["flat"]
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


#: What an argument that is not given means. Those of Opacus have Opacus's defaults, but for the mode.
DEFAULTS: dict[str, Any] = {
    "criterion": nn.CrossEntropyLoss(),
    "target_epsilon": None,
    "target_delta": None,
    "noise_multiplier": None,
    "epochs": None,
    "max_grad_norm": None,
    "batch_first": True,
    "loss_reduction": "mean",
    "poisson_sampling": True,
    "clipping": "flat",
    "noise_generator": None,
    "grad_sample_mode": AUTO,
    "wrap_model": True,
    "rand_on_empty": False,
    "mechanism": "auto",
    "steps": None,
    "adjacency": None,
    "unit": None,
    "participation": None,
    "scheduler": None,
    "scheduler_interval": "step",
    "keep": "last",
    "workload": None,
    "memory_budget": None,
    "unit_ids": None,
    "exact_sums": None,
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

"""The arguments of make_private for a type checker: which ones there are, and what comes back for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Required, TypedDict

from torch import nn, optim
from torch.utils.data import DataLoader

from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.participation import Participation
from anechoic.planning import Plan
from anechoic.planning.families import StrategyName
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.workloads import Workload

#: Modes that return (module, optimizer, criterion, data_loader).
WithCriterion = Literal["ghost", "vmap_loss"]
WithoutCriterion = Literal["auto", "hooks", "functorch", "vmap"]
#: What comes back: the module is the given one, wrapped or with hooks.
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
    workload: Workload | Callable[[int], Workload]
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

"""Arguments of make_private: what each means, its type and its default, for help() and type checkers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature, cleandoc
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, TypeVar

from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset

from anechoic._validate import byte_count, fraction, known_keywords, positive_float
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.participation.base import Participation
from anechoic.planning.families import StrategyName
from anechoic.planning.objective import Kept
from anechoic.planning.update import Interval
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.setup.clip_norms import ClippingName, MaxGradNorm, flat_norm
from anechoic.torch.sources.base import ALIASES, AUTO
from anechoic.units.ownership import Units
from anechoic.workloads.base import Workload

if TYPE_CHECKING:
    from anechoic.planning.result import Plan

#: Modes that return (module, optimizer, criterion, data_loader).
WithCriterion = Literal["ghost", "vmap_loss"]
WithoutCriterion = Literal["auto", "rows", "hooks", "functorch"]
#: What comes back: the module is the given one, wrapped.
Three = tuple[nn.Module, CorrelatedOptimizer, PrivateDataLoader]
Four = tuple[nn.Module, CorrelatedOptimizer, Any, PrivateDataLoader]


class Common(TypedDict, total=False):
    """Arguments of both methods.

    module: plain module on its final device, in train() mode.
    optimizer: over the trainable parameters of `module`.
    data_loader: over a map-style data set, with a batch_size. Each example keeps its index for the whole run:
        no `set_epoch` that permutes the data.
    criterion: loss, used where grad_sample_mode is "ghost" or "vmap_loss".
    max_grad_norm: clip norm of a whole gradient, > 0; or one for each trainable parameter, or by patterns of
        their names: see `clipping`.
    batch_first: whether the batch is the first dimension of tensors.
    loss_reduction: "mean" or "sum", as the criterion's.
    poisson_sampling: whether batches may be sampled at random; False keeps one order of the data.
    clipping: "flat": over all parameters together. "per_layer": each parameter to its own norm: a list in the
        optimizer's order, or one number, of which each has an equal part. "per_group": by the first pattern
        that its name matches, {"embedding.*": 0.5, "*": 1.0}. "automatic": every gradient g becomes
        clip norm * g / (|g| + 0.01), a list or patterns for parts of it. The clip norm of the mechanism is
        the root of the sum of squares.
    grad_sample_mode: "rows" ("auto", and Opacus's "hooks" and "functorch"): each row by itself. "ghost": less
        memory, for models of listed layers. "vmap_loss": the loss too, row by row.
    wrap_model: False, under "ghost" alone, returns no wrapper around `module`.
    mechanism: a Mechanism, or a Plan, whose choice is taken; or "auto", or the name of a strategy
        ("identity", "banded_toeplitz", "blt", …), for one planned from the other arguments. "auto" takes the
        least error of sums; for Adam and its kin what suits their rate: see `plan(optimizer=…)`.
    epochs: passes of the loader; give this or `steps`, unless a Mechanism is given. With neither,
        noise_multiplier and Poisson sampling make a run of independent noise, which may stop after any step.
    steps: n.
    adjacency: see Mechanism.
    unit: what is protected, see Mechanism.
    participation: what is promised of the loader's own batches, which are then used as they are.
    scheduler: of the learning rates, as in `plan`; or the rates. Momentum and weight decay of the optimizer
        are planned for without it.
    scheduler_interval: whether it is stepped once a "step" or once an "epoch".
    keep: which iterates matter, as in `plan`: "last" (default), "all", "average" or a weight.
    workload: instead of what the optimizer adds up to, as in `plan`.
    memory_budget: bytes that the noise state may take, or "2GB"; None as in `plan`. Rows of noise that do not
        fit are made again from the keys in each step where they are sums of few fresh ones.
    unit_ids: who owns each example of the data set: one label an example, or a list of labels, or `Units`.
        Then units are what is sampled, clipped and counted: batch_size is the expected number of units in a
        step, and a batch holds all their examples.
    exact_sums: whether contributions and noise are added up as integers, so that a release is what the proof
        says in spite of floating point. None: as a given Mechanism has it; a planned one has a grid where
        that is possible, and `arithmetic` says why it has none. False: none. True: refused where impossible.
    noise_generator: only None: rows of noise follow from a key.
    rand_on_empty: only False: an empty batch has length 0.
    """

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


class ByNoise(Common, total=False):
    """Arguments of `make_private` alone.

    noise_multiplier: sigma as Opacus means it: that of independent noise, over its reference sensitivity. The
        run keeps the epsilon that this gives at target_delta, whatever mechanism is planned;
        mechanism="identity" takes this very noise.
    target_delta: delta of the printed guarantee; None for 1 / (100 N).
    """

    noise_multiplier: float | None
    target_delta: float | None


class ByEpsilon(Common, total=False):
    """Arguments of `make_private_with_epsilon` alone.

    target_epsilon: > 0, of the whole run. A given Mechanism must keep within it.
    target_delta: in (0, 1), where epsilon is meant.
    """

    target_epsilon: Required[float]
    target_delta: Required[float]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Arguments of make_private, with a value for each: Opacus's defaults, but for the mode."""

    module: nn.Module
    optimizer: optim.Optimizer
    data_loader: DataLoader[Any]
    criterion: Any = nn.CrossEntropyLoss()  # noqa: RUF009 - has no state
    target_epsilon: float | None = None
    target_delta: float | None = None
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
        """Read the arguments of make_private, or of make_private_with_epsilon."""
        given = DEFAULTS | options
        if "target_epsilon" in options:
            given["target_epsilon"] = positive_float("target_epsilon", given["target_epsilon"])
            given["target_delta"] = fraction("target_delta", given["target_delta"])
        # single rows are run as they are, and what torch.compile made of a model is that model
        given["module"] = getattr(given["module"], "_orig_mod", given["module"])
        if not isinstance(given["mechanism"], (Mechanism, str)):  # of a Plan, planning is imported
            from anechoic.planning.result import Plan, mechanism_in

            if isinstance(given["mechanism"], Plan):
                given["way"] = given["mechanism"].chosen.noise_storage
            given["mechanism"] = mechanism_in(given["mechanism"])
        mode = given["grad_sample_mode"]
        given["grad_sample_mode"] = ALIASES.get(mode, mode) if isinstance(mode, str) else mode
        return cls(**given)

    @property
    def clip_norm(self) -> float | None:
        """Return the clip norm of a contribution over all parameters together, by `max_grad_norm`."""
        return flat_norm(self.max_grad_norm)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the optimizer."""
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    @property
    def budget(self) -> int | None:
        """`memory_budget` in bytes."""
        return None if self.memory_budget is None else int(byte_count("memory_budget", self.memory_budget))

    @property
    def examples(self) -> int:
        """Length of the data set; a stream of examples, which has none, is refused."""
        dataset = self.data_loader.dataset
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise UnsupportedError(
                "data_loader has an IterableDataset, whose examples cannot be counted or sampled. Use a"
                " map-style data set, such as DataLoader(list(dataset), …); or, in the order in which records"
                " come, DataLoader(anechoic.torch.RecordStream(dataset, …), …) with participation=."
            )
        return len(dataset)

    @cached_property
    def units(self) -> Units | None:
        """Who owns which example; None where an example is a unit."""
        if self.unit_ids is None:
            return None
        units = self.unit_ids if isinstance(self.unit_ids, Units) else Units(self.unit_ids)
        if units.examples != self.examples:
            raise MismatchError(
                f"unit_ids name the owners of {units.examples} examples, and the data set has"
                f" {self.examples}: give one label for each index of data_loader.dataset, in its order."
            )
        return units

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
        loader, count = self.data_loader, self.count
        if self.units is None or self.given or loader.batch_size is None:
            return len(loader)
        whole, rest = divmod(count, loader.batch_size)
        return whole if loader.drop_last or not rest else whole + 1


#: What an argument that is not given means.
DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Setup) if one.default is not MISSING}
_Method = TypeVar("_Method", bound=Callable[..., Any])


def with_arguments(options: Any) -> Callable[[_Method], _Method]:
    """Decorate a method that takes `options` as keywords: what they mean takes the place of ARGUMENTS."""
    entries: dict[str, str] = {}
    kinds: dict[str, Any] = {"grad_sample_mode": "str", "wrap_model": "bool"} | options.__annotations__
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for name, kind in kinds.items():
        text = getattr(kind, "__forward_arg__", kind)
        required = text.startswith("Required[")
        default = Parameter.empty if required else DEFAULTS[name]
        text = text[len("Required[") : -1] if required else text
        entries[f"\n    {name}: "] = f"\n    {name} ({text}{'' if required else f', default {default!r}'}): "
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=text))

    def spell(method: _Method) -> _Method:
        method.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        lines = [cleandoc(str(one.__doc__)).split("\n\n", 1)[1] for one in (options, Common)]
        text = cleandoc(method.__doc__ or "").replace("ARGUMENTS", indent("\n".join(lines), "    ").strip())
        for plain, whole in entries.items():
            text = text.replace(plain, whole)
        method.__doc__ = text
        return known_keywords(method)  # type: ignore[return-value]

    return spell

"""What make_private refuses, and why: each check names the value, the rule and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from inspect import signature
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from opacus.validators.errors import UnsupportedModuleError
from torch import nn, optim
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from anechoic._validate import one_of, positive_float, positive_int
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism import Mechanism
from anechoic.sampling import BallsInBins, External, FixedOrder, RandomAllocation
from anechoic.torch.gradients import check_not_mixing
from anechoic.torch.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.sources import source_class
from anechoic.torch.sources.vmap import RowsModule
from anechoic.units import Units


def check_options(
    *,
    clipping: str,
    noise_generator: Any,
    grad_sample_mode: str,
    loss_reduction: str,
    rand_on_empty: bool,
    max_grad_norm: Any,
) -> None:
    """Refuse options of Opacus that this engine does not have.

    Raises:
        UnsupportedError: for an option that Opacus has.
        ValueError: for a word that neither knows.
    """
    if clipping != "flat":
        raise UnsupportedError(
            f"clipping={clipping!r}: the mechanism bounds the norm of an example's whole gradient. Use"
            " 'flat'."
        )
    if noise_generator is not None:
        raise UnsupportedError(
            "noise_generator is given, but rows of noise follow from a 256-bit key, which a torch generator"
            " does not hold: leave it out, or pass PrivacyEngine(noise_key=…)."
        )
    if rand_on_empty:
        raise UnsupportedError(
            "rand_on_empty=True would put a made-up example into empty batches, and adding or removing the"
            " only real one would then move the sum by up to twice the clip norm. Leave it False: empty"
            " batches have length 0."
        )
    source_class(grad_sample_mode)
    one_of("loss_reduction", loss_reduction, ("mean", "sum"))
    if isinstance(max_grad_norm, (list, tuple)):
        raise UnsupportedError(
            "max_grad_norm is a list: per-layer clipping is not supported. Give one number."
        )
    if max_grad_norm is not None:
        positive_float("max_grad_norm", max_grad_norm)


def check_criterion(criterion: Any, loss_reduction: str) -> None:
    """Refuse a criterion, for ghost clipping, that cannot return one loss an example.

    Raises:
        UnsupportedError: if it has no attribute `reduction`.
        ValueError: if it reduces otherwise than the run does.
    """
    if not callable(criterion) or not hasattr(criterion, "reduction"):
        raise UnsupportedError(
            f"criterion={criterion!r} has no attribute `reduction`, but ghost clipping needs the loss of each"
            " example. Give a torch criterion such as nn.CrossEntropyLoss(), or a module of your own that"
            " returns one loss an example while its `reduction` is 'none'; or use grad_sample_mode='hooks'."
        )
    reduction = criterion.reduction
    if reduction != loss_reduction:
        raise ValueError(
            f"criterion.reduction={reduction!r} differs from loss_reduction={loss_reduction!r}: make both"
            " the same."
        )


def refuse_unknown(options: dict[str, Any], method: Callable[..., Any]) -> None:
    """Refuse keyword arguments that mean nothing to `method`.

    Raises:
        TypeError: naming the first.
    """
    for name in options:
        known = [known for known in signature(method).parameters if known not in ("self", "unknown")]
        close = get_close_matches(name, known, n=2)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise TypeError(
            f"{method.__name__} has no argument {name!r}: nothing is ignored, since it could change what is"
            f" private.{hint}"
        )


def check_module(module: Any, *, by_layers: bool = True) -> None:
    """Refuse modules whose per-example gradients cannot be had or bounded.

    Args:
        module: the user's.
        by_layers: whether gradients are found layer by layer, by Opacus's rules.

    Raises:
        UnsupportedError: for distributed, compiled or already private modules, and where Opacus cannot
            compute per-example gradients (its own error is the cause).
        ValueError: for something else than a module.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={type(module).__name__} must be a torch.nn.Module.")
    wrapped = isinstance(module, (AbstractGradSampleModule, RowsModule))
    if wrapped or hasattr(module, "autograd_grad_sample_hooks"):
        raise UnsupportedError("module is wrapped for private training already: pass the plain module.")
    names = {cls.__name__ for part in module.modules() for cls in type(part).__mro__}
    for name in ("DistributedDataParallel", "DifferentiallyPrivateDistributedDataParallel", "DataParallel"):
        if name in names:
            raise UnsupportedError(
                f"module is {name}: distributed training is not supported yet. Pass the plain module."
            )
    if any(name.startswith(("FSDP", "FullySharded")) for name in names):
        raise UnsupportedError(
            "module is sharded (FSDP): distributed training is not supported yet. Pass the plain module."
        )
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise UnsupportedError(
            f"torch.distributed runs {torch.distributed.get_world_size()} processes: each would make"
            " releases of its own. Train in one process."
        )
    if "OptimizedModule" in names:
        raise UnsupportedError(
            "module was made by torch.compile, which runs its layers without the hooks that see single"
            " examples: pass the plain module."
        )
    if not module.training:
        raise UnsupportedError("module is in eval() mode: call model.train() before make_private.")
    for name, layer in module.named_modules():
        _check_embedding(name, layer)
    try:
        if by_layers:
            ModuleValidator.validate(module, strict=True)
    except UnsupportedModuleError as error:
        raise UnsupportedError(
            f"Opacus cannot compute per-example gradients of this module: {error} Call model ="
            " PrivacyEngine.get_compatible_module(model), which replaces such layers where it can, and make"
            " the optimizer from that model's parameters."
        ) from error
    check_not_mixing(module.modules())


def _check_embedding(name: str, layer: nn.Module) -> None:
    if not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or not layer.weight.requires_grad:
        return
    for option, why, remedy in (
        ("max_norm", "renormalises the rows of a batch in the forward pass, without noise", "None"),
        ("sparse", "has no dense gradient to add noise to", "False"),
    ):
        value = getattr(layer, option)
        if value is not None and value is not False:
            raise UnsupportedError(
                f"{name or 'module'} is {type(layer).__name__}({option}={value}), which {why}: set"
                f" {option} to {remedy}."
            )


def check_optimizer(optimizer: Any, module: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of the optimizer, which must be those of the module.

    Raises:
        ValueError: if it is no optimizer, or their parameters differ.
        UnsupportedError: for optimizers and parameters that cannot carry the noise.
    """
    if isinstance(optimizer, (CorrelatedOptimizer, DPOptimizer)):
        raise UnsupportedError(
            "optimizer is private already: pass the plain torch optimizer it was made from."
        )
    if not isinstance(optimizer, optim.Optimizer):
        raise ValueError(f"optimizer={type(optimizer).__name__} must be a torch.optim.Optimizer.")
    if isinstance(optimizer, optim.LBFGS):
        raise UnsupportedError(
            "LBFGS evaluates a batch several times a step: use an optimizer that does so once."
        )
    own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    if len({id(p) for p in own}) != len(own) or {id(p) for p in own} != trainable:
        raise ValueError(
            f"Module parameters are different than optimizer Parameters: the module has {len(trainable)}"
            f" trainable ones, the optimizer {len(own)}. Make the optimizer from module.parameters(), and"
            " freeze what it should not train with requires_grad_(False)."
        )
    if not own:
        raise ValueError("module has no trainable parameter: there is nothing to train privately.")
    devices = {str(p.device) for p in own}
    if len(devices) > 1:
        raise UnsupportedError(
            f"parameters lie on {sorted(devices)}: a noise row lies on one device. Move them to one."
        )
    for p in own:
        if p.dtype not in (torch.float32, torch.float64):
            raise UnsupportedError(
                f"a parameter is {p.dtype}: sums of clipped gradients need float32 or float64. Keep the"
                " parameters in float32, and use torch.autocast for speed."
            )
    return own


def check_loader(loader: Any) -> None:
    """Refuse loaders without a data set that can be indexed.

    Raises:
        ValueError: for something else than a DataLoader.
        UnsupportedError: for loaders whose batches cannot be formed from an index, and a Subset with
            duplicates.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"data_loader={type(loader).__name__} must be a torch.utils.data.DataLoader.")
    if isinstance(loader, PrivateDataLoader):
        raise UnsupportedError("data_loader is private already: pass the plain one it was made from.")
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise UnsupportedError(
            "data_loader has an IterableDataset, whose examples cannot be counted or sampled: use a"
            " map-style data set."
        )
    part: Any = loader.dataset
    while isinstance(part, Subset):
        indices = [int(i) % len(part.dataset) for i in part.indices]  # type: ignore[arg-type]
        if len(set(indices)) < len(indices):
            raise UnsupportedError(
                f"data_loader's Subset names {len(indices) - len(set(indices))} examples more than once: one"
                " could then move a sum by more than the clip norm. Name each index once."
            )
        part = part.dataset
    if loader.batch_sampler is None:
        raise UnsupportedError(
            "data_loader has batch_size=None, so nobody forms batches: give it a batch_size."
        )


def is_shuffled(loader: DataLoader[Any]) -> bool:
    """Whether the loader's sampler is a RandomSampler (else: a SequentialSampler).

    Raises:
        UnsupportedError: if it is any other, since what it promises about participation is unknown.
    """
    remedy = (
        "Use shuffle=True or shuffle=False; where somebody else forms the batches and promises how often a"
        " unit takes part, pass a Mechanism with External sampling, or participation=…"
    )
    if type(loader.batch_sampler) is not BatchSampler:
        kind = type(loader.batch_sampler).__name__
        raise UnsupportedError(
            f"data_loader forms batches by its own {kind}, which would be replaced. {remedy}."
        )
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return False
    size = len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.num_samples != size:
        detail = ""
        if type(sampler) is RandomSampler:
            detail = f" with replacement={sampler.replacement}, num_samples={sampler.num_samples}"
        raise UnsupportedError(
            f"data_loader draws examples by {type(sampler).__name__}{detail}, which would be replaced."
            f" {remedy}."
        )
    return True


def planned_size(loader: DataLoader[Any], count: int, participation: Any = None) -> int:
    """The loader's batch size, of which `count` are drawn from.

    Raises:
        ValueError: if it exceeds `count`.
        UnsupportedError: if a batch sampler of the user's says nothing about the size.
    """
    size = loader.batch_size
    if size is None and participation is None:
        raise UnsupportedError(
            "data_loader has a batch_sampler, whose batches would be replaced. Use shuffle=True or"
            " shuffle=False with a batch_size; where somebody else forms the batches, pass a Mechanism with"
            " External sampling."
        )
    if size is None:  # batches of somebody else, of whatever size: nothing says what to divide by
        raise UnsupportedError(
            f"data_loader has a batch_sampler, and so no batch_size: participation={participation!r} says how"
            " often a unit takes part, not what the sum of a batch is divided by. Pass mechanism= a Mechanism"
            " with External(participation, batch_size, steps), made by anechoic.calibrate."
        )
    if size > count:
        raise ValueError(
            f"data_loader.batch_size={size} exceeds the {count} there are to draw from: it is the expected"
            " number of units in a step. Take smaller batches."
        )
    return size


def planned_steps(period: int, epochs: Any, steps: Any) -> int:
    """n, as an integer; `period` is the number of steps in a pass.

    Raises:
        ValueError: if not exactly one of the two is given, or it is below 1.
    """
    if (epochs is None) == (steps is None):
        raise ValueError(
            f"epochs={epochs}, steps={steps}: give one of the two, since correlated noise is planned for a"
            " known number of releases; or pass a Mechanism."
        )
    if steps is not None:
        return positive_int("steps", steps)
    return positive_int("epochs", epochs) * positive_int(
        "len(data_loader)", period, remedy="It has no batch."
    )


def fitting_batch(count: int, period: int) -> tuple[int, bool] | None:
    """(batch_size, drop_last) of a loader that goes through `count` units or examples in `period` batches.

    Args:
        count, period: >= 1.

    Returns:
        With drop_last=False where that is possible; None where no batch size gives that many batches.
    """
    size = -(-count // period)  # the smallest that makes at most `period` batches
    if -(-count // size) == period:
        return size, False
    size = count // period  # the largest that fills at least `period`
    return (size, True) if size and count // size == period else None


def check_fit(
    mechanism: Mechanism,
    loader: DataLoader[Any],
    *,
    examples: int,
    period: int,
    units: Units | None,
    poisson_sampling: bool,
    max_grad_norm: Any,
    noise_multiplier: Any,
    epochs: Any,
    steps: Any,
    adjacency: Any,
    unit: Any,
    participation: Any,
) -> None:
    """Refuse a Mechanism that was made for something else; None stands for what it says.

    Args:
        examples: how many there are to draw from: units, where batches are drawn of them.
        period: steps in one pass.
        units: who owns what, where units own several examples.
        (others): as given to make_private.

    Raises:
        MismatchError: naming both values.
    """
    sampling: Any = mechanism.sampling
    remedy = "Calibrate the mechanism for this run, or set up the run that it was calibrated for"
    given = isinstance(sampling, External)
    if units is not None and not given and sampling.examples != examples:
        raise MismatchError(
            f"unit_ids name {examples} units, the mechanism's sampling has examples={sampling.examples}:"
            f" where the unit is {mechanism.unit!r}, it counts those. {remedy}."
        )
    if sampling.examples not in (None, examples, units.count if units is not None and given else None):
        raise MismatchError(
            f"the data set has {examples} examples, the mechanism's sampling {sampling.examples}. {remedy}."
        )
    own_period = isinstance(sampling, (BallsInBins, RandomAllocation))  # B follows from it
    if not own_period and loader.batch_size not in (None, mechanism.expected_batch_size):
        raise MismatchError(
            f"data_loader.batch_size={loader.batch_size}, the mechanism's is"
            f" {mechanism.expected_batch_size}. {remedy}."
        )
    if isinstance(sampling, FixedOrder) and period != sampling.period:
        raise MismatchError(
            f"data_loader has {period} batches a pass, the mechanism {sampling.period}:"
            f" drop_last={loader.drop_last} here and {sampling.drop_last} there. Give the loader"
            f" drop_last={sampling.drop_last}; or calibrate the mechanism with drop_last={loader.drop_last}."
        )
    if own_period and period != sampling.period:
        what = "examples" if units is None else f"units ({mechanism.unit!r})"
        fitting = fitting_batch(examples, sampling.period)
        advice = f"No batch_size goes through {examples} {what} in {sampling.period} batches. {remedy}"
        if fitting is not None:
            advice = f"Give the loader batch_size={fitting[0]}, drop_last={fitting[1]}; or: {remedy.lower()}"
        raise MismatchError(
            f"data_loader has {period} batches a pass, the mechanism {sampling.period}"
            f" ({type(sampling).__name__}, whose batches hold {mechanism.expected_batch_size:.6g} {what} on"
            f" average). {advice}."
        )
    if not poisson_sampling and mechanism.amplified:
        raise MismatchError(
            f"poisson_sampling=False, but the mechanism's guarantee rests on {type(sampling).__name__}"
            " sampling. Leave it True, or calibrate a mechanism for FixedOrder."
        )
    pairs = [
        ("max_grad_norm", max_grad_norm, mechanism.clip_norm),
        ("noise_multiplier", noise_multiplier, mechanism.noise_multiplier),
        ("adjacency", adjacency, mechanism.adjacency),
        ("unit", unit, mechanism.unit),
        ("participation", participation, mechanism.participation),
        ("steps", steps, mechanism.steps),
        ("epochs * len(data_loader)", None if epochs is None else epochs * period, mechanism.steps),
    ]
    for name, given, own in pairs:
        if given is not None and given != own:
            raise MismatchError(
                f"{name}={given!r}, the mechanism's is {own!r}. Leave it out, or: {remedy.lower()}."
            )


def check_budget(mechanism: Mechanism, target_epsilon: float, target_delta: float) -> None:
    """Refuse a Mechanism that spends more than is allowed.

    Raises:
        MismatchError: naming both values.
    """
    spent = mechanism.epsilon(target_delta)
    if not spent <= target_epsilon or math.isnan(target_epsilon):
        raise MismatchError(
            f"target_epsilon={target_epsilon} at target_delta={target_delta}, but the mechanism has"
            f" epsilon={spent:.6g} there: calibrate one for the target."
        )

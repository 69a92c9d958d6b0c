"""Checks of make_private: each names the value, the rule and the remedy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from anechoic._validate import flag, one_of
from anechoic.batches.base import Batches
from anechoic.errors import GuaranteeError, MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.loading.loader import PrivateDataLoader, RecordStream
from anechoic.torch.noise_adder import running_ranks
from anechoic.torch.optimizer import STAMP, CorrelatedOptimizer, statistics_in
from anechoic.torch.run import latest_run
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.sources.base import source_class
from anechoic.torch.sources.levels import check_not_mixing
from anechoic.torch.sources.rows import RowsModule
from anechoic.torch.structure import bits
from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units

logger = logging.getLogger("anechoic")

_PRIVATE = (RowsModule, CorrelatedOptimizer, PrivateDataLoader)
#: What Opacus's make_private returns, by name: Opacus need not be installed.
_OPACUS = {"AbstractGradSampleModule", "DPOptimizer", "DPDataLoader"}
#: Why a mode has no exact sums.
NO_ROWS = "it never has the gradient of a single example, which is what is rounded to a grid"


# -- arguments ---------------------------------------------------------------------------------


def check_arguments(method: Callable[..., Any], positional: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse arguments without a name, keywords that mean nothing to `method`, and missing ones."""
    try:
        signature(method).bind(*positional, **options)
    except TypeError as error:
        raise TypeError(
            f"{method.__name__}: {error}. It takes keywords only, as Opacus's does, and ignores none:"
            f" {method.__name__}(module=model, optimizer=optimizer, data_loader=loader, …)."
        ) from None


def check_options(setup: Setup) -> None:
    """Refuse options of Opacus that this engine does not have, and words and flags that mean nothing."""
    if setup.noise_generator is not None:
        raise UnsupportedError(
            "noise_generator is given, but noise follows from a 256-bit key: leave it out, or pass"
            " PrivacyEngine(noise_key=…)."
        )
    if setup.rand_on_empty:
        raise UnsupportedError(
            "rand_on_empty=True would put a made-up example into empty batches, so that the only real one"
            " moves a sum by up to twice the clip norm. Leave it False: empty batches have length 0."
        )
    source = source_class(setup.grad_sample_mode)
    for name in ("poisson_sampling", "batch_first", "wrap_model"):
        flag(name, getattr(setup, name))
    one_of("loss_reduction", setup.loss_reduction, ("mean", "sum"))
    exact, mechanism = setup.exact_sums, setup.mechanism
    if exact is not None:
        flag("exact_sums", exact)
    if isinstance(mechanism, Mechanism):
        gridded = mechanism.grid_bits is not None
        if exact not in (None, gridded):
            raise MismatchError(
                f"exact_sums={exact}, but the mechanism has grid_bits={mechanism.grid_bits}: the grid is a"
                " part of it. Leave exact_sums out, or use dataclasses.replace(mechanism, grid_bits=…)."
            )
        exact = gridded
    if exact and not source.takes_grid:
        raise UnsupportedError(
            f"grad_sample_mode={setup.grad_sample_mode!r} with exact sums: {NO_ROWS}. Use 'rows', or"
            " exact_sums=False and no grid_bits."
        )


def check_plain(**given: Any) -> None:
    """Refuse results of make_private, Opacus's too, and an optimizer whose run has made releases."""
    names = {name: {cls.__name__ for cls in type(thing).__mro__} for name, thing in given.items()}
    private = [name for name in given if isinstance(given[name], _PRIVATE) or names[name] & _OPACUS]
    if private:
        raise UnsupportedError(
            f"{' and '.join(private)} came out of make_private before, as when a notebook cell is run twice."
            " To go on with that run, use them as they are. To begin anew, make model, optimizer and data"
            " loader again, in the same cell as make_private: pass the plain ones."
        )
    earlier = latest_run(given["optimizer"])
    if earlier is not None and (made := earlier.ledger.releases):
        raise GuaranteeError(
            f"optimizer belongs to a run of {made} releases, as when a notebook cell is run twice. To go on"
            " with that run, use what it returned. To begin anew, make model and optimizer again, in the same"
            " cell as make_private. To train the same weights further, make a new optimizer, and call"
            f" engine.charge(mechanism, releases={made}) with the mechanism of that run."
        )


# -- model and optimizer -----------------------------------------------------------------------

#: What the class of a module's part may not be, and what to do.
_SHARED = "pass the plain module, on every rank: processes share a release without it."
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")
_NOT_PLAIN = dict.fromkeys((*_WRAPPERS, "DifferentiallyPrivateDistributedDataParallel"), _SHARED) | {
    "ScriptModule": "pass the plain module, and script a copy of it when training is over.",
    "OptimizedModule": "put its _orig_mod in its place. The whole model may be compiled.",
}


#: Options of embeddings, and what is wrong with them.
_EMBEDDINGS = {
    "max_norm": "renormalises the rows of a batch in the forward pass, without noise",
    "sparse": "has no dense gradient to add noise to",
    "scale_grad_by_freq": "divides by how often a word is in the whole batch",
}


def check_module(module: Any) -> None:
    """Refuse modules whose per-example gradients cannot be had or bounded."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={type(module).__name__} must be a torch.nn.Module.")
    for name, part in module.named_modules():
        for cls in type(part).__mro__:
            if cls.__name__ in _NOT_PLAIN:
                raise UnsupportedError(f"{name or 'module'} is {cls.__name__}: {_NOT_PLAIN[cls.__name__]}")
        if not isinstance(part, (nn.Embedding, nn.EmbeddingBag)) or not part.weight.requires_grad:
            continue
        for option, why in _EMBEDDINGS.items():
            if (value := getattr(part, option)) not in (None, False):
                raise UnsupportedError(
                    f"{name or 'module'} is {type(part).__name__}({option}={value}), which {why}: leave"
                    f" {option} out."
                )
    if not module.training:
        raise UnsupportedError("module is in eval() mode: call model.train() before make_private.")
    check_not_mixing(module.modules())


#: What to do in the place of several.
ONE_OPTIMIZER = (
    "One optimizer trains all parameters: in the place of two give one parameter groups, as"
    " torch.optim.SGD([{'params': body, 'lr': 0.1}, {'params': head, 'lr': 0.01}])"
)


def check_optimizer(optimizer: Any, module: nn.Module) -> None:
    """Refuse an optimizer whose trainable parameters are not those of the module."""
    if not isinstance(optimizer, optim.Optimizer):
        raise ValueError(
            f"optimizer={type(optimizer).__name__} must be a torch.optim.Optimizer. {ONE_OPTIMIZER}."
        )
    if isinstance(optimizer, optim.LBFGS):
        raise UnsupportedError("LBFGS evaluates a batch several times a step: use another optimizer.")
    own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    trained = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    held = {id(p) for p in own}
    left = [name for key, name in trained.items() if key not in held]
    apart = ""
    if len(held) != len(own):
        apart = "the optimizer holds a parameter twice. Name each once."
    elif strange := held - trained.keys():
        apart = (
            f"{len(strange)} of the optimizer's {len(own)} are none that the module trains. Make the"
            " optimizer from model.parameters(), after the model is final: made anew, converted and moved."
        )
    elif left:
        apart = (
            f"the module trains {len(trained)}, and the optimizer lacks {len(left)} of them ({left[0]}, for"
            f" instance). {ONE_OPTIMIZER}; and freeze what is not trained with requires_grad_(False)."
        )
    if apart:
        raise ValueError(f"Module parameters are different than optimizer Parameters: {apart}")
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
                f"parameter {trained[id(p)]} is {p.dtype}: sums of clipped gradients need float32 or float64."
                f" Leave out .to({p.dtype}), and use torch.autocast for speed (of complex numbers make a real"
                " parameter with a last axis of 2, for torch.view_as_complex). Frozen ones may have any type."
            )


def report_optimizer_state(optimizer: optim.Optimizer) -> None:
    """Warn of statistics in an optimizer that do not say what was released for them."""
    if any(STAMP in group for group in optimizer.param_groups):
        return  # the first step asks for what it says
    if kept := statistics_in(optimizer.state):
        logger.warning(
            "the optimizer holds %d tensors of statistics of earlier gradients. If they come of public data,"
            " all is well. If they come of private data, as the weights then do, call"
            " engine.charge(mechanism) with the mechanism that was used, or begin with new weights and a new"
            " optimizer.",
            kept,
        )


# -- loader and ranks --------------------------------------------------------------------------


def check_loader(setup: Setup) -> None:
    """Refuse loaders whose batches cannot be formed from an index, or whose indices name an example twice."""
    loader = setup.data_loader
    if not isinstance(loader, DataLoader):
        raise ValueError(f"data_loader={type(loader).__name__} must be a torch.utils.data.DataLoader.")
    part: Any = loader.dataset if setup.examples else None
    while isinstance(part, Subset):
        indices = [int(i) % len(part.dataset) for i in part.indices]  # type: ignore[arg-type]
        if len(set(indices)) < len(indices):
            raise UnsupportedError(
                f"data_loader's Subset names {len(indices) - len(set(indices))} examples more than once,"
                " which are then not clipped as one. Name each index once."
            )
        part = part.dataset
    if loader.batch_sampler is None:
        raise UnsupportedError("data_loader has batch_size=None: give it a batch_size.")


def check_one_process(who: str) -> None:
    """Refuse several processes of torch.distributed, in each of which `who` would make its own releases."""
    if running_ranks() > 1:
        raise UnsupportedError(
            f"torch.distributed runs {running_ranks()} processes, in each of which {who} would make releases"
            " of its own. Train in one process; or write the loop yourself."
        )


def check_ranks(setup: Setup, backend: str) -> None:
    """Refuse a loader whose sampler divides the data over ranks; warn of a `backend` that no test has run."""
    devices = {p.device.type for p in setup.module.parameters()}
    if backend != "gloo" or devices != {"cpu"}:
        logger.warning(
            "backend %r with parameters on %s: several ranks were tested with 'gloo' on CPUs alone.",
            backend,
            sorted(devices),
        )
    if type(getattr(setup.data_loader, "sampler", None)) is DistributedSampler:
        raise UnsupportedError(
            "data_loader has a DistributedSampler, but each rank finds its rows of a batch by itself. Write"
            " shuffle=True in its place, and leave out set_epoch()."
        )
    if isinstance(getattr(setup.data_loader, "dataset", None), RecordStream):
        raise UnsupportedError(
            "data_loader has a RecordStream, which each rank would read by itself, and nobody compares what"
            " they read: an owner could take part on each. Train in one process."
        )


def check_stream(setup: Setup, mechanism: Mechanism, stream: RecordStream) -> None:
    """Refuse another promise, size, order or worker than those that a stream of records keeps to."""
    sampling, loader = mechanism.sampling, setup.data_loader
    promised = sampling.participation if sampling.formed_outside else None
    pairs = [
        ("participation", promised, stream.participation),
        ("the loader's batch_size", loader.batch_size, stream.batch_size),
        ("steps (epochs times batches, where those are given)", mechanism.steps, stream.steps),
        ("num_workers", loader.num_workers, 0),
        ("unit_ids", setup.unit_ids, None),
    ]
    for name, found, wanted in pairs:
        if found != wanted:
            raise MismatchError(f"{name} is {found!r}, and a RecordStream needs {wanted!r}: give that.")


# -- units -------------------------------------------------------------------------------------


def check_units(setup: Setup) -> None:
    """Refuse units that do not fit the statement, and another unit than an example without them."""
    units, mechanism, unit, adjacency = setup.units, setup.mechanism, setup.unit, setup.adjacency
    if unit is not None and (not isinstance(unit, str) or not unit.strip()):
        raise ValueError(f"unit={unit!r} must be a word that names what is protected, such as 'user'.")
    if isinstance(mechanism, Mechanism):
        unit, adjacency = mechanism.unit, mechanism.adjacency
    if units is None:
        if unit not in (None, "example") and not setup.given:
            raise MismatchError(
                f"unit={unit!r}, but unit_ids is missing: batches would be drawn and clipped by example. Give"
                " unit_ids, one label an example; or participation=, where a row of a batch is a whole unit."
            )
        return
    if unit is None:
        logger.warning(
            "unit_ids are given and unit= is not: say what is protected in the statement, as unit='user'."
        )
    if setup.grad_sample_mode == "ghost":
        raise UnsupportedError(
            "grad_sample_mode='ghost' with unit_ids: it never has the gradient of a unit. Use 'rows'."
        )
    check_schema(unit or "unit", units=units, adjacency=adjacency or "zero_out")


def report_units(batches: Batches, units: Units, unit: str, dataset: Any, *, secret: bool) -> None:
    """Log who owns what, what can never be used, and copies of one example that different units own.

    Where the guarantee rests on who is drawn (`secret`), what follows from that is not logged.
    """
    logger.info("unit %r: %s; gradients are clipped by %s", unit, units.describe(), unit)
    if batches.unreachable:
        # where it is secret, the number would tell who is in which bin
        exact = f"{batches.unreachable} of {units.examples} examples"
        logger.warning(
            "%s can be in no batch, since their owners never take part in the same step, or their batch is"
            " left out. Give each example one owner, or leave such examples out of the data.",
            "some examples" if secret else exact,
        )
    if type(dataset) is TensorDataset and all(t.device.type == "cpu" for t in dataset.tensors):
        # as bytes: NumPy does not have all of torch's types
        arrays = [bits(t.detach()).reshape(len(t), -1).numpy() for t in dataset.tensors]
        try:
            check_schema(unit, units=units, duplicates=find_duplicates(arrays))
        except MismatchError as error:
            logger.warning("%s", error)

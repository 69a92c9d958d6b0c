"""Checks of make_private: each names the value, the rule and the remedy."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from difflib import get_close_matches
from inspect import Parameter, signature
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset

from anechoic._validate import flag, one_of
from anechoic.errors import UnsupportedError
from anechoic.torch.distributed import running_ranks
from anechoic.torch.guard import check_not_mixing
from anechoic.torch.history import STAMP
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.setup.clip_norms import check_words
from anechoic.torch.sources.base import source_class
from anechoic.torch.structure import TORCHS_OWN

logger = logging.getLogger("anechoic")


def check_options(setup: Setup) -> None:
    """Refuse options of Opacus that this engine does not have, and flags that are neither True nor False.

    Raises:
        UnsupportedError: for an option that Opacus has.
        ValueError: for a word that neither knows, or such a flag.
    """
    check_words(setup.clipping, setup.max_grad_norm)
    if setup.noise_generator is not None:
        raise UnsupportedError(
            "noise_generator is given, but rows of noise follow from a 256-bit key, which a torch generator"
            " does not hold: leave it out, or pass PrivacyEngine(noise_key=…)."
        )
    if setup.rand_on_empty:
        raise UnsupportedError(
            "rand_on_empty=True would put a made-up example into empty batches, and adding or removing the"
            " only real one would then move the sum by up to twice the clip norm. Leave it False: empty"
            " batches have length 0."
        )
    source_class(setup.grad_sample_mode)
    for name in ("poisson_sampling", "batch_first", "wrap_model"):
        flag(name, getattr(setup, name))
    one_of("loss_reduction", setup.loss_reduction, ("mean", "sum"))


def check_arguments(method: Callable[..., Any], positional: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse arguments without a name, keywords that mean nothing to `method`, and missing ones.

    Raises:
        TypeError: naming the first.
    """
    name = method.__name__
    if positional:
        raise TypeError(
            f"{name} was given {len(positional)} arguments without a name, and takes keywords only, as"
            f" Opacus's does: {name}(module=model, optimizer=optimizer, data_loader=loader, …)."
        )
    known = signature(method).parameters
    for option in options:
        if option not in known:
            close = get_close_matches(option, known, n=2)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise TypeError(
                f"{name} has no argument {option!r}: nothing is ignored, since it could change what is"
                f" private.{hint}"
            )
    missing = [one for one, how in known.items() if how.default is Parameter.empty and one not in options]
    if missing:
        raise TypeError(f"{name} needs {', '.join(f'{one}=' for one in missing)} too.")


#: What torch and Opacus wrap around a module.
_WRAPPERS = (
    *("DistributedDataParallel", "DifferentiallyPrivateDistributedDataParallel"),
    *("DataParallel", "FullyShardedDataParallel"),
)


def check_module(module: Any, *, by_layers: bool = True) -> None:
    """Refuse modules whose per-example gradients cannot be had or bounded.

    Args:
        module: the user's.
        by_layers: whether gradients are found layer by layer, by rules for each.

    Raises:
        UnsupportedError: for distributed or compiled modules, and embeddings that release without noise.
        GuaranteeError: for batch normalisation by the statistics of the batch.
        ValueError: for something else than a module.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={type(module).__name__} must be a torch.nn.Module.")
    names = {cls.__name__ for part in module.modules() for cls in type(part).__mro__}
    for name in _WRAPPERS:
        if name in names:
            raise UnsupportedError(f"module is {name}: pass the plain module (docs/many-devices.md).")
    if any(hasattr(tensor, "placements") for tensor in (*module.parameters(), *module.buffers())):
        raise UnsupportedError(
            "module has parameters that torch.distributed has cut up (DTensor, as of fully_shard or"
            " parallelize_module): pass the plain module on every rank, whose rows are divided over ranks."
        )
    scripted = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        raise UnsupportedError(
            f"{scripted[0] or 'module'} was made by torch.jit, whose compiled code cannot be run row by row,"
            " nor be watched: pass the plain module, and script a copy of it when training is over."
        )
    if "OptimizedModule" in names:
        raise UnsupportedError(
            "a part of module was made by torch.compile, which runs its layers without seeing single"
            " examples: leave it plain, or put its _orig_mod in its place. The whole model may be compiled:"
            " then evaluation is compiled, and training steps run as they are."
        )
    if not module.training:
        raise UnsupportedError("module is in eval() mode: call model.train() before make_private.")
    for name, layer in module.named_modules():
        _check_embedding(name, layer, by_layers)
    check_not_mixing(module.modules())


def check_one_process(who: str) -> None:
    """Refuse several processes of torch.distributed.

    Args:
        who: would make releases of its own in each of them.

    Raises:
        UnsupportedError: where there are several.
    """
    if running_ranks() > 1:
        raise UnsupportedError(
            f"torch.distributed runs {running_ranks()} processes, and {who} would make releases of its own in"
            " each of them. Train in one process; or write the loop yourself (docs/many-devices.md)."
        )


def check_ranks(setup: Setup, backend: str) -> None:
    """Refuse a loader whose sampler divides the data over ranks; warn of what no test has run.

    Args:
        setup: as asked for.
        backend: of torch.distributed.

    Raises:
        UnsupportedError: naming the remedy.
    """
    devices = {p.device.type for p in setup.module.parameters()}
    if backend != "gloo" or devices != {"cpu"}:
        logger.warning(
            "backend %r with parameters on %s: several ranks were tested with 'gloo' on CPUs alone. Ranks"
            " that end a step with different weights are refused at the next one.",
            backend,
            sorted(devices),
        )
    if type(getattr(setup.data_loader, "sampler", None)) is DistributedSampler:
        raise UnsupportedError(
            "data_loader has a DistributedSampler, which would be replaced: every rank is given the whole"
            " data set, and finds its rows of each batch by itself. Write shuffle=True in its place, and"
            " leave out set_epoch()."
        )


def report_optimizer_state(optimizer: optim.Optimizer) -> None:
    """Warn of statistics in an optimizer that do not say what was released for them."""
    if any(STAMP in group for group in optimizer.param_groups):
        return  # the first step asks for what it says
    kept = sum(isinstance(value, Tensor) and value.dim() > 0 for value in tree_leaves(dict(optimizer.state)))
    if kept:
        logger.warning(
            "the optimizer holds %d tensors of statistics of earlier gradients, and does not say what was"
            " released for them. If they come of public data, all is well. If they come of private data, as"
            " the weights then do, get_epsilon does not know of it: call engine.charge(mechanism) with the"
            " mechanism that was used, or begin with new weights and a new optimizer.",
            kept,
        )


def _check_embedding(name: str, layer: nn.Module, by_layers: bool) -> None:
    if not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or not layer.weight.requires_grad:
        return
    for option, allowed, why in (
        ("max_norm", (None,), "renormalises the rows of a batch in the forward pass, without noise"),
        ("sparse", (False,), "has no dense gradient to add noise to"),
        ("scale_grad_by_freq", (False,), "divides by how often a word is in the whole batch"),
        ("mode", ("mean", "sum"), "has no rule for single rows here (grad_sample_mode='rows' needs none)"),
    ):
        if option == "mode" and not by_layers:
            continue
        value = getattr(layer, option, allowed[0])
        if value not in allowed:
            remedy = " or ".join(map(repr, allowed))
            raise UnsupportedError(
                f"{name or 'module'} is {type(layer).__name__}({option}={value}), which {why}: set"
                f" {option} to {remedy}."
            )


#: What to do in the place of several.
ONE_OPTIMIZER = (
    "One optimizer trains all parameters, since one clip norm and one row of noise cover an example's whole"
    " gradient: in the place of two optimizers give one parameter groups, as"
    " torch.optim.SGD([{'params': body, 'lr': 0.1}, {'params': head, 'lr': 0.01}])"
)


def check_optimizer(optimizer: Any, module: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of the optimizer, which must be those of the module.

    Raises:
        ValueError: if it is no optimizer, or their parameters differ.
        UnsupportedError: for optimizers and parameters that cannot carry the noise.
    """
    if not isinstance(optimizer, optim.Optimizer):
        raise ValueError(
            f"optimizer={type(optimizer).__name__} must be a torch.optim.Optimizer. {ONE_OPTIMIZER}."
        )
    if isinstance(optimizer, optim.LBFGS):
        raise UnsupportedError(
            "LBFGS evaluates a batch several times a step: use an optimizer that does so once."
        )
    own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    if len({id(p) for p in own}) != len(own) or {id(p) for p in own} != trainable:
        raise ValueError(f"Module parameters are different than optimizer Parameters: {_apart(own, module)}")
    if not own:
        raise ValueError("module has no trainable parameter: there is nothing to train privately.")
    devices = {str(p.device) for p in own}
    if len(devices) > 1:
        raise UnsupportedError(
            f"parameters lie on {sorted(devices)}: a noise row lies on one device. Move them to one."
        )
    for name, p in module.named_parameters():
        if p.requires_grad and p.is_complex():
            raise UnsupportedError(
                f"parameter {name} is {p.dtype}: gradients are clipped as real numbers. Make it a real one"
                " with a last axis of 2, and let forward take torch.view_as_complex of it."
            )
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64):
            raise UnsupportedError(
                f"parameter {name} is {p.dtype}: sums of clipped gradients need float32 or float64. Leave out"
                f" .to({p.dtype}), dtype={p.dtype}, .bfloat16() or .half() where the model is made, and use"
                " torch.autocast for speed. Frozen parameters may have any type."
            )
    return own


def _apart(own: list[nn.Parameter], module: nn.Module) -> str:
    """How the parameters of an optimizer differ from those of the module that are trained, and what to do."""
    held = {id(p) for p in own}
    trained = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    if len(held) != len(own):
        return "the optimizer holds a parameter twice. Name each once."
    left = [name for key, name in trained.items() if key not in held]
    if held < trained.keys():
        return (
            f"the module trains {len(trained)}, and the optimizer lacks {len(left)} of them ({left[0]}, for"
            f" instance). {ONE_OPTIMIZER}; and freeze what is not trained with requires_grad_(False)."
        )
    return (
        f"{len(held - trained.keys())} of the optimizer's {len(own)} are none that the module trains, as"
        " where the model was made anew, converted or moved after the optimizer was made. Make the optimizer"
        " from model.parameters(), after the model is final."
    )


def check_loader(loader: Any) -> None:
    """Refuse loaders without a data set that can be indexed.

    Raises:
        ValueError: for something else than a DataLoader.
        UnsupportedError: for loaders whose batches cannot be formed from an index, and a Subset with
            duplicates.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"data_loader={type(loader).__name__} must be a torch.utils.data.DataLoader.")
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise UnsupportedError(
            "data_loader has an IterableDataset, whose examples cannot be counted or sampled: use a"
            " map-style data set; DataLoader(list(dataset), …) makes one of what fits into memory, with the"
            " same other arguments."
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


#: Values of one attribute that are looked at for what is not registered, and attributes that are named.
LOOKED_AT, NAMED = 1024, 5


def report_unregistered(module: nn.Module) -> None:
    """Warn, once, of layers and tensors in plain attributes that require a gradient and no release covers.

    Attributes of all layers are looked at, and the lists, tuples, dicts, sets and plain objects in them,
    three levels deep and up to `LOOKED_AT` values of one attribute. Tensors that were computed (a cache of a
    reparametrised weight) are no parameters.
    """
    known = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    found = [
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        for name, value in vars(layer).items()
        if name not in TORCHS_OWN and any(map(_trains, _held(value, known)))
    ]
    if found:
        logger.warning(
            "module holds layers or tensors that require a gradient and are not registered: %s. Nobody trains"
            " them here. Training them by another optimizer, or by hand, is outside of the guarantee: their"
            " gradients are neither clipped nor noisy. Register them (nn.ModuleList, nn.ParameterList,"
            " self.x = nn.Parameter(…)) and give them to the optimizer, or call requires_grad_(False).",
            ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else ""),
        )


def _held(value: Any, known: set[int]) -> Iterator[Any]:
    """Layers and tensors that are not `known`, in a plain attribute."""
    left, seen = deque([(value, 3)]), set(known)
    for _ in range(LOOKED_AT):
        if not left:
            return
        held, deep = left.popleft()
        if id(held) in seen or held is None or isinstance(held, (str, bytes, int, float, type)):
            continue
        seen.add(id(held))
        if isinstance(held, (Tensor, nn.Module)):
            yield held
        elif deep:
            inner: Iterable[Any] = ()
            if isinstance(held, Mapping):
                inner = held.values()
            elif isinstance(held, (list, tuple, Set, deque)):
                inner = held
            elif hasattr(held, "__dict__") and not callable(held):
                inner = vars(held).values()
            left += ((each, deep - 1) for each in islice(inner, LOOKED_AT - len(left)))


def _trains(held: Any) -> bool:
    parameters = held.parameters() if isinstance(held, nn.Module) else (held,)
    return any(p.requires_grad and p.is_leaf for p in parameters)

"""Refuse or reuse objects of an earlier run of this process, as when a notebook cell is run twice."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.run import PrivateRun
from anechoic.torch.sources.row_model import is_ours
from anechoic.torch.sources.rows import RowsModule

logger = logging.getLogger("anechoic")
_PRIVATE = (RowsModule, CorrelatedOptimizer, PrivateDataLoader)
#: What Opacus's make_private returns, by name: Opacus need not be installed.
_OPACUS = {
    ("opacus.grad_sample.gsm_base", "AbstractGradSampleModule"),
    ("opacus.optimizers.optimizer", "DPOptimizer"),
}
#: The latest run of each plain module and optimizer; these keep it alive, and not the other way round.
_RUNS: WeakKeyDictionary[Any, ref[PrivateRun]] = WeakKeyDictionary()


def check_plain(**given: Any) -> None:
    """Refuse results of make_private, and an optimizer whose run has made releases.

    Args:
        given: module, optimizer and data_loader, by these names.

    Raises:
        UnsupportedError, GuaranteeError: naming which of them, how many releases were made, and what to do.
    """
    private = [
        name
        for name, thing in given.items()
        if isinstance(thing, _PRIVATE) or hasattr(thing, "autograd_grad_sample_hooks") or _of_opacus(thing)
    ]
    if private:
        ours = [t for t in given.values() if isinstance(t, (CorrelatedOptimizer, PrivateDataLoader))]
        made = f" ({ours[0].ledger.releases} releases were made)" if ours else ""
        raise UnsupportedError(
            f"{' and '.join(private)} came out of make_private before{made}, as when a notebook cell is run"
            " twice. To go on with that run, use them as they are. To begin anew, make model, optimizer and"
            " data loader again, in the same cell as make_private: pass the plain ones."
        )
    earlier = _run_of(given["optimizer"])
    if earlier is not None and earlier.ledger.releases:
        raise GuaranteeError(
            f"optimizer belongs to a run of {earlier.ledger.releases} releases: make_private was called with"
            " these objects before, as when a notebook cell is run twice. To go on with that run, use what it"
            " returned. To begin anew, make model and optimizer again, in the same cell as make_private. To"
            " train the same weights further, make a new optimizer, and call engine.charge(mechanism,"
            f" releases={earlier.ledger.releases}) with the mechanism of that run."
        )


def claim(run: PrivateRun) -> None:
    """Claim module and optimizer for `run`; a run that had them before is over."""
    for thing in (run.optimizer.original_optimizer, run.plain):
        earlier = _run_of(thing)
        if earlier is not None and earlier is not run:
            earlier.give_up()
            if earlier.ledger.releases:
                logger.warning(
                    "module was trained in an earlier run of this process, of %d releases, which"
                    " engine.get_epsilon does not count. Where that run had the same data, call"
                    " engine.charge(earlier_engine.mechanism, releases=%d).",
                    *[earlier.ledger.releases] * 2,
                )
        _RUNS[thing] = ref(run)


def _run_of(thing: Any) -> PrivateRun | None:
    try:
        found = _RUNS.get(thing)
    except TypeError:  # what cannot be referred to weakly is no module and no optimizer
        return None
    return None if found is None else found()


def _of_opacus(thing: Any) -> bool:
    return any((cls.__module__, cls.__qualname__) in _OPACUS for cls in type(thing).__mro__)


_OF_LAYERS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_BESIDE = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_ATTRIBUTES = ("autograd_grad_sample_hooks", "ft_compute_sample_grad", "activations", "max_batch_len")
_ON_PARAMETERS = ("grad_sample", "_forward_counter", "_current_grad_sample", "_norm_sample", "summed_grad")


def remove_old_hooks(module: nn.Module) -> None:
    """Remove hooks and attributes of earlier private runs (Opacus's too) from the layers of `module`.

    Hooks of the user stay.
    """
    for layer in module.modules():
        for name in _OF_LAYERS:
            hooks: dict[int, Any] = layer.__dict__.get(name) or {}
            for number in [number for number, hook in hooks.items() if is_ours(hook)]:
                del hooks[number]
                for beside in _BESIDE:
                    layer.__dict__.get(beside, {}).pop(number, None)
        for name in _ATTRIBUTES:
            if name in layer.__dict__:
                delattr(layer, name)
    for p in module.parameters():
        _clear(p)


def _clear(p: Tensor) -> None:
    for name in _OF_PARAMETERS:
        hooks: dict[int, Any] = getattr(p, name, None) or {}
        for number in [number for number, hook in hooks.items() if is_ours(hook)]:
            del hooks[number]
    for name in _ON_PARAMETERS:
        if hasattr(p, name):
            delattr(p, name)

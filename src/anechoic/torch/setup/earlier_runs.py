"""Refuse or reuse objects of an earlier run of this process, as when a notebook cell is run twice."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary, ref

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.run import PrivateRun
from anechoic.torch.sources.base import ModelWrapper

logger = logging.getLogger("anechoic")
_PRIVATE = (ModelWrapper, CorrelatedOptimizer, PrivateDataLoader)
#: What Opacus's make_private returns, by name: Opacus need not be installed.
_OPACUS = {"AbstractGradSampleModule", "DPOptimizer", "DPDataLoader"}
#: The latest run of each plain module and optimizer; these keep it alive, and not the other way round.
_RUNS: WeakKeyDictionary[Any, ref[PrivateRun]] = WeakKeyDictionary()


def check_plain(**given: Any) -> None:
    """Refuse results of make_private, Opacus's too, and an optimizer whose run has made releases.

    Args:
        given: module, optimizer and data_loader, by these names.

    Raises:
        UnsupportedError, GuaranteeError: naming which of them, how many releases were made, and what to do.
    """
    private = [
        name
        for name, thing in given.items()
        if isinstance(thing, _PRIVATE) or any(cls.__name__ in _OPACUS for cls in type(thing).__mro__)
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

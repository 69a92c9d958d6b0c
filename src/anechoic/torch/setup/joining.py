"""How several ranks begin one run: at the same point, under the keys of rank 0."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from anechoic.errors import UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.keys import Keys, KeySource
from anechoic.torch.noise_adder import Arithmetic
from anechoic.torch.ranks.group import Ranks
from anechoic.torch.setup.agreement import check_agreement, facts_of
from anechoic.torch.setup.asked import Setup

logger = logging.getLogger("anechoic")


def plain(module: Any) -> Any:
    """The module inside of torch's DistributedDataParallel, or of Opacus's: the engine sums gradients up."""
    names = {cls.__name__ for cls in type(module).__mro__}
    if isinstance(module, DistributedDataParallel) or "DifferentiallyPrivateDistributedDataParallel" in names:
        logger.info("module is %s: the module inside is used.", type(module).__name__)
        inner: nn.Module = module.module
        return inner
    return module


def agreed_keys(
    ranks: Ranks,
    keys: KeySource,
    setup: Setup,
    mechanism: Mechanism,
    arithmetic: Arithmetic,
    how: Mapping[str, object],
) -> Keys:
    """The keys of rank 0 on every rank, once all ranks would begin the same run.

    Args:
        how: arguments of the engine that must be the same, by name; `chunk_rows` among them.

    Raises:
        MismatchError: on every rank, where they would not.
        UnsupportedError: where sums are no integers.
    """
    where = "make_private"
    with ranks.together(where):
        others = {"exact sums": arithmetic.exact, **{f"argument {name}": how[name] for name in how}}
        facts = facts_of(setup, mechanism, keys.given, **others)
    check_agreement(ranks, facts)
    if not arithmetic.exact:  # the same on all of them
        raise UnsupportedError(
            f"{ranks.count} ranks share a release by exact sums alone, and there are none:"
            f" {arithmetic.reason} A sum of floating-point numbers depends on who adds them up. Give"
            " exact_sums=True, or train in one process."
        )
    with ranks.together(where):
        own = keys.draw() if ranks.rank == 0 else None
    sent = None if own is None else (own.noise, own.sampling, own.given, own.by_caller)
    drawn = ranks.objects(sent, where)[0]
    logger.info("rank %d of %d: chunks of %d rows.", ranks.rank, ranks.count, how["chunk_rows"])
    return Keys(*drawn)

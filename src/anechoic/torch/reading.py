"""What a plan reads of a torch optimizer and its scheduler: momentum, weight decay, learning rates."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anechoic._validate import Array
from anechoic.planning.update import UpdateRule, rates_of, update_of
from anechoic.torch.adam import kind_of

logger = logging.getLogger("anechoic")

#: What takes more than this of the parameters in a step is no weight decay that a plan can be for.
MOST_DECAY = 0.5


@update_of.register
def _(optimizer: optim.Optimizer) -> UpdateRule:
    """Of the group with the most parameters; Nesterov's momentum is heavy ball's."""
    kind = kind_of(optimizer)
    group = max(optimizer.param_groups, key=_size)
    if kind == "adam" or not isinstance(optimizer, optim.SGD):
        return UpdateRule(kind)
    beta = float(group["momentum"])
    if not 0.0 <= beta < 1.0:
        return UpdateRule(kind)
    # the decay of a step goes through the velocity, which adds up 1 / (1 - beta) of it
    decay = float(group.get("initial_lr", group["lr"])) * float(group["weight_decay"]) / (1.0 - beta)
    return UpdateRule(kind, beta, decay if decay <= MOST_DECAY else 0.0)


@rates_of.register
def _(scheduler: LRScheduler) -> Callable[[int], Array] | None:
    """Those of a copy that is stepped on, from where the scheduler is; the scheduler itself stays there."""
    if isinstance(scheduler, ReduceLROnPlateau):
        logger.warning(
            "scheduler=ReduceLROnPlateau follows losses, which nobody knows beforehand: the plan is for a"
            " constant learning rate. A loss of private data that it follows is outside of the guarantee."
        )
        return None

    def rates(count: int) -> Array:
        stand_in = _stand_in(scheduler.optimizer)
        group = max(
            range(len(stand_in.param_groups)), key=lambda i: _size(scheduler.optimizer.param_groups[i])
        )
        copied = copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})
        found = np.empty(count)
        with warnings.catch_warnings():  # of steps in another order, and of those behind the last
            warnings.simplefilter("ignore")
            for t in range(count):
                found[t] = stand_in.param_groups[group]["lr"]
                if t + 1 < count:
                    copied.step()
        return found

    return rates


def _size(group: dict[str, Any]) -> int:
    return sum(p.numel() for p in group["params"])


def _stand_in(optimizer: optim.Optimizer) -> optim.Optimizer:
    """An optimizer with the groups of another one, and one number as the parameters of each."""
    groups = [{**group, "params": [torch.zeros(1, requires_grad=True)]} for group in optimizer.param_groups]
    found = optim.SGD(groups, lr=1.0)
    for made, group in zip(found.param_groups, optimizer.param_groups, strict=True):
        made.update({key: value for key, value in group.items() if key != "params"})
    return found

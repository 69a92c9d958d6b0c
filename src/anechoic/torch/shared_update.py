"""An update that several ranks make: each steps the optimizer for some parameters, and gives them to all.

ZeRO-1's division of labour (Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020), by whole parameters: a kernel then works on the same tensor as in one process, and its bits
are the same. torch's ZeroRedundancyOptimizer divides in the same way, but makes the optimizer itself,
and does not say where a rank failed.
"""

from __future__ import annotations

import heapq
import logging
from typing import Any

from torch import nn, optim
from torch.optim import Optimizer

from anechoic.errors import UnsupportedError
from anechoic.torch.adam import CorrectedAdam
from anechoic.torch.optimizer import Update
from anechoic.torch.ranks.cut import is_cut
from anechoic.torch.ranks.group import Ranks

logger = logging.getLogger("anechoic")

_TORCHS = (
    *("SGD", "ASGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam"),
    *("RMSprop", "Adadelta", "Adafactor", "Muon"),
)
#: Optimizers whose update of a parameter reads nothing of another one, as far as this torch has them.
BY_PARAMETER = {CorrectedAdam, *(getattr(optim, name) for name in _TORCHS if hasattr(optim, name))}


class SharedUpdate(Update):
    """An `Update` of which each rank has a part; see there.

    Args:
        ranks: of the run.

    Raises:
        UnsupportedError: for an optimizer of which it is not known that it updates each parameter by itself.
    """

    whole = False

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter], *, ranks: Ranks) -> None:
        if type(optimizer) not in BY_PARAMETER:
            raise UnsupportedError(
                f"share_optimizer=True with {type(optimizer).__name__}, of which it is not known that a"
                " parameter's update reads nothing of the others: leave it out, and every rank keeps the"
                f" whole state. Known are {', '.join(sorted(kind.__name__ for kind in BY_PARAMETER))}."
            )
        if any(map(is_cut, parameters)):
            raise UnsupportedError(
                "share_optimizer=True with trained weights that fully_shard has cut up: each rank has its"
                " part of the optimizer's state anyway. Leave share_optimizer out."
            )
        super().__init__(optimizer, parameters)
        self._ranks = ranks
        sizes = [p.numel() for p in parameters]
        self._owners = owners(sizes, ranks.count)
        own = sum(size for size, owner in zip(sizes, self._owners, strict=True) if owner == ranks.rank)
        logger.info("optimizer: this rank keeps the state of %d of %d entries.", own, sum(sizes))

    def check(self) -> None:
        """Refuse hooks on the optimizer's steps, before anything is released."""
        if self.hooked:
            raise UnsupportedError(
                "hooks on the optimizer's steps would see this rank's parameters alone: leave out"
                " share_optimizer=True, or the hooks."
            )

    def step(self) -> Any:
        """Step the optimizer for this rank's parameters, and take the others as their ranks made them.

        Raises:
            DesynchronizedError: where another rank failed; the weights are then not to be used.
        """
        where = "the update of the model"
        gradients = [p.grad for p in self._parameters]
        try:
            with self._ranks.together(where):
                for p in self._others():
                    p.grad = None
                    self.optimizer.state.pop(p, None)
                found = super().step()
            self._ranks.hand_out([p.detach() for p in self._parameters], self._owners, where)
            return found
        finally:
            self.put(gradients)

    def _others(self) -> list[nn.Parameter]:
        """Parameters of other ranks."""
        pairs = zip(self._parameters, self._owners, strict=True)
        return [p for p, owner in pairs if owner != self._ranks.rank]

    def own(self, places: list[nn.Parameter]) -> set[int]:
        """Where in `places`, the parameters of the optimizer in order, those are that are not of others."""
        others = set(map(id, self._others()))
        return {place for place, p in enumerate(places) if id(p) not in others}


def owners(sizes: list[int], count: int) -> list[int]:
    """Which of `count` ranks has each parameter: the largest first, to the rank that has least."""
    ranks = [(0, rank) for rank in range(count)]
    found = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        load, rank = ranks[0]
        found[place] = rank
        heapq.heapreplace(ranks, (load + sizes[place], rank))
    return found

"""Ghost clipping as a gradient source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anechoic.runs.ledger import Delivery
from anechoic.torch.sources.base import GradientSource, SourceSetup, register
from anechoic.torch.sources.call_watch import CallWatch
from anechoic.torch.sources.ghost.gradients import GhostGradients
from anechoic.torch.sources.ghost.loss import PerExampleCriterion
from anechoic.torch.sources.single_rows import SingleRows
from anechoic.torch.sources.wrapper import passed


class GhostHandle:
    """What make_private returns under wrap_model=False, in the place of a module.

    Attributes:
        loss_reduction, batch_first: as given to make_private.
    """

    def __init__(self, module: nn.Module, *, loss_reduction: str, batch_first: bool) -> None:
        self._module = module
        self.loss_reduction, self.batch_first = loss_reduction, batch_first


class GhostModule(nn.Module):
    """The module under another name: its trainable layers leave what ghost clipping needs.

    Args:
        module: the user's.
        loss_reduction, batch_first: as given to make_private.
    """

    def __init__(self, module: nn.Module, *, loss_reduction: str, batch_first: bool) -> None:
        super().__init__()
        self._module = module
        self.loss_reduction, self.batch_first = loss_reduction, batch_first
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return passed(self._module, args, kwargs, batch_first=self.batch_first)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)


@register("ghost")
class GhostSource(GradientSource):
    """Clipped sums by norms of layer inputs and backprops; layers that are not on its list are refused.

    Guarantee: what one example adds to the sums has norm at most clip norm * (1 + `excess`): it is the same
    float64 numbers that are measured and summed, and norms count what rounding may have hidden.
    """

    mode = "ghost"
    takes_units = False
    takes_grid = False

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        self._gradients = GhostGradients(
            setup.module,
            setup.parameters,
            setup.ledger,
            setup.clipping,
            batch_first=setup.batch_first,
            interrupted=lambda: self._calls.cleared(),
        )
        self.module = (GhostModule if setup.wrap else GhostHandle)(
            setup.module, loss_reduction=setup.loss_reduction, batch_first=setup.batch_first
        )
        self.criterion = PerExampleCriterion(self._gradients, setup.criterion, setup.loss_reduction)
        self.single = SingleRows(setup.module, setup.parameters, setup.ledger)
        # backward() starts at the losses of the rows, whatever becomes of their sum
        self._calls = CallWatch(
            self.single,
            batch_first=setup.batch_first,
            reduction="sum",
            counts=lambda: self._gradients.running,
        )

    @property
    def excess(self) -> float:
        return max(self.clipping.excess, self._gradients.excess)

    def sums(self, delivery: Delivery) -> list[Tensor]:
        sums = self._gradients.sums(delivery, self.single.rows(delivery))
        if rows := self._calls.rows_of(delivery):
            agreed = [self._agrees(delivery, row) for row in rows]
            self.single.settle(delivery, any(agreed))
        return sums

    def _agrees(self, delivery: Delivery, row: int) -> bool:
        alone = self._calls.alone(delivery, row)
        # a row that is not finite is left out of the sums
        nothing = [torch.full_like(p, float("nan")) for p in self.parameters]
        found, norm = self._gradients.seen.get(row, (nothing, None))
        return self.single.compare(found, alone, row, norm=norm)

    def used(self) -> None:
        self._calls.forget()
        self._gradients.forget()

    def zero_grad(self) -> None:
        self._calls.cleared()
        self._gradients.forget()

    def forget(self) -> None:
        self._calls.forget()
        self.single.forget()
        self._gradients.forget()

    def detach(self) -> None:
        self._calls.detach()
        self._gradients.tracer.detach()

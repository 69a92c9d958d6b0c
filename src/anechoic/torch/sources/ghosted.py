"""Ghost clipping as a gradient source: the criterion's backward() clips, and the sums are kept from then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.torch.ghost import GhostWatch, watched_module
from anechoic.torch.ghost_loss import ghost_criterion
from anechoic.torch.gradients import clear_hooks
from anechoic.torch.ledger import Delivery
from anechoic.torch.rows import RowWatch
from anechoic.torch.sources.base import BY_HAND, GradientSource, SourceSetup, register

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@register("ghost")
class GhostSource(GradientSource):
    """Clipped sums by two backward passes, without the gradients of single examples."""

    mode = "ghost"
    takes_units = False

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        self.module: Any = watched_module(
            setup.module,
            wrap=setup.wrap,
            batch_first=setup.batch_first,
            loss_reduction=setup.loss_reduction,
            max_grad_norm=setup.clipping.clip_norm,
        )
        self.loss_reduction = setup.loss_reduction  # Opacus's criterion asks for it
        self._watch: GhostWatch = self.module.watch
        self._rows = RowWatch(self.module, setup.ledger)
        self.criterion = ghost_criterion(self.module, self, setup.criterion, setup.loss_reduction)

    def sums(self, delivery: Delivery) -> list[Tensor]:
        passes, examples = self._watch.passes, self._watch.examples
        if delivery.size == 0 and examples == 0:
            return [torch.zeros_like(p) for p in self.parameters]
        if passes > 1:
            raise DesynchronizedError(f"{passes} backward passes reached release {delivery.step}: {BY_HAND}.")
        if passes == 0 or any(p.grad is None for p in self.parameters):
            raise DesynchronizedError(
                "no clipped gradient reached this step: compute the loss with the criterion that"
                " make_private returned and call its backward() on the delivered batch, with the model in"
                " train() mode."
            )
        if examples != delivery.size:
            raise DesynchronizedError(
                f"gradients of {examples} examples reached release {delivery.step}, whose batch has"
                f" {delivery.size}: feed the model exactly the delivered batch, one row an example."
            )
        if not self._watch.intact(self.parameters):
            raise DesynchronizedError(
                "p.grad changed between the criterion's backward() and step(): a second backward pass, or"
                " clipping by hand, would undo the bound on each example. Leave the gradients to the"
                " optimizer."
            )
        if any(getattr(p, name, None) for p in self.parameters for name in _HOOKS):
            raise GuaranteeError(
                "a parameter has a gradient hook (register_hook), which changes gradients after they were"
                " clipped: remove it, or use grad_sample_mode='hooks'."
            )
        gradients = [gradient.clone() for gradient in self._watch.kept(self.parameters)]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            raise GuaranteeError(
                "a gradient is not finite, and ghost clipping cannot take single examples out: nothing was"
                " released. Lower the learning rate, or use grad_sample_mode='hooks', where such examples"
                " contribute zero."
            )
        self._rows.check(delivery)
        return gradients

    def used(self) -> None:
        self._rows.forget()
        self._watch.reset()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Also called by the criterion in the middle of a pass, which clears p.grad of the first backward."""
        if self._watch.passes:
            self._rows.forget()
        self._watch.cleared()
        for p in self.parameters:
            p.grad = None

    def forget(self) -> None:
        clear_hooks(self.module)
        self._rows.forget()
        self._watch.reset()
        self.zero_grad()

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"module.max_grad_norm": self.module.max_grad_norm}

    def detach(self) -> None:
        self.module.cleanup()

"""Per-example gradients by hooks on layers: Opacus's samplers, or functorch for all layers."""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import prepare_module
from torch import Tensor

from anechoic.errors import DesynchronizedError
from anechoic.torch.gradients import clear_hooks
from anechoic.torch.ledger import Delivery
from anechoic.torch.rows import RowWatch
from anechoic.torch.sources.base import BY_HAND, NOT_CLEARED, GradientSource, SourceSetup, register
from anechoic.torch.sources.items import item_gradients
from anechoic.torch.sources.single_rows import CallWatch, SingleRows


@register("hooks")
class HooksSource(GradientSource):
    """Gradients of every row in p.grad_sample, computed by hooks on the layers in the backward pass.

    An example whose gradient is not finite contributes zero: otherwise it would spoil the sum, and show
    that it is there.
    """

    mode = "hooks"

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        self.module: Any = prepare_module(
            setup.module,
            self.mode,
            setup.wrap,
            batch_first=setup.batch_first,
            loss_reduction=setup.loss_reduction,
        )
        self._rows = RowWatch(self.module, setup.ledger)
        self.single = SingleRows(setup.module, setup.parameters, setup.ledger)
        self._calls = CallWatch(
            self.single, batch_first=setup.batch_first, reduction=setup.loss_reduction
        )

    def sums(self, delivery: Delivery) -> list[Tensor]:
        samples = self._samples()
        fresh = any(sample is not None and not hasattr(sample, "_processed") for sample in samples)
        contributed = self.contributions.sums(delivery, self.clipping, others=fresh)
        if contributed is not None:
            return contributed
        self._check_samples(samples, delivery)
        self._rows.check(delivery)
        if delivery.size == 0:
            return [torch.zeros_like(p) for p in self.parameters]
        cast = [sample.to(p.dtype) for sample, p in zip(samples, self.parameters, strict=True)]
        row = self._calls.row(delivery)
        if row is not None:
            self.single.compare([sample[row] for sample in cast], self._calls.alone(delivery), row)
        if delivery.units is None:
            return self.clipping.sums(cast)
        return self.clipping.sums(item_gradients(cast, delivery.units), delivery.units.limits)

    def used(self) -> None:
        self._rows.forget()
        self._calls.forget()
        self.contributions.forget()
        for sample in self._samples():
            if isinstance(sample, Tensor):
                sample._processed = True  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        self._calls.cleared()
        if any(s is not None and not hasattr(s, "_processed") for s in self._samples()):
            self._rows.forget()  # gradients of the faulty pass go with it; before its backward() they do not
        self.contributions.forget()
        for p in self.parameters:
            p.grad_sample = None  # type: ignore[attr-defined]

    def forget(self) -> None:
        clear_hooks(self.module)
        self._rows.forget()
        self._calls.forget()
        self.single.forget()
        self.zero_grad()

    def detach(self) -> None:
        self._calls.detach()
        self.module.cleanup()

    def _samples(self) -> list[Any]:
        return [getattr(p, "grad_sample", None) for p in self.parameters]

    def _check_samples(self, samples: list[Any], delivery: Delivery) -> None:
        for sample in samples:
            parts = sample if isinstance(sample, list) else [sample]
            if any(hasattr(part, "_processed") for part in parts):
                if delivery.size == 0 and len(parts) == 1:
                    return  # an empty batch may be stepped right away: what is left is of the last one
                raise DesynchronizedError(f"{NOT_CLEARED}.")
            if len(parts) > 1:
                raise DesynchronizedError(
                    f"{len(parts)} backward passes reached release {delivery.step}: {BY_HAND}."
                )
        missing = sum(sample is None for sample in samples)
        if missing and not (delivery.size == 0 and missing == len(samples)):
            raise DesynchronizedError(
                f"Per sample gradient is not initialized for {missing} of {len(samples)} parameters: run"
                " loss.backward() on the delivered batch, with the model in train() mode, before step();"
                " freeze parameters that the loss does not depend on before make_private."
            )
        sizes = {len(sample) for sample in samples if sample is not None}
        if sizes - {delivery.size}:
            raise DesynchronizedError(
                f"gradients of {sorted(sizes)} examples reached release {delivery.step}, whose batch has"
                f" {delivery.size}: feed the model exactly the delivered batch, one row an example (what is"
                " clipped is found by its rows, so a batch is never flattened into tokens or split by hand)."
            )


@register("functorch")
class FunctorchSource(HooksSource):
    """The same, with functorch for every layer."""

    mode = "functorch"

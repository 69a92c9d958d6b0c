"""Per-example gradients by hooks on layers: closed rules where they are right, else row by row."""

from __future__ import annotations

import secrets
from typing import Any

from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.runs.ledger import Delivery
from anechoic.torch.sources.base import BY_HAND, NOT_CLEARED, GradientSource, SourceSetup, register
from anechoic.torch.sources.call_watch import CallWatch
from anechoic.torch.sources.capture import Capture, Pass
from anechoic.torch.sources.items import item_gradients
from anechoic.torch.sources.single_rows import SingleRows
from anechoic.torch.sources.wrapper import PrivateHooks, PrivateModule
from anechoic.torch.watching.rows import check_fault

#: Entries of a parameter that are compared with autograd's gradient in every step; all of them in the first
#: step, in the first after a change of train() or eval(), and in one of `_SELDOM` steps.
_COMPARED, _SELDOM = 2**14, 32
#: Difference allowed over the sum of the norms of the rows, in the parameter and in the whole model: rounding
#: stays below it, wrong rules do not. Under autocast rounding is coarse.
_ROUNDING, _COARSE = (2e-3, 1e-5), (3e-2, 4e-3)


@register("hooks")
class HooksSource(GradientSource):
    """Gradients of every row, computed by hooks on the layers in the backward pass.

    Their sum is compared with the gradient that autograd computes in the same pass, so a parameter that is
    used other than by calling its layer is seen, and so is a layer whose rule is wrong. An example whose
    gradient is not finite contributes zero: otherwise it would spoil the sum, and show that it is there.
    """

    mode = "hooks"
    _functorch = False

    def __init__(self, setup: SourceSetup) -> None:
        super().__init__(setup)
        kind = PrivateModule if setup.wrap else PrivateHooks
        self.module: Any = kind(
            setup.module, batch_first=setup.batch_first, loss_reduction=setup.loss_reduction, strict=False
        )
        self._finished: list[Pass] = []
        self._used = False
        self._modes: tuple[bool, ...] = ()
        self._layers = list(setup.module.modules())
        self._capture = Capture(
            self.module, setup.ledger, functorch=self._functorch, finished=self._finished.append
        )
        self.module.follow(self._capture, self.zero_grad)
        self.single = SingleRows(setup.module, setup.parameters, setup.ledger, reduction=setup.loss_reduction)
        self._calls = CallWatch(self.single, batch_first=setup.batch_first, reduction=setup.loss_reduction)

    @property
    def samples(self) -> list[Tensor | None]:
        """Gradients of the rows of the last backward pass, one tensor a parameter. Secret."""
        if not self._finished:
            return [None for _ in self.parameters]
        return [self._finished[-1].samples.get(id(p)) for p in self.parameters]

    def sums(self, delivery: Delivery) -> list[Tensor]:
        fresh = bool(self._finished)
        contributed = self.contributions.sums(delivery, self.clipping, others=fresh)
        if contributed is not None:
            return contributed
        found = self._pass(delivery)
        if found is None:
            return self.clipping.nothing(self.parameters)
        samples = self._whole(found, delivery)
        self._compare(found, samples)
        if rows := self._calls.rows_of(delivery):
            agreed = [self._agrees([s[row] for s in samples], delivery, row) for row in rows]
            self.single.settle(delivery, any(agreed))
        if delivery.units is None:
            return self.clipping.sums(samples)
        return self.clipping.sums(item_gradients(samples, delivery.units), delivery.units.limits)

    def used(self) -> None:
        self._calls.forget()
        self._used = True
        self._finished.clear()
        self.contributions.forget()

    def zero_grad(self) -> None:
        self._calls.cleared()
        self._used = False
        self._finished.clear()
        self.contributions.forget()

    def forget(self) -> None:
        self._capture.forget()
        self._calls.forget()
        self.single.forget()
        self.module.enable_hooks()
        self.zero_grad()

    def check_ready(self) -> None:
        if self._capture.taken_over:
            raise GuaranteeError(
                "layers of this model were made part of another private model, which took the hooks of this"
                " one off: finish a run before its layers go into the next."
            )

    def detach(self) -> None:
        self._calls.detach()
        self.module.cleanup()

    # -- checks --------------------------------------------------------------------------------

    def _agrees(self, found: list[Tensor], delivery: Delivery, row: int) -> bool:
        return self.single.compare(found, self._calls.alone(delivery, row), row)

    def _pass(self, delivery: Delivery) -> Pass | None:
        """The only pass since gradients were cleared; None for an empty batch without one."""
        if self._used and self._finished:
            raise DesynchronizedError(f"{NOT_CLEARED}.")
        # parts that share no parameter are of one pass: that of a checkpoint within another
        while len(self._finished) > 1 and self._finished[0].samples.keys().isdisjoint(
            self._finished[1].samples
        ):
            self._finished[0].join(self._finished.pop(1))
        if len(self._finished) > 1:
            raise DesynchronizedError(
                f"{len(self._finished)} backward passes reached release {delivery.step}: {BY_HAND}."
            )
        if self._finished and self._finished[0].samples:
            return self._finished[0]
        if delivery.size == 0:
            return None  # an empty batch may be stepped right away
        if self._used:
            raise DesynchronizedError(f"{NOT_CLEARED}, and backward() on the next batch.")
        raise DesynchronizedError(
            f"Per sample gradient is not initialized for {len(self.parameters)} of {len(self.parameters)}"
            " parameters: run loss.backward() on the delivered batch, with the hooks on, before step();"
            " freeze parameters that the loss does not depend on before make_private."
        )

    def _whole(self, found: Pass, delivery: Delivery) -> list[Tensor]:
        """One tensor a parameter; zeros where the loss did not reach it, as in a layer that was skipped."""
        sizes = {len(sample) for sample in found.samples.values()}
        if delivery.size in sizes:
            check_fault(found.fault, delivery)  # a layer that is fed with something else than the others
        if sizes - {delivery.size}:
            raise DesynchronizedError(
                f"gradients of {sorted(sizes)} examples reached release {delivery.step}, whose batch has"
                f" {delivery.size}: feed the model exactly the delivered batch, one row an example (what is"
                " clipped is found by its rows, so a batch is never flattened into tokens or split by hand)."
            )
        check_fault(found.fault, delivery)
        whole = []
        for p in self.parameters:
            sample = found.samples.get(id(p))
            if sample is None:
                if id(p) in found.gradients:
                    self._refuse(p, "is used other than by calling the layer that holds it")
                sample = p.new_zeros((delivery.size, *p.shape))
            whole.append(sample.to(p.dtype))
        return whole

    def _compare(self, found: Pass, samples: list[Tensor]) -> None:
        """Compare sums of rows with the gradients of autograd, in part or as a whole."""
        modes = tuple(layer.training for layer in self._layers)
        thorough = modes != self._modes or secrets.randbelow(_SELDOM) == 0
        differences: list[tuple[nn.Parameter, float, float]] = []
        for p, sample in zip(self.parameters, samples, strict=True):
            known = found.gradients.get(id(p))
            if known is None or not len(sample):
                continue
            rows, known = sample.reshape(len(sample), -1), known.detach().reshape(-1)
            if not thorough and len(known) > _COMPARED:
                start = secrets.randbelow(len(known) - _COMPARED + 1)
                rows, known = rows[:, start : start + _COMPARED], known[start : start + _COMPARED]
            factor = len(rows) if self.setup.loss_reduction == "mean" else 1
            difference = float((rows.sum(0).double() - factor * known.double()).norm())
            differences.append((p, difference, float(rows.norm(dim=1).double().sum())))
        share, share_of_all = _COARSE if found.coarse else _ROUNDING
        small = share_of_all * sum(size for _, _, size in differences)
        for p, difference, size in differences:
            # a row that is not finite makes all so: it counts as zero, and says nothing of the rule
            if difference > share * size + small:
                self._refuse(p, "has gradients of single rows that do not add up to its gradient")
        self._modes = modes

    def _refuse(self, p: nn.Parameter, what: str) -> None:
        name = next((name for name, q in self.setup.module.named_parameters() if q is p), "a parameter")
        raise GuaranteeError(
            f"{name!r} {what} (F.linear(x, layer.weight), a penalty on weights in the loss, a hook that"
            " changes an output or a gradient, a layer that draws random numbers or mixes rows): hooks on"
            " layers cannot give the gradient of each example. Use each parameter by calling its layer, and"
            " weight_decay for a penalty; or use grad_sample_mode='vmap', which differentiates the whole"
            " model row by row."
        )


@register("functorch")
class FunctorchSource(HooksSource):
    """The same, with every layer differentiated row by row."""

    mode = "functorch"
    _functorch = True

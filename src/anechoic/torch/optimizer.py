"""Optimizers that add correlated noise: one step() is one release of the mechanism, checked before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError, UnsupportedError
from anechoic.noise import NoiseState, NoiseStream
from anechoic.torch.contributions import Contributions
from anechoic.torch.gradients import MIXING, check_not_mixing, clear_hooks, clipped_sums, item_gradients
from anechoic.torch.ledger import Delivery, ReleaseLedger
from anechoic.torch.rows import RowWatch
from anechoic.torch.single import Single
from anechoic.torch.watch import Watch

if TYPE_CHECKING:
    from anechoic.mechanism import Mechanism
    from anechoic.torch.ghost import GhostWatch
    from anechoic.torch.units import OrderWatch

_CLEARED = (
    "Gradients haven't been cleared since the last optimizer step: call optimizer.zero_grad() before the next"
)
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_BY_HAND = (
    "accumulating gradients by hand would put several batches, or one batch several times, into one release."
    " Call backward() once per batch, and use anechoic.torch.BatchMemoryManager where batches do not fit"
    " into memory"
)


class _Correlated(Single):
    """What both optimizers share: checks, the noise row, and the release.

    Args (of `bind`):
        mechanism: what is released.
        ledger: the run's ledger.
        module: Opacus's module (or hooks), whose settings are checked.
        watched: tensors of the model that training must leave as they are (buffers, frozen parameters).
    """

    # given by DPOptimizer
    params: list[nn.Parameter]
    original_optimizer: torch.optim.Optimizer
    step_hook: Callable[[Any], None] | None
    _step_skip_queue: list[bool]
    _is_last_step_skipped: bool

    def bind(
        self,
        mechanism: Mechanism,
        ledger: ReleaseLedger,
        module: Any,
        watched: Callable[[], dict[str, Tensor]],
    ) -> None:
        """Tie the optimizer to a run. Called once, by the engine."""
        self.ledger = ledger
        self._mechanism = mechanism
        self._module = module
        self._bound = list(self.params)
        self._layout = [(p.shape, p.dtype, p.device) for p in self._bound]
        self._settings = self._read_settings()
        self._mixing = [layer for layer in module._module.modules() if isinstance(layer, MIXING)]
        self._unchanged = Watch(self._bound, watched)
        self._rows = RowWatch(module, ledger)
        self._contributions = Contributions(self._bound)
        self._stepping = threading.Lock()
        self._inner_allowed = False
        self.original_optimizer.register_step_pre_hook(self._check_inner)

    def rewatch(self) -> None:
        """Take parameters, buffers and frozen parameters as they are now."""
        self._unchanged.retake()

    def start_noise(self, key: bytes) -> NoiseStream:
        """The stream of this run's noise rows in sum units, under `key`."""
        wide = any(p.dtype == torch.float64 for p in self._bound)
        stream = NoiseStream(
            self._mechanism.strategy,
            sum(p.numel() for p in self._bound),
            std=self._mechanism.noise_std * self._mechanism.clip_norm,
            key=key,
            backend="torch",
            dtype=torch.float64 if wide else torch.float32,
            device=self._bound[0].device,
        )
        return stream

    def take_noise(self, stream: NoiseStream, state: NoiseState) -> None:
        """Add the rows of `stream` from `state` on."""
        self._stream, self._noise = stream, state
        self._row: Tensor | None = None  # one piece of memory for all rows

    @property
    def kind(self) -> str:
        """What the last release was made of: "gradients", or what units contributed; "" before the first."""
        return self._contributions.last_kind

    def expect(self, kind: str) -> None:
        """Make the next release of `kind` only: that after a checkpoint."""
        self._contributions.expect(kind)

    @property
    def noise_state(self) -> NoiseState:
        """Where the noise stream stands; it holds secrets."""
        return self._noise

    # -- one step ------------------------------------------------------------------------------

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make the release of the batch in hand and update the model with it.

        After a micro-batch that is not the last of its batch: only clip and sum.

        Raises:
            DesynchronizedError: if batch, gradients and release do not correspond, or another thread is
                in step(); nothing is released.
            GuaranteeError: if something else changed the model since the last release.
            MismatchError: if a setting differs from the mechanism's; nothing is released.
            HorizonError: if all n releases were made.
        """
        if not self._stepping.acquire(blocking=False):
            raise DesynchronizedError(
                "optimizer.step() was called while it runs, by another thread or from within itself: a batch"
                " is released once. Step from one thread."
            )
        try:
            return self._step(closure)
        finally:
            self._stepping.release()

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        delivery = self.ledger.due()
        self._check_unchanged()
        left_over = any(p.summed_grad is not None for p in self._bound)  # type: ignore[attr-defined]
        if delivery.chunk == 0 and left_over:
            raise DesynchronizedError(
                "summed gradients of another batch are left over (p.summed_grad is set): call"
                " optimizer.abandon_batch(), and iterate again."
            )
        with torch.autocast(self._bound[0].device.type, enabled=False):  # sums in full precision
            return self._sum_and_release(delivery)

    def _sum_and_release(self, delivery: Delivery) -> float | None:
        kind = self._contributions.kind(delivery)
        gradients = self._gradients(delivery)
        self._rows.check(delivery)
        if not delivery.last:
            with self.ledger.summing():
                self._add(gradients)
                self._is_last_step_skipped = True
            return None
        with self.ledger.releasing() as step:
            self._contributions.released(kind)
            self._add(gradients)
            self._release(step)
            if self.step_hook is not None:
                self.step_hook(self)
            self._is_last_step_skipped = False
            self._inner_allowed = True
            try:
                return self.original_optimizer.step()  # type: ignore[no-any-return]
            finally:
                self._inner_allowed = False
                self._unchanged.released()

    def abandon_batch(self) -> None:
        """Give up the batch in hand, of which nothing was released. Iterate again to get it back."""
        self.ledger.abandon()
        self.forget()

    def forget(self) -> None:
        """Drop all gradients, and what Opacus's hooks keep of a pass."""
        self._is_last_step_skipped = False
        clear_hooks(self._module)
        self._rows.forget()
        self.zero_grad()  # type: ignore[attr-defined]

    def _release(self, step: int) -> None:
        self.ledger.check_releasing()
        if self._noise.step != step:
            raise DesynchronizedError(f"noise row {self._noise.step} is next, but release {step} is due.")
        self._row, self._noise = self._stream.next(self._noise, out=self._row)
        row: Tensor = self._row  # type: ignore[assignment]
        divisor = 1.0 if self.loss_reduction == "sum" else self._mechanism.expected_batch_size
        start = 0
        for p in self._bound:
            stop = start + p.numel()
            total: Tensor = p.summed_grad  # type: ignore[attr-defined]
            p.grad = total.add_(row[start:stop].view(total.shape)).div_(divisor).view_as(p)
            p.summed_grad = None  # type: ignore[attr-defined]
            start = stop

    def _gradients(self, delivery: Delivery) -> list[Tensor]:
        """Sums of the clipped gradients of a physical batch, one a parameter; changes nothing."""
        raise NotImplementedError  # pragma: no cover - abstract

    def _add(self, gradients: list[Tensor]) -> None:
        """Add what `_gradients` returned to p.summed_grad, and mark it as used."""
        self._rows.forget()
        for p, gradient in zip(self._bound, gradients, strict=True):
            if p.summed_grad is None:  # type: ignore[attr-defined]
                p.summed_grad = gradient  # type: ignore[attr-defined]
            else:
                p.summed_grad += gradient  # type: ignore[attr-defined]

    # -- checks --------------------------------------------------------------------------------

    loss_reduction: str
    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float

    def _read_settings(self) -> dict[str, Any]:
        settings = {
            "optimizer.max_grad_norm": self.max_grad_norm,
            "optimizer.noise_multiplier": self.noise_multiplier,
            "optimizer.expected_batch_size": self.expected_batch_size,
            "optimizer.loss_reduction": self.loss_reduction,
            "module.loss_reduction": self._module.loss_reduction,
            "module.batch_first": self._module.batch_first,
        }
        if hasattr(self._module, "max_grad_norm"):
            settings["module.max_grad_norm"] = self._module.max_grad_norm
        return settings

    def _check_unchanged(self) -> None:
        for name, value in self._read_settings().items():
            if value != self._settings[name]:
                raise MismatchError(
                    f"{name}={value} was {self._settings[name]} when the run began, and the mechanism was"
                    " calibrated for that: set it back. Another value needs another mechanism, in a run of"
                    " its own."
                )
        now = self.params
        if len(now) != len(self._bound) or any(p is not q for p, q in zip(now, self._bound, strict=True)):
            raise MismatchError(
                f"the optimizer has {len(now)} trainable parameters that are not the {len(self._bound)} of"
                " make_private: parameters cannot be frozen, unfrozen, added or replaced during a run,"
                " because the noise of every step goes with all of them. Freeze before make_private."
            )
        for p, (shape, dtype, device) in zip(self._bound, self._layout, strict=True):
            if (p.shape, p.dtype, p.device) != (shape, dtype, device):
                raise MismatchError(
                    f"a parameter is {p.dtype} {tuple(p.shape)} on {p.device}, and was {dtype}"
                    f" {tuple(shape)} on {device}: move and cast the model before make_private."
                )
        self._unchanged.check()
        check_not_mixing(self._mixing)
        if self._step_skip_queue:
            self.signal_skip_step()

    def signal_skip_step(self, do_skip: bool = True) -> NoReturn:
        """Refused: Opacus's queue of steps to skip can outlive the batch that it was meant for."""
        raise DesynchronizedError(
            "opacus.utils.batch_memory_manager.BatchMemoryManager keeps a queue of steps to skip that can"
            " outlive its batch: use anechoic.torch.BatchMemoryManager, with the same arguments, instead."
        )

    # torch.amp.GradScaler sets grad_scale on optimizers that say they take it
    _step_supports_amp_scaling = True

    @property
    def grad_scale(self) -> float:
        """1: setting it is refused."""
        return 1.0

    @grad_scale.setter
    def grad_scale(self, value: Any) -> NoReturn:
        raise UnsupportedError(
            "GradScaler multiplies losses before gradients are clipped, so every example would be clipped to"
            " noise level: use autocast with bfloat16 and no GradScaler."
        )

    def _check_inner(self, *_: Any) -> None:
        if not self._inner_allowed:
            raise GuaranteeError(
                "the optimizer given to make_private was stepped directly, with gradients that are neither"
                " clipped nor noisy: step the one that make_private returned."
            )

    def _by_step_only(self, *_: Any, **__: Any) -> NoReturn:
        raise GuaranteeError("step() clips, adds noise and scales in one piece: call optimizer.step().")

    # Opacus's own pieces of a step: apart from one another they would release without noise or twice
    pre_step = add_noise = scale_grad = clip_and_accumulate = accumulate = _by_step_only


class CorrelatedOptimizer(_Correlated, DPOptimizer):  # type: ignore[misc]
    """Opacus's optimizer over per-example gradients, with a correlated noise row per release.

    An example whose gradient is not finite contributes zero: otherwise it would spoil the sum, and show
    that it is there.
    """

    order_watch: OrderWatch  # where the run has units

    def contribute(self, vectors: list[Tensor], *, kind: str = "contributions") -> None:
        """Take one vector an item for the batch in hand, in place of gradients of its rows.

        For what a unit computes on its own data, such as a pseudo-gradient: the next step() clips each vector
        to its item's limit, sums them up, and makes the release. p.grad_sample is dropped.

        Args:
            vectors: one tensor a trainable parameter, in the order of `params`, shape (items, *parameter);
                row j depends on the model and on the rows of item j of `ledger.in_hand.units` alone.
            kind: what they are and with which settings, in words. The first step after a checkpoint is
                refused where it is made of another kind than the last one before.

        Raises:
            DesynchronizedError: if no batch is in hand, or the run has no units.
            MismatchError: if they are no list of tensors, or the shapes are others.
        """
        delivery = self.ledger.due()
        self._contributions.check(delivery, vectors)
        clear_hooks(self._module)
        self._rows.forget()
        self.zero_grad()
        self._contributions.take(delivery, vectors, kind)

    def _gradients(self, delivery: Delivery) -> list[Tensor]:
        samples = [getattr(p, "grad_sample", None) for p in self._bound]
        contributed = self._contributions.sums(delivery, samples, self.max_grad_norm)
        if contributed is not None:
            return contributed
        self._check_samples(samples, delivery)
        if delivery.size == 0:
            return [torch.zeros_like(p) for p in self._bound]
        cast = [sample.to(p.dtype) for sample, p in zip(samples, self._bound, strict=True)]  # type: ignore[union-attr]
        if delivery.units is None:
            return clipped_sums(cast, self.max_grad_norm)
        return clipped_sums(item_gradients(cast, delivery.units), self.max_grad_norm, delivery.units.limits)

    def _add(self, gradients: list[Tensor]) -> None:
        super()._add(gradients)
        self._contributions.forget()
        for p in self._bound:
            if isinstance(getattr(p, "grad_sample", None), Tensor):
                p.grad_sample._processed = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = False) -> None:
        samples = [getattr(p, "grad_sample", None) for p in self._bound]
        if any(s is not None and not hasattr(s, "_processed") for s in samples):
            self._rows.forget()  # gradients of the faulty pass go with it; before its backward() they do not
        self._contributions.forget()
        super().zero_grad(set_to_none)

    def _check_samples(self, samples: list[Any], delivery: Delivery) -> None:
        for sample in samples:
            parts = sample if isinstance(sample, list) else [sample]
            if any(hasattr(part, "_processed") for part in parts):
                if delivery.size == 0 and len(parts) == 1:
                    return  # an empty batch may be stepped right away: what is left is of the last one
                raise DesynchronizedError(f"{_CLEARED}.")
            if len(parts) > 1:
                raise DesynchronizedError(
                    f"{len(parts)} backward passes reached release {delivery.step}: {_BY_HAND}."
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


class GhostCorrelatedOptimizer(_Correlated, DPOptimizerFastGradientClipping):  # type: ignore[misc]
    """Opacus's optimizer for ghost clipping (the criterion's backward() clips), with correlated noise."""

    watch: GhostWatch

    def _gradients(self, delivery: Delivery) -> list[Tensor]:
        passes, examples = self.watch.passes, self.watch.examples
        if delivery.size == 0 and examples == 0:
            return [torch.zeros_like(p) for p in self._bound]
        if passes > 1:
            raise DesynchronizedError(
                f"{passes} backward passes reached release {delivery.step}: {_BY_HAND}."
            )
        if passes == 0 or any(p.grad is None for p in self._bound):
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
        if not self.watch.intact(self._bound):
            raise DesynchronizedError(
                "p.grad changed between the criterion's backward() and step(): a second backward pass, or"
                " clipping by hand, would undo the bound on each example. Leave the gradients to the"
                " optimizer."
            )
        if any(getattr(p, name, None) for p in self._bound for name in _HOOKS):
            raise GuaranteeError(
                "a parameter has a gradient hook (register_hook), which changes gradients after they were"
                " clipped: remove it, or use grad_sample_mode='hooks'."
            )
        gradients = [p.grad.detach() for p in self._bound]  # type: ignore[union-attr]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            raise GuaranteeError(
                "a gradient is not finite, and ghost clipping cannot take single examples out: nothing was"
                " released. Lower the learning rate, or use grad_sample_mode='hooks', where such examples"
                " contribute zero."
            )
        # the next zero_grad() would clear a partial sum in place
        return gradients if delivery.last else [gradient.clone() for gradient in gradients]

    def _add(self, gradients: list[Tensor]) -> None:
        super()._add(gradients)
        self.watch.reset()

    def forget(self) -> None:
        super().forget()
        self.watch.reset()

    def zero_grad(self, set_to_none: bool = False) -> None:
        if self.watch.passes:
            self._rows.forget()
        self.watch.cleared()
        super().zero_grad(set_to_none)

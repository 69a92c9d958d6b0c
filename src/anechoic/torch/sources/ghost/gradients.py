"""Clipped sums of row gradients from layer inputs and backprops of one backward pass."""

from __future__ import annotations

from secrets import randbelow

import torch
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.randomness.modes import SecretDraws, paused
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.row_types.labels import UNPACK
from anechoic.torch.row_types.refusals import runs_own_code
from anechoic.torch.sources.clipping import Clipping
from anechoic.torch.sources.ghost.factored_gradients import (
    MemoryAllowance,
    RowGradients,
    excess,
    norms,
    shared,
)
from anechoic.torch.sources.ghost.layer_kind import BackwardCall
from anechoic.torch.sources.ghost.layers import layer_kind
from anechoic.torch.sources.ghost.module import OTHERWISE, BackpropRecorder, BackpropTrace, Tracer

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_SLACK = 1e-9  # of the bound on the sum, for rounding of its own norm
#: One backward pass in so many, chosen at random, also shows that no loss depends on another row.
SPOT_CHECKS = 128


class GhostGradients:
    """Clipped sums of the gradients of rows, from one backward pass through a traced module.

    Args:
        module: plain module.
        parameters: the trainable ones, in the order of the sums.
        ledger: knows the batch in hand.
        clipping: gives multiples of the rows' gradients, from upper bounds of their norms.
        batch_first: whether rows come before positions.
        types: follow the rows of the batch in hand; None for some of its own, which follow none.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        ledger: ReleaseLedger,
        clipping: Clipping,
        types: RowTypes | None = None,
        *,
        batch_first: bool = True,
    ) -> None:
        self._types = types or RowTypes(batch_first=batch_first, means=False)
        self._parameters, self._clipping = parameters, clipping
        self._module = module
        self.tracer = Tracer(module, parameters, ledger, self._types, batch_first=batch_first)
        self._checked_state: tuple[bool, ...] = ()
        self.excess = 0.0
        self._rounding_of, self._rounding = -1, dict[int, float]()
        self.forget()

    def forget(self) -> None:
        """Drop layer inputs and backprops."""
        self.passes = self.rows = 0
        self._trace: BackpropTrace | None = None
        self.tracer.stray = False

    # -- the backward pass ---------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of the losses of the rows, and record inputs and backprops.

        Args:
            loss: shape (rows,).
        """
        self._types.check_losses(loss)
        state = tuple(layer.training for layer in self._module.modules())
        apart = state != self._checked_state or randbelow(SPOT_CHECKS) == 0
        self._trace = None
        try:
            self._trace = self.tracer.run(loss, apart=apart, followed=self._runs_own_code(loss))
        except BaseException:
            self.forget()
            raise
        if apart and len(loss) > 1:
            self._checked_state = state
        self.passes += 1
        self.rows = len(loss)

    def _runs_own_code(self, loss: Tensor) -> bool:
        """Whether code that is not torch's may run in the backward pass, which has to be followed then."""
        if not self._types.active:
            return False
        hooked = self._types.batch.hooked  # before the graph is looked at, which counts as asking for it
        with paused():
            found = hooked or runs_own_code(loss, BackpropRecorder)
        if found and not SecretDraws.active():
            raise GuaranteeError(
                "hooks, or functions with a backward() of their own, are in the graph of a loss whose"
                " backward() was called where nothing sees what they do to rows (in another thread, say)."
                f" Nothing was released. Call it where the model is called, or {OTHERWISE}."
            )
        return found

    # -- the sums ------------------------------------------------------------------------------

    def sums(self, delivery: Delivery) -> list[Tensor]:
        """Sums of the clipped gradients, one a parameter, float64; a row that is not finite counts as zero.

        Args:
            delivery: the batch in hand.

        Raises:
            DesynchronizedError: if they are not those of `delivery`.
            GuaranteeError: if a layer's forward() was replaced.
        """
        self._check(delivery)
        if delivery.size == 0 or self._trace is None:
            return self._zeros()
        calls = self._trace.calls
        self._check_calls(calls)
        gradients = self._gradients(calls)
        if not gradients:
            return self._zeros()
        lengths = self._lengths(gradients)
        finite = torch.isfinite(torch.stack(lengths)).all(dim=0)
        if not bool(finite.any()):
            return self._zeros()
        if not bool(finite.all()):
            calls = {layer: [call.rows(finite) for call in made] for layer, made in calls.items()}
            gradients = self._gradients(calls)
            lengths = self._lengths(gradients)
        rows = len(lengths[0])
        terms = max(part.terms for part in gradients.values())
        self._count_rounding(delivery, excess(rows, terms))
        sums = self._zeros()
        for length, (bound, places) in zip(lengths, self._parts(gradients), strict=True):
            factors = self._clipping.factors(length, bound=bound)
            for place in places:
                sums[place] = gradients[id(self._parameters[place])].weighted_sum(factors)
            self._check_bound([sums[place] for place in places], rows, bound)
        return sums

    def _parts(self, gradients: dict[int, RowGradients]) -> list[tuple[float, list[int]]]:
        """(bound, places of parameters that are clipped to it together), of those that the loss reached."""
        parts = self._clipping.members(len(self._parameters))
        reached = [(b, [i for i in places if id(self._parameters[i]) in gradients]) for b, places in parts]
        return [(bound, places) for bound, places in reached if places]

    def _lengths(self, gradients: dict[int, RowGradients]) -> list[Tensor]:
        """Upper bounds of the norms of the rows over each of these parts, shape (rows,)."""
        parts = self._parts(gradients)
        return [norms([gradients[id(self._parameters[i])] for i in places]) for _, places in parts]

    def _check_calls(self, calls: dict[nn.Module, list[BackwardCall]]) -> None:
        """Refuse calls whose layer or tensors changed since: they would be those of other rows."""
        for layer, made in calls.items():
            kind = layer_kind(type(layer))
            if any(call.changed(kind) for call in made):
                raise GuaranteeError(
                    f"{self.tracer.describe(layer)}, its input, or the gradient at its output was changed"
                    " between the backward pass and step(): leave them until then."
                )

    def _gradients(self, calls: dict[nn.Module, list[BackwardCall]]) -> dict[int, RowGradients]:
        """Gradients of the rows by the parameter's id; what the loss does not reach is missing."""
        budget = MemoryAllowance()
        found: dict[int, RowGradients] = {}
        for layer, made in calls.items():
            kind = layer_kind(type(layer))
            makers = {} if kind is None else kind.gradients(made, budget)
            for name, identity in self.tracer.layers[layer].items():
                made_here = makers[name]()
                found[identity] = shared(found[identity], made_here) if identity in found else made_here
        return found

    def _count_rounding(self, delivery: Delivery, part: float) -> None:
        """Add up what rounding may do to a release over its micro-batches."""
        if delivery.step != self._rounding_of:
            self._rounding_of, self._rounding = delivery.step, {}
        self._rounding[delivery.chunk] = part
        self.excess = max(self.excess, sum(self._rounding.values()))

    def _check_bound(self, sums: list[Tensor], rows: int, bound: float) -> None:
        """Refuse a sum over one part that clipped gradients cannot have."""
        total = float(torch.stack([torch.linalg.vector_norm(part) for part in sums]).norm())
        if not total <= rows * bound * (1 + self.excess) * (1 + _SLACK):
            raise GuaranteeError(
                f"the sum of {rows} clipped gradients has norm {total:.6g}, above {rows} * clip norm ="
                f" {rows * bound:.6g}: something was not clipped, so nothing is released."
                " Use grad_sample_mode='rows'."
            )

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p, dtype=torch.float64) for p in self._parameters]

    def _check(self, delivery: Delivery) -> None:
        replaced = self.tracer.replaced()
        if replaced:
            raise GuaranteeError(
                f"forward() of {', '.join(replaced)} was replaced after make_private: ghost clipping measures"
                " what its own forward() computes. Leave it, or use grad_sample_mode='rows'."
            )
        if any(getattr(p, name, None) for p in self._parameters for name in _HOOKS):
            raise GuaranteeError(
                "a parameter has a gradient hook (register_hook), which would never be called: under ghost"
                " clipping parameters get no gradient before step(). Remove it."
            )
        if self.tracer.stray:
            raise DesynchronizedError(
                "a backward pass of something else than the losses of the criterion that make_private"
                f" returned reached layers of the model for release {delivery.step}: it would be left out of"
                " the release. Add such terms to the loss of each example in the criterion, or use"
                " grad_sample_mode='rows'."
            )
        if delivery.size == 0 and self.rows == 0:
            return
        if self.passes > 1:
            raise DesynchronizedError(
                f"{self.passes} backward passes reached release {delivery.step}: accumulating gradients by"
                " hand would put several batches, or one batch several times, into one release. Call"
                " backward() once per batch, and use anechoic.torch.BatchMemoryManager where batches do not"
                " fit into memory."
            )
        if self.passes == 0 or self._trace is None:
            raise DesynchronizedError(
                "no clipped gradient reached this step: compute the loss with the criterion that"
                " make_private returned and call its backward() on the delivered batch."
            )
        if self.rows != delivery.size:
            raise DesynchronizedError(
                f"gradients of {self.rows} examples reached release {delivery.step}, whose batch has"
                f" {delivery.size}: feed the model exactly the delivered batch, one row an example.{UNPACK}."
            )
        if not all(seen is delivery for seen in self._trace.deliveries):
            raise DesynchronizedError(
                f"the forward pass of release {delivery.step} was made before its batch was delivered: feed"
                " the model with the delivered batch."
            )

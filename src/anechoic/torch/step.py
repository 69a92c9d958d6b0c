"""One training step: clip the rows of the batch in hand, add them up, release the noisy sum, update.

`TrainingStep.run` reads like the proof. One example moves the sum by at most the clip norm (the gradient
source), a noise row belongs to one release (ledger and journal), and what follows is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_not
from typing import Any

from torch import nn
from torch.optim import Optimizer

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError
from anechoic.runs.fork_guard import NonPicklable
from anechoic.runs.ledger import Delivery
from anechoic.torch.generators import StepGenerators
from anechoic.torch.labels import MARKED, mark_of
from anechoic.torch.noise_adder import NoiseAdder
from anechoic.torch.sources.base import GradientSource
from anechoic.torch.sources.levels import MIXING, check_not_mixing
from anechoic.torch.structure import full_precision, uninterrupted, word_sums

_version: Callable[[Any], int] = attrgetter("_version")


class TrainingStep(NonPicklable):
    """The work on a batch, from its delivery to the update by the user's optimizer, which it alone steps."""

    def __init__(
        self,
        source: GradientSource,
        noise_adder: NoiseAdder,
        optimizer: Optimizer,
        generators: StepGenerators,
    ) -> None:
        self.source, self.noise_adder, self.ledger = source, noise_adder, noise_adder.ledger
        self.generators, self._optimizer, self._updating = generators, optimizer, False
        self.guard = Guard(source.setup.module, source.parameters, optimizer)
        self._hook = optimizer.register_step_pre_hook(self._check)
        source.before_call = self._before_call

    def deliver(self, delivery: Delivery) -> None:
        """Begin the work on a batch."""
        self.generators.deliver(delivery)
        self.source.on_delivery(delivery)

    def _before_call(self) -> None:
        """Check the weights before the model works on the batch in hand, and take its random numbers."""
        self.guard.check_weights()
        self.generators.take()

    def run(self, hook: Callable[[], None] | None) -> Any:
        """Make the release that is due and update the model; of a micro-batch only add up its sums."""
        delivery = self.ledger.due()
        self.guard.check()
        if delivery.chunk == 0 and self.noise_adder.partial is not None:
            raise DesynchronizedError(
                "summed gradients of another batch are left over: call optimizer.abandon_batch(), and"
                " iterate again."
            )
        with full_precision(self.source.device.type):
            sums = self.source.sums(delivery)
            if not delivery.last:
                with self.ledger.summing():
                    self.noise_adder.add_partial_sum(sums)
                    self.source.discard_sums()
                return None
            self.noise_adder.agree(delivery.step)
            with uninterrupted():
                with self.ledger.releasing() as step:
                    released = self.noise_adder.noisy_gradients(step, sums)
                    for p, gradient in zip(self.source.parameters, released, strict=True):
                        p.grad = gradient
                    self.source.discard_sums()
                return self._update(hook)

    def _update(self, hook: Callable[[], None] | None) -> Any:
        """Update the model with the last release: whatever comes of it is post-processing."""
        try:
            if hook is not None:
                hook()
            self._updating = True
            return self._optimizer.step()
        finally:
            self._updating = False
            self.guard.released()

    def _check(self, *_: Any) -> None:
        if not self._updating:
            raise GuaranteeError(
                "the optimizer given to make_private was stepped directly, with gradients that are neither"
                " clipped nor noisy: step the one that make_private returned."
            )

    def detach(self) -> None:
        """Detach from the user's optimizer, which may be stepped by anyone then."""
        self._hook.remove()
        self.generators.settle()


class Guard:
    """Compare parameters, and where rows may be kept, with what they were when the run began.

    Trainable parameters are compared by sums over their words (before a call of the model only where a
    version counter moved), so weights that are put back, as those of an average after an evaluation, are the
    same. Other tensors of the model may be functions of the weights, as those of spectral norms are; what
    holds rows is refused. Each check raises GuaranteeError or MismatchError, naming what changed.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], optimizer: Optimizer) -> None:
        self._optimizer, self._bound, self._module = optimizer, parameters, module
        self._kept = list(module.parameters())  # so that no other tensor gets the identity of one of them
        self._known = self._members()
        self._mixing = [layer for layer in module.modules() if isinstance(layer, MIXING)]
        self.released()

    def released(self) -> None:
        """Take the weights as they are now: step() has changed them, or the run has not begun."""
        self._versions, self._sums = [*map(_version, self._bound)], word_sums(self._bound)

    def check(self) -> None:
        """Refuse a step, or a checkpoint, of a run that is not what it was."""
        now = trainable(self._optimizer)
        if len(now) != len(self._bound) or any(map(is_not, now, self._bound)):
            raise MismatchError(
                f"the optimizer has {len(now)} trainable parameters that are not the {len(self._bound)} of"
                " make_private: parameters cannot be frozen, unfrozen, added or replaced during a run,"
                " because the noise of every step goes with all of them. Freeze before make_private; or train"
                " all of them, and give those that are to rest for some time a parameter group with lr 0."
            )
        if (members := self._members()) != self._known:
            self._refuse(members, self._known)
        self._versions = []  # of fused optimizers and of .data they say nothing
        self.check_weights()

    def check_weights(self) -> None:
        """Refuse weights that something else than step() changed, and layers that mix rows."""
        if self._mixing:
            check_not_mixing(self._mixing)
        if self._versions != (versions := [*map(_version, self._bound)]):
            if self._sums != word_sums(self._bound):
                raise GuaranteeError(
                    "a trainable parameter was changed by something else than optimizer.step(), which alone"
                    " clips and adds noise: a second optimizer, an edit in place (p.sub_(p.grad)), a layer"
                    " that changes its own weights, or averaged weights. Load weights after make_private and"
                    " before the first batch; to evaluate averaged weights, put them into a copy of the"
                    " model, or put the others back before the next batch."
                )
            self._versions = versions
        for name, tensor in self._module.named_buffers() if MARKED else ():
            if mark_of(tensor) is not None:
                raise GuaranteeError(
                    f"rows of a batch were written into {name} of the model, without noise: later batches"
                    " would be clipped with it, and the released model holds it. Keep such statistics out of"
                    " the model (centres, queues and running means of a batch have no noise)."
                )

    def _members(self) -> dict[str, Any]:
        named = self._module.named_parameters(remove_duplicate=False)
        return {name: (id(p), p.requires_grad, p.dtype, p.shape, p.device) for name, p in named}

    def _refuse(self, now: dict[str, Any], known: dict[str, Any]) -> None:
        """Name a parameter that joined the model later, say: it is trained by gradients without noise."""
        name = min(n for n in now.keys() | known.keys() if now.get(n) != known.get(n))
        if name not in known or name not in now:
            what = "appeared in the model" if name in now else "is gone from the model"
        elif now[name][0] != known[name][0]:
            what = "was replaced by another parameter"
        elif now[name][1] != known[name][1]:
            what = "was unfrozen" if now[name][1] else "was frozen"
        else:
            cast = f"{name} is {now[name][2:]}, and was {known[name][2:]}: move and cast the model before"
            raise MismatchError(f"{cast} make_private. Nothing was released.")
        raise MismatchError(
            f"{name} {what} after make_private: it is not among the parameters whose gradients are clipped"
            " and get noise, and whatever else trains it would show the data. Nothing was released. Build the"
            " whole model, freeze what is to be frozen, and then call make_private; change values by"
            " load_state_dict, before the first batch."
        )


def trainable(optimizer: Optimizer) -> list[nn.Parameter]:
    """The trainable parameters of an optimizer, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]

"""One training step: clip the rows of the batch in hand, add them up, release the noisy sum, update.

`TrainingStep.run` reads like the proof. One example moves the sum by at most the clip norm (the gradient
source), a noise row belongs to one release (ledger and journal), and what follows is post-processing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.runs.fork_guard import NonPicklable
from anechoic.runs.ledger import Delivery
from anechoic.torch.generators import StepGenerators
from anechoic.torch.guard import Guard
from anechoic.torch.noise_adder import NoiseAdder
from anechoic.torch.sources.base import GradientSource
from anechoic.torch.structure import full_precision, uninterrupted

logger = logging.getLogger("anechoic")


class TrainingStep(NonPicklable):
    """The work on a batch, from its delivery to the update by the user's optimizer."""

    def __init__(
        self,
        source: GradientSource,
        noise_adder: NoiseAdder,
        optimizer: Optimizer,
        generators: StepGenerators,
    ) -> None:
        self.source, self.noise_adder, self.ledger = source, noise_adder, noise_adder.ledger
        self.generators = generators
        self.guard = Guard(source.setup.module, source.parameters, optimizer)
        self.update = OptimizerUpdate(optimizer, source.parameters)
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
        if self.update.failed:
            return self._apply(None)
        delivery = self.ledger.due()
        self.guard.check()
        if delivery.chunk == 0 and self.noise_adder.left_over:
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
                    self.update.put(self.noise_adder.noisy_gradients(step, sums))
                    self.source.discard_sums()
                return self._apply(hook)

    def _apply(self, hook: Callable[[], None] | None) -> Any:
        """Update the model with the last release, whose noise row is taken."""
        try:
            if hook is not None:
                hook()
            return self.update.run()
        finally:
            self.guard.released()
            self.ledger.unapplied = self.update.failed == "before"

    def detach(self) -> None:
        """Detach from the user's optimizer, which may be stepped by anyone then."""
        self.update.detach()
        self.generators.settle()


class OptimizerUpdate:
    """Give noisy gradients to an optimizer and step it, once for each release; refuse every other step of it.

    Attributes:
        failed: "before" where the last step failed before it changed anything, "after" where a hook failed
            after it; else "".
    """

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.optimizer = optimizer
        self.failed: str = ""
        self._parameters = parameters
        self._allowed = self._done = self._said = False
        self._seen: list[tuple[nn.Parameter, ref[Tensor], int]] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._check),
            optimizer.register_step_post_hook(self._note),
        ]
        after: Any = optimizer._optimizer_step_post_hooks
        after.move_to_end(self._hooks[1].id, last=False)

    def put(self, gradients: list[Tensor]) -> None:
        """Write released gradients into p.grad, of which the update is due."""
        same = [(grad, version) for p, held, version in self._seen if (grad := held()) is p.grad]
        changed = [grad for grad, version in same if grad is not None and grad._version != version]
        if changed and not self._said:
            self._said = True
            logger.warning(
                "p.grad was changed between zero_grad() and step(), as by clip_grad_norm_: nobody reads it"
                " there, since step() writes the released gradient into it. Leave that line out:"
                " max_grad_norm= of make_private clips each row."
            )
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient
        self.failed = "before"

    def note_gradients(self) -> None:
        """Remember p.grad as it is: nobody has a reason to change it before the next release."""
        self._seen = [(p, ref(p.grad), p.grad._version) for p in self._parameters if p.grad is not None]

    def run(self) -> Any:
        """Step the optimizer; after an error that changed nothing it may be run again."""
        if self.failed == "after":
            self.failed = ""
            return None
        known, before = set(map(id, self.optimizer.state)), self._versions()
        self._allowed, self._done = True, False
        try:
            found = self.optimizer.step()
        except BaseException as error:
            if self._done:
                self.failed = "after"
                raise
            for p in [p for p in self.optimizer.state if id(p) not in known]:
                del self.optimizer.state[p]  # begun in this step
            if self._versions() != before:
                self.failed = ""
                raise GuaranteeError(
                    f"the optimizer failed in the midst of its update ({type(error).__name__}: {error}), so"
                    " some parameters have it and others do not: go on from the last checkpoint."
                ) from error
            raise
        finally:
            self._allowed = False
        self.failed = ""
        self.note_gradients()
        return found

    def detach(self) -> None:
        """Detach from the optimizer: it may be stepped by anyone."""
        for hook in self._hooks:
            hook.remove()

    def _versions(self) -> list[int]:
        state: Any = self.optimizer.state.values()
        held = [v for one in state for v in one.values() if isinstance(v, Tensor)]
        return [t._version for t in (*self._parameters, *held)]

    def _check(self, *_: Any) -> None:
        if not self._allowed:
            raise GuaranteeError(
                "the optimizer given to make_private was stepped directly, with gradients that are neither"
                " clipped nor noisy: step the one that make_private returned."
            )

    def _note(self, *_: Any) -> None:
        self._done = True

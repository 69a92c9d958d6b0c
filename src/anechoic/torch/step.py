"""One training step: clip the rows of the batch in hand, add them up, release the noisy sum, update.

`TrainingStep.run` reads like the proof. One example moves the sum by at most the clip norm (the gradient
source), a noise row belongs to one release (ledger and journal), and what follows is post-processing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import is_not
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError
from anechoic.runs.fork_guard import NonPicklable
from anechoic.runs.ledger import Delivery
from anechoic.torch.generators import StepGenerators
from anechoic.torch.labels import labels_written, mark_of
from anechoic.torch.noise_adder import NoiseAdder
from anechoic.torch.sources.base import GradientSource
from anechoic.torch.sources.levels import MIXING, check_not_mixing
from anechoic.torch.structure import full_precision, uninterrupted, word_sums

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


class Guard:
    """Compare a run with what it was: settings, parameters and the model.

    Trainable parameters are compared by sums over their words (before a call of the model only where a
    version counter moved), so weights that are put back, as those of an average after an evaluation, are the
    same. Other tensors of the model may be functions of the weights, as those of spectral norms are; what
    holds rows is refused. Each check raises GuaranteeError or MismatchError, naming what changed.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], optimizer: Optimizer) -> None:
        self._optimizer, self._bound = optimizer, parameters
        self._layout = self._layouts()
        self._module = module
        self._kept = list(module.parameters())  # so that no other tensor gets the identity of one of them
        self._known = self._members()
        self._mixing = [layer for layer in module.modules() if isinstance(layer, MIXING)]
        self._read: Any = lambda: {}
        self._settings: dict[str, Any] = {}
        self.released()

    def expect(self, read: Any) -> None:
        """Take the present settings, which `read` returns, as right."""
        self._read, self._settings = read, read()

    def released(self) -> None:
        """Take the weights as they are now: step() has changed them, or the run has not begun."""
        self._versions = [(id(p), p._version) for p in self._bound]
        self._sums = word_sums(self._bound)

    def check(self) -> None:
        """Refuse a step of a run that is not what it was."""
        self._check_settings()
        self._check_parameters()
        self._versions = []  # of fused optimizers and of .data they say nothing
        self.check_weights()

    def check_weights(self) -> None:
        """Refuse weights that something else than step() changed, and layers that mix rows."""
        if self._mixing:
            check_not_mixing(self._mixing)
        if self._versions != [(id(p), p._version) for p in self._bound]:
            if self._sums != word_sums(self._bound):
                raise GuaranteeError(
                    "a trainable parameter was changed by something else than optimizer.step(), which alone"
                    " clips and adds noise: a second optimizer, an edit in place (p.sub_(p.grad)), a layer"
                    " that changes its own weights, or averaged weights. Load weights after make_private and"
                    " before the first batch; to evaluate averaged weights, put them into a copy of the"
                    " model, or put the others back before the next batch."
                )
            self._versions = [(id(p), p._version) for p in self._bound]
        for name, tensor in self._module.named_buffers() if labels_written() else ():
            if mark_of(tensor) is not None:
                raise GuaranteeError(
                    f"rows of a batch were written into {name} of the model, without noise: later batches"
                    " would be clipped with it, and the released model holds it. Keep such statistics out of"
                    " the model (centres, queues and running means of a batch have no noise)."
                )

    def check_model(self) -> None:
        """Refuse a model that something else than step() changed."""
        self._check_members()
        self.check_weights()

    def _check_settings(self) -> None:
        for name, value in self._read().items():
            if value != self._settings[name]:
                raise MismatchError(
                    f"{name}={value} was {self._settings[name]} when the run began, and the mechanism was"
                    " calibrated for that: set it back, and leave out what changes it (a noise scheduler or a"
                    " grad_clip scheduler of Opacus: no ExponentialNoise(optimizer, …), and no step() of it)."
                    " Another value needs another mechanism, in a run of its own."
                )

    def _check_parameters(self) -> None:
        now = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        if len(now) != len(self._bound) or any(map(is_not, now, self._bound)):
            raise MismatchError(
                f"the optimizer has {len(now)} trainable parameters that are not the {len(self._bound)} of"
                " make_private: parameters cannot be frozen, unfrozen, added or replaced during a run,"
                " because the noise of every step goes with all of them. Freeze before make_private; or train"
                " all of them, and give those that are to rest for some time a parameter group with lr 0."
            )
        self._check_members()
        for found, made in zip(self._layouts(), self._layout, strict=True):
            if found != made:
                raise MismatchError(
                    f"a parameter is {found}, and was {made}: move and cast the model before make_private."
                )

    def _layouts(self) -> list[Any]:
        return [(p.dtype, p.shape, p.device) for p in self._bound]

    def _check_members(self) -> None:
        """Refuse a layer that joined the model later: it is trained by gradients without noise."""
        now, known = self._members(), self._known
        if now == known:
            return
        name = min(n for n in now.keys() | known.keys() if now.get(n) != known.get(n))
        if name not in known:
            what = "appeared in the model"
        elif name not in now:
            what = "is gone from the model"
        elif now[name][0] != known[name][0]:
            what = "was replaced by another parameter"
        else:
            what = "was unfrozen" if now[name][1] else "was frozen"
        raise MismatchError(
            f"{name} {what} after make_private: it is not among the parameters whose gradients are clipped"
            " and get noise, and whatever else trains it would show the data. Nothing was released. Build the"
            " whole model, freeze what is to be frozen, and then call make_private; change values by"
            " load_state_dict, before the first batch."
        )

    def _members(self) -> dict[str, tuple[int, bool]]:
        named = self._module.named_parameters(remove_duplicate=False)
        return {name: (id(p), p.requires_grad) for name, p in named}

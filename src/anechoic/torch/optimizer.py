"""The optimizer that make_private returns: one step() is one release of the mechanism, checked before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.fork_guard import Uncopyable
from anechoic.runs.ledger import Delivery
from anechoic.torch.guard import Guard
from anechoic.torch.history import STAMP, unstamped
from anechoic.torch.noise_adder import Releaser
from anechoic.torch.randomness import modes
from anechoic.torch.randomness.modes import paused
from anechoic.torch.randomness.rng_stack import Surroundings, rest
from anechoic.torch.sources.base import GradientSource
from anechoic.torch.structure import full_precision, uninterrupted


def _of_users(name: str) -> Any:
    """An attribute that is that of the user's optimizer."""
    return property(
        lambda self: getattr(self.original_optimizer, name),
        lambda self, value: setattr(self.original_optimizer, name, value),
    )


class CorrelatedOptimizer(Uncopyable, Optimizer):
    """A gradient source, a release and an update behind the face of a torch optimizer.

    Learning rates, their schedulers, hooks on steps and state are those of the user's optimizer, which it
    steps. It has the attributes of Opacus's optimizers that training code reads, and is none of them: their
    pieces of a step are refused.

    Args:
        source: makes the clipped sums.
        release: adds the noise.
        optimizer: the user's.
        surroundings: random numbers while a batch is in hand.

    Attributes:
        expected_batch_size, max_grad_norm, noise_multiplier, loss_reduction: of the run; they must stay.
        original_optimizer: the user's, which must not be stepped.
        guard: what must be as it was, or nothing is released.
        step_hook: called with the optimizer after each release, before the update.
    """

    step_hook: Callable[[Any], None] | None = None

    def __init__(
        self,
        source: GradientSource,
        release: Releaser,
        optimizer: Optimizer,
        *,
        surroundings: Surroundings,
    ) -> None:  # Optimizer.__init__ would make parameter groups of its own
        self.source, self.release, self.ledger = source, release, release.ledger
        mechanism, self.loss_reduction = release.mechanism, source.setup.loss_reduction
        self.expected_batch_size: float = mechanism.expected_batch_size
        self.max_grad_norm, self.noise_multiplier = mechanism.clip_norm, mechanism.noise_multiplier
        self.original_optimizer = optimizer
        self._update = Update(optimizer, source.parameters)
        self._step_skip_queue: list[bool] = []  # Opacus's; whoever fills it is refused
        self._surroundings, self.guard = surroundings, Guard(self, surroundings)
        self._stepping = threading.Lock()
        self.run: Any = None  # which it belongs to, for stamps of state dicts
        self._stamps = [  # whoever saves and loads the state, of this or of the user's optimizer
            optimizer.register_state_dict_post_hook(self._stamped),
            optimizer.register_load_state_dict_pre_hook(self._admitted),
        ]

    def expect(self, mechanism: Mechanism) -> None:
        """The noise of `mechanism` is what the settings say from here on."""
        self.noise_multiplier = mechanism.noise_multiplier
        self.guard.expect()

    # -- one step ------------------------------------------------------------------------------

    @_disable_dynamo  # a whole step under torch.compile: releases are made as they are
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Make the release of the batch in hand and update the model with it.

        After a micro-batch that is not the last of its batch: only clip and sum.

        Returns:
            What `closure` returned, or what the user's optimizer returns.

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
            if closure is None:
                return self._step()
            with torch.enable_grad():
                value = closure()
            self._step()
            return value
        finally:
            self._stepping.release()

    def _step(self) -> Any:
        begun = self.ledger.releases
        try:
            delivery = self.ledger.due()
            rest()  # the work on the batch is done
            try:
                return self._released(delivery)
            except BaseException:
                self._surroundings.take()  # it is in hand still
                raise
        except Exception as error:
            if not self.release.agreed:  # else the others wait for sums, not for words
                self.release.ranks.report(f"release {begun}", error)
            raise

    def _released(self, delivery: Delivery) -> Any:
        self._admit_what_was_loaded()
        self.guard.check()
        if self._step_skip_queue:
            self.signal_skip_step()
        if delivery.chunk == 0 and self.release.left_over:
            raise DesynchronizedError(
                "summed gradients of another batch are left over: call optimizer.abandon_batch(), and"
                " iterate again."
            )
        with full_precision(self.source.device.type):
            sums = self.source.sums(delivery)
            if not delivery.last:
                with self.ledger.summing():
                    self.release.add(sums)
                    self.source.used()
                return None
            self.release.agree(delivery.step)
            with uninterrupted(), self.ledger.releasing() as step:
                self._update.put(self.release.make(step, sums))
                self.source.used()
                if self.source.watches and (self.step_hook is not None or self._update.hooked):
                    modes.start()  # what the user's hooks make of the batch is looked at
                if self.step_hook is not None:
                    self.step_hook(self)
                try:
                    return self._update.step()
                finally:
                    self.guard.released()

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients: p.grad, and those of single examples."""
        self.source.zero_grad()
        with paused():  # of which each look at p.grad costs
            self.original_optimizer.zero_grad(set_to_none)

    def abandon_batch(self) -> None:
        """Give up the batch in hand, of which nothing was released. Iterate again to get it back."""
        self.ledger.abandon()
        self.forget()

    def detach(self) -> None:
        """Let go of the user's optimizer, which may be stepped by anyone then."""
        self._update.detach()
        self.guard.detach()
        for hook in self._stamps:
            hook.remove()

    def forget(self) -> None:
        """Drop all gradients and sums, and what was kept of an interrupted pass."""
        self.release.forget()
        self.source.forget()
        self.original_optimizer.zero_grad()

    # -- what a torch optimizer has ------------------------------------------------------------

    @property
    def params(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    param_groups, state, defaults = map(_of_users, ("param_groups", "state", "defaults"))

    # the next step() refuses new trainable parameters; hooks are called with the user's optimizer
    add_param_group, register_step_pre_hook, register_step_post_hook = map(
        _of_users, ("add_param_group", "register_step_pre_hook", "register_step_post_hook")
    )

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """That of the user's optimizer, stamped with the run that it belongs to and its release count.

        No secret is in it; keys and noise are in engine.save_checkpoint alone.
        """
        state = self.original_optimizer.state_dict()
        return state if STAMP in state else self._stamped(None, state)  # some have a state_dict of their own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        """Put the user's optimizer where `state_dict` was taken.

        Raises:
            ReplayError: if it is of a run with releases that this engine does not count; see
                `PrivacyEngine.charge`.
            GuaranteeError: if it holds something and says nothing of a run, where nothing was charged.
        """
        self.restore(self._admitted(None, state_dict))  # once: what was admitted has no stamp any more

    def restore(self, state_dict: dict[str, Any]) -> None:
        """The same for a checkpoint of this run, whose releases are counted by the checkpoint."""
        run, self.run = self.run, None
        try:
            self.original_optimizer.load_state_dict(state_dict)
        finally:
            self.run = run

    def kept(self) -> dict[str, Any]:
        """The state of the user's optimizer for a checkpoint."""
        run, self.run = self.run, None
        try:
            return unstamped(self.original_optimizer.state_dict())
        finally:
            self.run = run

    def _stamped(self, _: Any, state: dict[str, Any]) -> dict[str, Any]:
        stamped: dict[str, Any] = state if self.run is None else self.run.stamped(state)
        return stamped

    def _admitted(self, _: Any, state: dict[str, Any]) -> dict[str, Any]:
        admitted: dict[str, Any] = state if self.run is None else self.run.admitted(state)
        return admitted

    def _admit_what_was_loaded(self) -> None:
        """Refuse a state that was loaded into the plain optimizer before make_private, as one after it."""
        groups = self.original_optimizer.param_groups
        if self.run is not None and any(STAMP in group for group in groups):
            self._admitted(None, {"param_groups": groups})
            for group in groups:
                group.pop(STAMP, None)

    def __repr__(self) -> str:
        return repr(self.original_optimizer)

    # -- what Opacus's optimizers have ---------------------------------------------------------

    def attach_step_hook(self, fn: Callable[[Any], None] | None) -> None:
        """Call `fn` with the optimizer after each release, before the update; None for nothing."""
        self.step_hook = fn

    def signal_skip_step(self, do_skip: bool = True) -> NoReturn:
        """Refused: Opacus's queue of steps to skip can outlive the batch that it was meant for."""
        raise DesynchronizedError(
            "opacus.utils.batch_memory_manager.BatchMemoryManager, and signal_skip_step() in a loop, keep a"
            " queue of steps to skip that can outlive its batch. Write: from anechoic.torch import"
            " BatchMemoryManager, which has the same arguments."
        )

    def _by_step_only(self, *_: Any, **__: Any) -> NoReturn:
        raise GuaranteeError("step() clips, adds noise and scales in one piece: call optimizer.step().")

    # apart from one another they would release without noise or twice
    pre_step = add_noise = scale_grad = clip_and_accumulate = accumulate = _by_step_only

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
            " noise level: use autocast with bfloat16 and no GradScaler (GradScaler(enabled=False) does"
            " nothing, and may stay)."
        )


class Update:
    """Hands noisy gradients to an optimizer and steps it; refuses every other step of it.

    Args:
        optimizer: the user's.
        parameters: those that gradients are released for, in their order.
    """

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._parameters = parameters
        self._allowed = False
        self._guard = optimizer.register_step_pre_hook(self._check)

    def put(self, gradients: Iterable[Tensor]) -> None:
        """Put released gradients into p.grad."""
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient

    @property
    def hooked(self) -> bool:
        """Whether the user has hooks on its steps."""
        before, after = self.optimizer._optimizer_step_pre_hooks, self.optimizer._optimizer_step_post_hooks
        return len(before) > 1 or bool(after)

    def step(self) -> Any:
        """Step the optimizer; what it returns."""
        self._allowed = True
        try:
            return self.optimizer.step()
        finally:
            self._allowed = False

    def detach(self) -> None:
        """Let go of the optimizer: it may be stepped by anyone."""
        self._guard.remove()

    def _check(self, *_: Any) -> None:
        if not self._allowed:
            raise GuaranteeError(
                "the optimizer given to make_private was stepped directly, with gradients that are neither"
                " clipped nor noisy: step the one that make_private returned."
            )

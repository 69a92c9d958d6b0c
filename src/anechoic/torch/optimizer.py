"""The optimizer that make_private returns: one step() is one release of the mechanism, checked before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from anechoic.errors import (
    CheckpointError,
    DesynchronizedError,
    GuaranteeError,
    MismatchError,
    ReplayError,
    UnsupportedError,
)
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.fork_guard import NonPicklable
from anechoic.torch.step import TrainingStep, trainable


def _of_users(name: str) -> Any:
    """Property that stands for an attribute of the user's optimizer."""
    return property(
        lambda self: getattr(self.original_optimizer, name),
        lambda self, value: setattr(self.original_optimizer, name, value),
    )


def _of_run(name: str, where: str) -> Any:
    """Property of the run, which stays: the mechanism was calibrated for it."""

    def keep(self: CorrelatedOptimizer, value: Any) -> None:
        if value != (known := getattr(self, name)):
            raise MismatchError(
                f"optimizer.{name} stays {known} for the whole run, calibrated for it, and was set to"
                f" {value}: leave out what sets it (a noise scheduler or a grad_clip scheduler of Opacus:"
                " no ExponentialNoise(optimizer, …), and no step() of it). Another value needs another"
                " mechanism, in a run of its own."
            )

    return property(attrgetter(where), keep)


class CorrelatedOptimizer(NonPicklable, Optimizer):
    """Torch optimizer whose step() sums clipped gradients, adds noise and steps the user's optimizer.

    Learning rates, their schedulers, hooks on steps and state are those of the user's optimizer, which it
    steps. It has the attributes of Opacus's optimizers that training code reads, and no pieces of a step.

    Attributes:
        expected_batch_size, max_grad_norm, noise_multiplier, loss_reduction: of the run; they stay.
        original_optimizer: the user's, which must not be stepped.
        step_hook: called with the optimizer after each release, before the update.
    """

    step_hook: Callable[[Any], None] | None = None
    expected_batch_size = _of_run("expected_batch_size", "noise_adder.mechanism.expected_batch_size")
    max_grad_norm = _of_run("max_grad_norm", "noise_adder.mechanism.clip_norm")
    noise_multiplier = _of_run("noise_multiplier", "noise_adder.mechanism.noise_multiplier")
    loss_reduction = _of_run("loss_reduction", "source.setup.loss_reduction")

    def __init__(self, work: TrainingStep, optimizer: Optimizer) -> None:
        # Optimizer.__init__ would make parameter groups of its own
        self.work, self.source = work, work.source
        self.noise_adder, self.ledger = work.noise_adder, work.ledger
        self.original_optimizer = optimizer
        self.stepping = threading.Lock()
        self.run: Any = None  # which it belongs to, for stamps of state dicts
        self._stamps = [  # whoever saves and loads the state, of this or of the user's optimizer
            optimizer.register_state_dict_post_hook(partial(self._with_history, "stamp")),
            optimizer.register_load_state_dict_pre_hook(partial(self._with_history, "admit")),
        ]

    # -- one step ------------------------------------------------------------------------------

    @_disable_dynamo  # a whole step under torch.compile: releases are made as they are
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Make the release of the batch in hand and update the model with it.

        After a micro-batch that is not the last of its batch: only add up its clipped sums.

        Returns:
            What `closure` returned, or what the user's optimizer returns.

        Raises:
            DesynchronizedError, GuaranteeError, MismatchError: if batch, gradients, weights or settings are
                not those of the release that is due; nothing is released.
            HorizonError: if all n releases were made.
        """
        if not self.stepping.acquire(blocking=False):
            raise DesynchronizedError(
                "optimizer.step() was called while it runs, by another thread or from within itself. Step"
                " from one thread."
            )
        begun, value, hook = self.ledger.releases, None, self.step_hook
        try:
            if closure is not None:
                with torch.enable_grad():
                    value = closure()
            made = self.work.run(hook and partial(hook, self))
            return made if closure is None else value
        except Exception as error:
            if not self.noise_adder.agreed:  # else the others wait for sums, not for words
                self.noise_adder.ranks.report(f"release {begun}", error)
            raise
        finally:
            self.stepping.release()

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients: p.grad, and those of single examples."""
        self.source.zero_grad()
        self.original_optimizer.zero_grad(set_to_none)

    def abandon_batch(self) -> None:
        """Abandon the batch in hand, of which nothing was released. Iterate again to get it back."""
        self.ledger.abandon()
        self.forget()

    def detach(self) -> None:
        """Detach from the user's optimizer, which may be stepped by anyone then."""
        self.work.detach()
        for hook in self._stamps:
            hook.remove()

    def forget(self) -> None:
        """Drop all gradients and sums, also those of an interrupted pass."""
        self.noise_adder.partial = None
        self.source.discard_sums()
        self.original_optimizer.zero_grad()

    # -- what a torch optimizer has ------------------------------------------------------------

    @property
    def params(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the groups."""
        return trainable(self)

    param_groups, state, defaults = map(_of_users, ("param_groups", "state", "defaults"))
    # the next step() refuses new trainable parameters; hooks are called with the user's optimizer
    add_param_group, register_step_pre_hook, register_step_post_hook = map(
        _of_users, ("add_param_group", "register_step_pre_hook", "register_step_post_hook")
    )

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the user's optimizer's state, stamped with its run and release count.

        No secret is in it; keys and noise are in engine.save_checkpoint alone.
        """
        state = self.original_optimizer.state_dict()
        # some have a state_dict of their own, which calls no hook
        return state if STAMP in state else self._with_history("stamp", None, state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        """Load a state into the user's optimizer.

        Raises:
            ReplayError: if it is of a run with releases that this engine does not count; see
                `PrivacyEngine.charge`.
            GuaranteeError: if it holds something and says nothing of a run, where nothing was charged.
        """
        self.restore(self._with_history("admit", None, state_dict))  # once: it has no stamp any more

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Load a state from a checkpoint of this run, which counts its releases."""
        run, self.run = self.run, None
        try:
            self.original_optimizer.load_state_dict(state_dict)
        finally:
            self.run = run

    def _with_history(self, what: str, _: Any, state: dict[str, Any]) -> dict[str, Any]:
        """Stamp a state that is saved, or admit one that is loaded."""
        if self.run is None:
            return state
        found = getattr(self.run.history, what)
        return found(state, run=self.run.identity, releases=self.ledger.releases)  # type: ignore[no-any-return]

    def admit_what_was_loaded(self) -> None:
        """Check a state that was loaded into the plain optimizer before make_private, as one after it."""
        stamped = [group for group in self.param_groups if STAMP in group]
        if stamped and self.run is not None:
            self._with_history("admit", None, {"param_groups": self.param_groups})
            for group in stamped:
                del group[STAMP]

    def __repr__(self) -> str:
        return repr(self.original_optimizer)

    # -- what Opacus's optimizers have ---------------------------------------------------------

    def attach_step_hook(self, fn: Callable[[Any], None] | None) -> None:
        """Call `fn` with the optimizer after each release, before the update; None for nothing."""
        self.step_hook = fn

    def signal_skip_step(self, do_skip: bool = True) -> NoReturn:
        """Refused: Opacus's queue of steps to skip can outlive the batch that it was meant for."""
        raise DesynchronizedError(
            "Opacus's BatchMemoryManager keeps a queue of steps to skip that can outlive its batch. Write:"
            " from anechoic.torch import BatchMemoryManager, which has the same arguments."
        )

    # torch.amp.GradScaler sets grad_scale on optimizers that say they take it
    _step_supports_amp_scaling = True

    def _scaled(self, value: Any) -> NoReturn:
        raise UnsupportedError(
            "GradScaler multiplies losses before gradients are clipped: use autocast with bfloat16 and no"
            " GradScaler (GradScaler(enabled=False) does nothing, and may stay)."
        )

    grad_scale = property(fset=_scaled)


#: The key under which optimizer.state_dict() holds the stamp.
STAMP = "anechoic"
_STAMPED = {"run", "fingerprint", "releases", "earlier"}


@dataclass(frozen=True)
class Earlier:
    """Releases on the same data that are not this run's: the first `releases` of `mechanism`, by `run`."""

    mechanism: Mechanism
    releases: int
    run: str = ""

    def listed(self) -> dict[str, Any]:
        """For a stamp."""
        return {"run": self.run, "fingerprint": self.mechanism.fingerprint, "releases": self.releases}


class History:
    """Earlier releases, whose privacy cost adds to that of a run of `mechanism`."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.earlier: list[Earlier] = []

    def charge(self, mechanism: Mechanism, releases: int | None = None, run: str = "") -> None:
        """Add the first `releases` releases of `mechanism`, all for None; those of one run count once."""
        count = mechanism.steps if releases is None else releases
        if not 0 <= count <= mechanism.steps:
            raise ValueError(f"releases={count} must lie between 0 and n={mechanism.steps}.")
        if not run:  # named by what it is, and how many of the kind are charged
            kind = f"charged {mechanism.fingerprint} {count} "
            run = kind + str(sum(one.run.startswith(kind) for one in self.earlier))
        same = [other for other in self.earlier if other.run == run]
        if not count or any(other.releases >= count for other in same):
            return
        compose(self.mechanism, leading(mechanism, count))  # refuses what does not compose
        self.earlier = [one for one in self.earlier if one not in same] + [Earlier(mechanism, count, run)]

    def charge_stamp(
        self, state: Mapping[str, Any], known: tuple[Mechanism, ...], releases: int | None = None
    ) -> None:
        """Add the runs that the stamp of an optimizer state names; see `PrivacyEngine.charge`."""
        stamp = stamp_of(state)
        if stamp is None:
            raise CheckpointError("this state is not of a private optimizer: charge a Mechanism instead.")
        covering = {one.fingerprint: one for one in (self.mechanism, *known)}
        for one in [*stamp["earlier"], stamp]:
            if one["fingerprint"] not in covering:
                raise MismatchError(
                    f"run {one['run'][:12]}… had a mechanism with fingerprint {one['fingerprint'][:12]}…,"
                    " which is not this run's: pass it too, engine.charge(state, mechanism)."
                )
        for one in self._missing(stamp["earlier"]):
            self.charge(covering[one["fingerprint"]], one["releases"], one["run"])
        count = None if releases is None else max(releases, stamp["releases"])
        self.charge(covering[stamp["fingerprint"]], count, stamp["run"])

    def stamp(self, state: dict[str, Any], *, run: str, releases: int) -> dict[str, Any]:
        """Return `state` with what it belongs to; no secret is in it.

        The first group holds it too: torch's optimizers drop keys of a state that they do not know, and keep
        those of groups, so an optimizer that was loaded before make_private still says where it comes from.
        """
        stamp = Earlier(self.mechanism, releases, run).listed()
        stamp["earlier"] = [one.listed() for one in self.earlier]
        if not state.get("param_groups"):
            return {**state, STAMP: stamp}
        first, *others = state["param_groups"]
        return {**state, "param_groups": [{**first, STAMP: stamp}, *others], STAMP: stamp}

    def admit(self, state: Mapping[str, Any], *, run: str, releases: int) -> dict[str, Any]:
        """Return `state` without its stamp, if the releases in it are counted here, or nothing is in it."""
        stamp = stamp_of(state)
        if stamp is None and statistics_in(state.get("state", {})) and not self.earlier:
            raise GuaranteeError(
                "this optimizer state holds statistics of gradients and does not say what was released for"
                " them. Where no private data went into it, load it into the plain optimizer, before"
                " make_private. Otherwise charge its mechanism first: engine.charge(mechanism)."
            )
        if stamp is None:
            return unstamped(state)
        if stamp["run"] == run and stamp["releases"] > releases:
            raise ReplayError(
                f"this optimizer state was saved after {stamp['releases']} releases of the run with this"
                f" noise key, and this engine stands at {releases}: it would use rows of noise again. Resume"
                " with engine.load_checkpoint; or take fresh keys, and engine.charge(state) first."
            )
        missing = [one for one in self._missing([*stamp["earlier"], stamp]) if one["run"] != run]
        if missing:
            raise ReplayError(
                f"this optimizer state belongs to run {missing[-1]['run'][:12]}…, whose"
                f" {missing[-1]['releases']} releases get_epsilon would forget. To go on with that run, use"
                " engine.save_checkpoint and engine.load_checkpoint beside the framework's own files. To go"
                " on as a new run that pays for both, call engine.charge(state) before."
            )
        return unstamped(state)

    def _missing(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of a stamp that are not charged here."""
        charged = {one.run: one.releases for one in self.earlier}
        return [one for one in listed if one["releases"] > charged.get(one["run"], 0)]

    def composition(self, releases: int) -> Composition:
        """Compose everything released, with the first `releases` of this run."""
        own = [Earlier(self.mechanism, releases)] if releases else []
        return compose(*(leading(one.mechanism, one.releases) for one in (*own, *self.earlier)))

    def epsilon(self, delta: float, releases: int) -> float:
        """Compute epsilon at `delta` of everything released, with the first `releases` of this run."""
        if not self.earlier:
            return self.mechanism.epsilon(delta, steps=releases)
        return self.composition(releases).epsilon(delta)

    def saved(self) -> list[dict[str, Any]]:
        """For a checkpoint."""
        return [one.listed() | {"mechanism": one.mechanism.to_json()} for one in self.earlier]

    def load(self, saved: list[dict[str, Any]]) -> list[Earlier]:
        """Return what `saved` returned, and what is charged here and not in it."""
        merged = History(self.mechanism)
        merged.earlier = [
            Earlier(Mechanism.from_json(one["mechanism"]), one["releases"], one["run"]) for one in saved
        ]
        for one in self.earlier:
            merged.charge(one.mechanism, one.releases, one.run)
        return merged.earlier


def leading(mechanism: Mechanism, releases: int) -> Mechanism:
    """A mechanism of the first `releases` releases: the leading block, or the whole."""
    if releases == mechanism.steps:
        return mechanism
    try:
        strategy, sampling = mechanism.strategy.truncate(releases), mechanism.sampling.truncate(releases)
        return replace(mechanism, strategy=strategy, sampling=sampling, accounting="deterministic")
    except (UnsupportedError, NotImplementedError):
        return mechanism


def statistics_in(state: Mapping[Any, Any]) -> int:
    """Count the tensors of an optimizer that steps made, and not its constructor, as Adagrad's does."""
    stepped = [one for one in state.values() if not isinstance(one, Mapping) or one.get("step", 1) != 0]
    return sum(isinstance(value, Tensor) and value.dim() > 0 for value in tree_leaves(stepped))


def stamp_of(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stamp of an optimizer state, or None."""
    found = [state.get(STAMP), *(group.get(STAMP) for group in state.get("param_groups", ()))]
    return next((one for one in found if isinstance(one, dict) and one.keys() >= _STAMPED), None)


def unstamped(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state alone."""
    plain = {key: value for key, value in state.items() if key != STAMP}
    if "param_groups" in plain:
        groups = plain["param_groups"]
        plain["param_groups"] = [{k: v for k, v in group.items() if k != STAMP} for group in groups]
    return plain

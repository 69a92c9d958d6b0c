"""What was released before this run, and how a framework's own checkpoint says so.

A framework saves the states of model and optimizer, not keys and ledger. The optimizer's state therefore
carries a stamp: which run it belongs to, and how many releases that had made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError, UnsupportedError
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.mechanism import Mechanism

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
        same = [other for other in self.earlier if run and other.run == run]
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
        """Those of a stamp that are not charged here; nameless ones are told apart by what they are."""
        named = {one.run: one.releases for one in self.earlier if one.run}
        nameless = [one.listed() for one in self.earlier if not one.run]
        missing = []
        for one in listed:
            if not one["run"] and one in nameless:
                nameless.remove(one)
            elif one["releases"] > named.get(one["run"], 0):
                missing.append(one)
        return missing

    def composition(self, releases: int) -> Composition:
        """Compose everything released, with the first `releases` of this run."""
        parts = [leading(one.mechanism, one.releases) for one in self.earlier]
        return compose(*([leading(self.mechanism, releases)] if releases else []), *parts)

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
            if one.run or one not in merged.earlier:
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

"""What was released before this run, and how a framework's own checkpoint says so.

A framework saves the states of model and optimizer, not keys and ledger. The optimizer's state therefore
carries a stamp: which run it belongs to, and how many releases that had made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from anechoic._validate import positive_int
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError, UnsupportedError
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.journal import read_journal

#: The key under which optimizer.state_dict() holds the stamp.
STAMP = "anechoic"
_STAMPED = {"run", "fingerprint", "releases", "journal", "earlier"}


@dataclass(frozen=True)
class Earlier:
    """Releases on the same data that are not this run's.

    Attributes:
        mechanism: what they were made with.
        releases: how many of its releases are counted, from the first.
        run: identity of the run that made them, or "".
    """

    mechanism: Mechanism
    releases: int
    run: str = ""

    @property
    def part(self) -> Mechanism:
        """What is composed."""
        return leading(self.mechanism, self.releases)

    def listed(self) -> dict[str, Any]:
        """For a stamp."""
        return {"run": self.run, "fingerprint": self.mechanism.fingerprint, "releases": self.releases}


class History:
    """Earlier releases, whose privacy cost adds to that of a run.

    Args:
        mechanism: of the run.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.earlier: list[Earlier] = []

    # -- charging ------------------------------------------------------------------------------

    def charge(self, mechanism: Mechanism, releases: int | None = None, run: str = "") -> None:
        """Add the first `releases` releases of `mechanism`, all for None; those of one run count once.

        Raises:
            MismatchError: where the guarantees do not compose (another unit or adjacency).
            ValueError: for more releases than the mechanism has.
        """
        count = mechanism.steps if releases is None else releases
        if not 0 <= count <= mechanism.steps:
            raise ValueError(f"releases={count} must lie between 0 and n={mechanism.steps}.")
        one = Earlier(mechanism, count, run)
        same = [other for other in self.earlier if run and other.run == run]
        if not count or any(other.releases >= count for other in same):
            return
        compose(self.mechanism, one.part)  # refuses what does not compose
        self.earlier = [other for other in self.earlier if other not in same] + [one]

    def charge_stamp(
        self, state: Mapping[str, Any], known: tuple[Mechanism, ...], releases: int | None = None
    ) -> None:
        """Add the runs that a stamped optimizer state belongs to.

        Where a run has a journal that can be read, its releases are counted; otherwise it may have made all
        of its mechanism's after the state was saved, and all are charged, unless the caller says how many.

        Args:
            state: what `optimizer.state_dict()` returned.
            known: mechanisms that the runs may have had, beside this run's.
            releases: of the run that saved the state, on the caller's word.

        Raises:
            CheckpointError: without a stamp.
            MismatchError: if a run's mechanism is unknown, or not the one of its journal.
        """
        stamp = stamp_of(state)
        if stamp is None:
            raise CheckpointError(
                "this optimizer state does not say what was released before it: it is not one of a private"
                " optimizer. Charge a Mechanism instead."
            )
        covering = {one.fingerprint: one for one in (self.mechanism, *known)}
        for one in [*stamp["earlier"], stamp]:
            if one["fingerprint"] not in covering:
                raise MismatchError(
                    f"run {one['run'][:12]}… had a mechanism with fingerprint {one['fingerprint'][:12]}…,"
                    " which is not this run's: pass it too, engine.charge(state, mechanism)."
                )
        for one in self._missing(stamp["earlier"]):
            self.charge(covering[one["fingerprint"]], one["releases"], one["run"])
        count = _journaled(stamp)
        if releases is not None:
            given = positive_int("releases", releases, minimum=0)
            count = max(given, int(stamp["releases"]), count or 0)
        self.charge(covering[stamp["fingerprint"]], count, stamp["run"])

    # -- stamps --------------------------------------------------------------------------------

    def stamp(self, state: dict[str, Any], *, run: str, releases: int, journal: str) -> dict[str, Any]:
        """`state` with what it belongs to; no secret is in it.

        The first group holds it too: torch's optimizers drop keys of a state that they do not know, and keep
        those of groups, so an optimizer that was loaded before make_private still says where it comes from.
        """
        earlier = [one.listed() for one in self.earlier]
        own = {"run": run, "fingerprint": self.mechanism.fingerprint, "releases": releases}
        stamp = {**own, "journal": journal, "earlier": earlier}
        if not state.get("param_groups"):
            return {**state, STAMP: stamp}
        first, *others = state["param_groups"]
        return {**state, "param_groups": [{**first, STAMP: stamp}, *others], STAMP: stamp}

    def admit(self, state: Mapping[str, Any], *, run: str, releases: int) -> dict[str, Any]:
        """`state` without its stamp, if the releases in it are counted here.

        Args:
            state: for the optimizer of this run.
            run, releases: of this run.

        Raises:
            ReplayError: if they are not.
            GuaranteeError: for a state without a stamp that holds something, where nothing is charged.
        """
        stamp = stamp_of(state)
        if stamp is None:
            self._check_unstamped(state)
            return unstamped(state)
        if stamp["run"] == run and stamp["releases"] > releases:
            raise ReplayError(
                f"this optimizer state was saved after {stamp['releases']} releases of the run with this"
                f" noise key, and this engine stands at {releases}: it would use rows of noise again. Resume"
                " with engine.load_checkpoint, which puts keys and count back; or take fresh keys, and"
                " engine.charge(state) first."
            )
        missing = [one for one in self._missing([*stamp["earlier"], stamp]) if one["run"] != run]
        if missing:
            raise ReplayError(
                f"this optimizer state belongs to run {missing[-1]['run'][:12]}…, which had made"
                f" {missing[-1]['releases']} releases of its own, and this engine has neither its keys nor"
                " its count: get_epsilon would forget them. To go on with that run, engine.save_checkpoint"
                " and engine.load_checkpoint are needed beside the framework's own files. To go on as a new"
                " run that pays for both, call engine.charge(state) before, with this optimizer state."
            )
        return unstamped(state)

    def _check_unstamped(self, state: Mapping[str, Any]) -> None:
        """Refuse what may come of releases that nobody counts: statistics of gradients, but no stamp."""
        kept = tree_leaves(dict(state.get("state", {})))
        if any(isinstance(value, Tensor) for value in kept) and not self.earlier:
            raise GuaranteeError(
                "this optimizer state holds statistics of gradients and does not say what was released for"
                " them: it is of an optimizer that was not private, or its stamp"
                f" ({STAMP!r}) was taken off, and get_epsilon would forget that run. Where no private data"
                " went into it, load it into the plain optimizer, before make_private. Otherwise charge the"
                " mechanism that it was made with first: engine.charge(mechanism)."
            )

    def _missing(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of a stamp that are not charged here; nameless ones are told apart by what they are."""
        named = {one.run: one.releases for one in self.earlier if one.run}
        nameless = [one.listed() for one in self.earlier if not one.run]
        missing = []
        for one in listed:
            if one["releases"] <= named.get(one["run"], 0):
                continue
            if not one["run"] and one in nameless:
                nameless.remove(one)
                continue
            missing.append(one)
        return missing

    # -- the guarantee -------------------------------------------------------------------------

    def composition(self, releases: int | None = None) -> Composition | None:
        """Everything released, with the first `releases` of this run (None: all); None for nothing."""
        parts = [one.part for one in self.earlier]
        if releases is None or releases == self.mechanism.steps:
            parts.append(self.mechanism)
        elif releases:
            parts.append(leading(self.mechanism, releases))
        return compose(*parts) if parts else None

    def epsilon(self, delta: float, releases: int) -> float:
        """Epsilon at `delta` of everything released, with the first `releases` of this run."""
        if not self.earlier:
            return self.mechanism.epsilon(delta, steps=releases)
        found = self.composition(releases)
        return 0.0 if found is None else found.epsilon(delta)

    # -- files ---------------------------------------------------------------------------------

    def saved(self) -> list[dict[str, Any]]:
        """For a checkpoint."""
        return [
            {"mechanism": one.mechanism.to_json(), "releases": one.releases, "run": one.run}
            for one in self.earlier
        ]

    def load(self, saved: list[dict[str, Any]]) -> list[Earlier]:
        """What `saved` returned, and what is charged here and not in it."""
        merged = History(self.mechanism)
        merged.earlier = [
            Earlier(Mechanism.from_json(one["mechanism"]), one["releases"], one["run"]) for one in saved
        ]
        for one in self.earlier:
            if one.run or one not in merged.earlier:
                merged.charge(one.mechanism, one.releases, one.run)
        return merged.earlier


def leading(mechanism: Mechanism, releases: int) -> Mechanism:
    """A mechanism that covers the first `releases` releases: the leading block, or the whole if none does."""
    if releases == mechanism.steps:
        return mechanism
    try:
        return replace(
            mechanism,
            strategy=mechanism.strategy.truncate(releases),
            sampling=mechanism.sampling.truncate(releases),
            accounting="deterministic",
        )
    except (UnsupportedError, NotImplementedError):
        return mechanism


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


def _journaled(stamped: Mapping[str, Any]) -> int | None:
    """Releases that the run's journal knows of, None where it cannot be read."""
    path = stamped.get("journal")
    if not path or not Path(path).exists():
        return None
    try:
        record = read_journal(path)
    except MismatchError:  # of an earlier version
        return None
    if record.identity == stamped["run"] and record.fingerprint != stamped["fingerprint"]:
        raise MismatchError(
            f"run {stamped['run'][:12]}… has a mechanism with fingerprint {stamped['fingerprint'][:12]}… by"
            f" this optimizer state, and one with {record.fingerprint[:12]}… by journal {path}: the state was"
            " edited. Charge the mechanism of the journal."
        )
    return max(record.end, int(stamped["releases"])) if record.identity == stamped["run"] else None

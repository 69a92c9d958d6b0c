"""Hyper-parameters chosen inside the guarantee: the best of a random number of whole runs."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from anechoic._validate import fraction, known_keywords, one_of, positive_float
from anechoic.accounting import Verified
from anechoic.accounting.loss_distributions import profile as profiles
from anechoic.accounting.search import least_noise
from anechoic.accounting.selection import selection_epsilon
from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.keys import checked_key, derive, new_key
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.mechanism import Mechanism
from anechoic.selection.repetitions import Repetitions
from anechoic.selection.state import SelectionFile, SelectionInMemory, as_score, plain_candidates
from anechoic.statement.formats import Format, as_signed, render
from anechoic.statement.statement import statement_of
from anechoic.statement.theorem import PROOFS

_TAIL = 1e-4  # part of delta that the profile of one run may leave at infinity
_LEAST_MU = 1e-6  # of bounds by moments, which have no digits below
_POINTS, _MANY = 26, 0.05  # deltas of an amplified run, up to this one by a common ratio

#: (candidate, mechanism, key of 32 bytes) -> (result, score).
Train = Callable[[Any, Mechanism, bytes], tuple[Any, float]]


class SelectedRun(NamedTuple):
    """Best run, which is released. All three are covered by the guarantee.

    Attributes:
        result, score: as `train` returned them.
        candidate: of this run.
    """

    result: Any
    candidate: Any
    score: float


@dataclass(frozen=True, repr=False)
class Selection:
    """A mechanism that is run a secret number of times, of which the best run is shown; made by `select`.

    Attributes:
        mechanism: of one run, which `train` is given.
        repetitions: the law of the number of runs.
        score_mechanism: what releases the score of a run; None where scores look at public data alone.
        delta: at which the guarantee is printed.

    Raises:
        UnsupportedError, MismatchError, ValueError: as `select` says.
    """

    mechanism: Mechanism
    repetitions: Repetitions
    score_mechanism: Mechanism | None
    delta: float

    def __post_init__(self) -> None:
        _check_parts(self.mechanism, self.score_mechanism)
        fraction("delta", self.delta)
        self.one_run  # noqa: B018 - refuses two units

    @cached_property
    def one_run(self) -> Composition:
        """What one run releases: the mechanism's releases, and those of its score."""
        return compose([each for each in (self.mechanism, self.score_mechanism) if each is not None])

    def epsilon(self, delta: float | None = None) -> float:
        """An epsilon such that the best run, its candidate and its score are (epsilon, delta)-DP, rounded up.

        It is inf where nothing up to 400 is shown. Where secret batches amplify one run it takes seconds.

        Args:
            delta: in (0, 1); None for the selection's own.
        """
        delta = self.delta if delta is None else fraction("delta", delta)
        if delta not in self._epsilons:
            found = selection_epsilon(self._profile(delta), self.repetitions.log_slope, delta)
            if not self.one_run.amplified:
                found = min(found, _by_moments(self.one_run.gdp(), self.repetitions, delta))
            self._epsilons[delta] = found
        return self._epsilons[delta]

    @cached_property
    def _epsilons(self) -> dict[float, float]:
        return {}

    def _profile(self, delta: float) -> profiles.Profile:
        """Bounds of one run, from far above `delta` to what can be left out next to it."""
        one, tail = self.one_run, delta * _TAIL / max(1.0, self.repetitions.mean)
        if not one.amplified:
            bound = profiles.gaussian_bound(one.gdp())
            return profiles.profile_of_bounds([bound], 2.0 * one.epsilon(delta), tail)
        deltas = [*np.geomspace(tail, _MANY, _POINTS).tolist(), *np.linspace(_MANY, 0.95, 8)[1:].tolist()]
        return profiles.profile_of_points((one.epsilon(each), each) for each in deltas)

    def run(
        self,
        train: Train,
        candidates: Sequence[Any],
        *,
        key: bytes | None = None,
        state: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> SelectedRun:
        """Train a secret number of times, each time a candidate drawn uniformly, and keep the best run.

        Nothing of the number of runs, or of the others than the best, is logged or returned; whoever sees how
        long this takes, what `train` writes, or the state, sees more than the guarantee covers. So does
        whoever sees an error of `train`, which ends the selection: with state it goes on where it was. Any
        other call is a selection of its own, and its epsilon adds to this one's.

        Args:
            train: (candidate, mechanism, key) -> (result, score). It releases by this mechanism alone, with
                noise (and batches) from keys that are derived from this key, and nothing that it computes
                depends on earlier runs: it begins with a new model, and called again it returns the same.
                The larger score is better, NaN the worst. It gets a copy of the candidate.
            candidates: at least one, chosen without looking at the private data; with state, plain data.
            key: 32 secret bytes for this selection alone, from which all is drawn; None for fresh ones.
            state: a file from which a killed selection goes on, with the same candidates and key: the number
                of runs and their candidates stay those first drawn, and no run that is stored is made again.
                It is as secret as the data. Results are then bytes, or plain data for JSON. After the last
                run it holds the best, which every further call returns.
            adopt: take a state file that was moved, copied or put back: see `StateFile`.

        Raises:
            ValueError: without candidates, or where `train` returns something else than result and score.
            UnsupportedError: for candidates or results that a state cannot hold.
            GuaranteeError: where a Poisson number of runs came out as 0: nothing may be shown then. Where
                `train` returns the object that it returned before, and where another process uses the state.
            MismatchError: for the state of another selection, or under another key.
            CheckpointError, ReplayError: for a state that is damaged, or was copied.
        """
        settings = _listed(candidates)
        held = self._held(settings, key, state, adopt)
        try:
            # the two mechanisms are named, so that one key in two selections is not one noise
            root = derive(held.key, f"selection {self._names}", size=32)
            if held.runs is None:
                held.begin(self.repetitions.draw(root))
            for place in range(held.done, held.runs or 0):
                held.note(*self._one(train, settings, root, place))
            best, result = held.best, held.result()
        finally:
            held.close()
        if best is None:
            raise GuaranteeError(
                "no run was made, as a Poisson number of runs may say: take a setting that looks at no data,"
                " or repetitions='geometric', which makes one at least. Another call is another selection,"
                " whose epsilon adds to this one's."
            )
        return SelectedRun(result, settings[best.place], best.score)

    def _one(self, train: Train, settings: Sequence[Any], root: bytes, place: int) -> tuple[int, float, Any]:
        """Run `place`: which candidate it drew, its score, its result."""
        # 256 bits: no candidate is preferred by more than 2^-190
        chosen = int.from_bytes(derive(root, "selection candidate", place, size=32), "little") % len(settings)
        own = derive(root, "selection run", place, size=32)
        # a candidate that `train` changes would tell later runs of this one
        found = train(copy.deepcopy(settings[chosen]), self.mechanism, own)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(
                f"train returned a {type(found).__name__}, and must return (result, score): a tuple of two."
            )
        return chosen, as_score(found[1]), found[0]

    @property
    def _names(self) -> str:
        """Fingerprints of the mechanisms of one run."""
        parts = (self.mechanism, self.score_mechanism)
        return " ".join("none" if part is None else part.fingerprint for part in parts)

    def _held(
        self, settings: Sequence[Any], key: bytes | None, state: str | os.PathLike[str] | None, adopt: bool
    ) -> SelectionInMemory | SelectionFile:
        if state is None:
            return SelectionInMemory(new_key() if key is None else checked_key(key))
        identity = {
            "mechanism": self.mechanism.fingerprint,
            "score_mechanism": None if (score := self.score_mechanism) is None else score.fingerprint,
            "repetitions": {"mean": self.repetitions.mean, "shape": self.repetitions.shape},
            "candidates": plain_candidates(settings),
        }
        return SelectionFile(state, identity=json.dumps(identity), key=key, adopt=adopt)

    def report(
        self, format: Format = "text", *, data: str = "", model: str = "", proofs: str = PROOFS
    ) -> str:
        """The privacy statement, for a reviewer: see `Mechanism.report`."""
        return render(statement_of(self).about(data=data, model=model), format, out=None, proofs=proofs)

    def __str__(self) -> str:
        return as_signed(statement_of(self))

    def __repr__(self) -> str:
        return f"Selection({self.mechanism!r}, {self.repetitions})"


def _check_parts(*parts: Mechanism | None) -> None:
    """Refuse what is no mechanism of a deterministic guarantee.

    Raises:
        UnsupportedError: for such a part.
    """
    for part in parts:
        if not isinstance(part, Mechanism | EndlessMechanism | None):
            raise UnsupportedError(
                f"mechanism is a {type(part).__name__}: give a Mechanism (calibrate(…), plan.mechanism)."
            )
        if part is not None and (not isinstance(part, Mechanism) or isinstance(part.accounting, Verified)):
            raise UnsupportedError(
                f"{part!r} is not a Mechanism with a deterministic guarantee, which selection is proved for"
                " here: calibrate one with a horizon and without accounting=Verified(…), or count all runs:"
                " compose(mechanism, times=k)."
            )


def _listed(candidates: Sequence[Any]) -> tuple[Any, ...]:
    """The candidates, which stay what they are from here on.

    Raises:
        ValueError: where there are none, or no order of them.
    """
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Sequence | np.ndarray):
        raise ValueError(
            f"candidates is a {type(candidates).__name__}: give a list of settings, which has an order."
        )
    if not len(candidates):
        raise ValueError("candidates is empty: give at least one setting to train with.")
    return tuple(candidates)


def _by_moments(mu: float, repetitions: Repetitions, delta: float) -> float:
    """The bound of Papernot and Steinke, which is less where a Poisson law has hundreds of runs."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    if repetitions.shape != math.inf or repetitions.mean < 1.0:  # it is larger there, by a test; or unknown
        return math.inf
    accountant = RdpAccountant(orders=[*np.linspace(1.05, 11.0, 100), *np.geomspace(11.5, 1e5, 150)])
    one = dp_event.GaussianDpEvent(1.0 / max(mu, _LEAST_MU))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(one, repetitions.mean, math.inf))
    return float(accountant.get_epsilon(delta)) * (1.0 + 1e-9)


@known_keywords
def select(
    mechanism: Mechanism,
    *,
    mean: float,
    score_on: Literal["public", "private"],
    repetitions: Literal["geometric", "logarithmic", "poisson"] = "geometric",
    score_mechanism: Mechanism | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Selection:
    """Choose hyper-parameters inside the guarantee: the best of a random number of whole runs.

    Args:
        mechanism: of one run; all candidates train with it.
        mean: runs in the mean, above 1 (Poisson: above 0).
        score_on: what scores look at: "public" data alone, or "private" data, by `score_mechanism`.
        repetitions: the law of the number of runs.
        score_mechanism: its releases give the score of one run; with score_on="private" alone.
        epsilon: of the whole selection: the mechanism's noise is made the least that gives it. None for the
            noise that it has.
        delta: in (0, 1); None for the mechanism's own.

    Raises:
        ValueError: for an argument out of range, a private score without mechanism, or an epsilon that no
            noise gives, as where the score alone uses it up.
        MismatchError: if the two mechanisms protect different units.
        UnsupportedError: for a mechanism whose guarantee is verified by samples.
        GuaranteeError: where no epsilon up to 400 is shown, and none is asked for.

    References:
        Papernot and Steinke (arXiv 2110.03620); docs/proofs/budget.md#selection.
    """
    one_of("score_on", score_on, ("public", "private"))
    if (score_on == "private") != (score_mechanism is not None):
        raise ValueError(
            f"score_on={score_on!r} with score_mechanism={score_mechanism!r}: a private score needs the"
            " mechanism that releases it, and a public one has none."
        )
    _check_parts(mechanism, score_mechanism)
    law = Repetitions.named(repetitions, mean)
    delta = mechanism.delta if delta is None else fraction("delta", delta)

    def at(std: float) -> Selection:
        return Selection(replace(mechanism, noise_std=std, delta=delta), law, score_mechanism, delta)

    found = at(mechanism.noise_std)
    if epsilon is None:
        if found.epsilon() == math.inf:
            raise GuaranteeError(
                "no epsilon up to 400 is shown for the best of runs of"
                f" epsilon={found.one_run.epsilon(delta):g} at delta={delta:g}, {law}: ask for an epsilon,"
                " which adds noise; take fewer runs; a delta above 1e-14 times their number, below which"
                " digits do not suffice; or repetitions='geometric', which costs less than Poisson for many."
            )
        return found
    epsilon = positive_float("epsilon", epsilon)
    if at(1e9 * mechanism.noise_std).epsilon() > epsilon:
        used = "is used up by the score alone: give score_mechanism more noise, a larger epsilon, or"
        beyond = f"cannot be shown at delta={delta:g}, whatever the noise: give a larger delta, or"
        raise ValueError(f"epsilon={epsilon} {beyond if score_mechanism is None else used} fewer runs.")
    # three times the noise of one run is about what ten of them cost
    guess = 3.0 * mechanism.noise_std * max(mechanism.epsilon(delta) / epsilon, 1e-3)
    return at(least_noise(lambda std: at(std).epsilon(), epsilon, guess, 1e-3))

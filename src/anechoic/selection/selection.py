"""Hyper-parameters chosen inside the guarantee: the best of a random number of whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from anechoic._validate import fraction, one_of, positive_float
from anechoic.accounting.laws.profile import gaussian_law, profile_of_laws
from anechoic.accounting.search import least_noise
from anechoic.accounting.selection import selection_epsilon
from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.keys import checked_key, derive, new_key
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.mechanism import Mechanism
from anechoic.selection.repetitions import Repetitions
from anechoic.statement.formats import Format, render
from anechoic.statement.statement import statement_of

_TAIL = 1e-4  # part of delta that the profile of one run may leave at infinity

#: (candidate, mechanism, key of 32 bytes) -> (result, score).
Train = Callable[[Any, Mechanism, bytes], tuple[Any, float]]


class Chosen(NamedTuple):
    """The best run: what is released. All three are covered by the guarantee.

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
    """

    mechanism: Mechanism
    repetitions: Repetitions
    score_mechanism: Mechanism | None
    delta: float

    @cached_property
    def one_run(self) -> Composition:
        """What one run releases: the mechanism's releases, and those of its score."""
        return compose([each for each in (self.mechanism, self.score_mechanism) if each is not None])

    def epsilon(self, delta: float | None = None) -> float:
        """An epsilon such that the best run, its candidate and its score are (epsilon, delta)-DP, rounded up.

        The least of what is proved; it is inf where nothing up to 400 is shown.

        Args:
            delta: in (0, 1); None for the selection's own.
        """
        delta = self.delta if delta is None else fraction("delta", delta)
        one = self.one_run
        tail = delta * _TAIL / max(1.0, self.repetitions.mean)
        profile = profile_of_laws([gaussian_law(one.gdp())], 2.0 * one.epsilon(delta), tail)
        found = selection_epsilon(profile, self.repetitions.log_slope, delta)
        return min(found, _by_moments(one.gdp(), self.repetitions, delta))

    def run(self, train: Train, candidates: Sequence[Any], *, key: bytes | None = None) -> Chosen:
        """Train a secret number of times, each time a candidate drawn uniformly, and keep the best run.

        Nothing of the number of runs, or of the others than the best, is logged or returned; whoever sees how
        long this takes, or what `train` writes, sees more than the guarantee covers.

        Args:
            train: (candidate, mechanism, key) -> (result, score). It releases by this mechanism alone, with
                noise (and batches) from keys that are derived from this key, and nothing that it computes
                depends on earlier runs. The larger score is better, NaN the worst.
            candidates: at least one, chosen without looking at the private data.
            key: 32 secret bytes for this selection alone, from which all is drawn; None for fresh ones.

        Raises:
            ValueError: without candidates.
            GuaranteeError: where a Poisson number of runs came out as 0: nothing may be shown then.
        """
        if not len(candidates):
            raise ValueError("candidates is empty: give at least one setting to train with.")
        key = new_key() if key is None else checked_key(key)
        best: Chosen | None = None
        for place in range(self.repetitions.draw(derive(key, "selection", size=32))):
            # 256 bits: no candidate is preferred by more than 2^-190
            bits = derive(key, "selection candidate", place, size=32)
            candidate = candidates[int.from_bytes(bits, "little") % len(candidates)]
            own = derive(key, "selection run", place, size=32)
            result, score = train(candidate, self.mechanism, own)
            score = -math.inf if math.isnan(score) else float(score)
            if best is None or score > best.score:
                best = Chosen(result, candidate, score)
        if best is None:
            raise GuaranteeError(
                "no run was made, as a Poisson number of runs may say: take a setting that looks at no data,"
                " or repetitions='geometric', which makes one at least. Another call is another selection,"
                " whose epsilon adds to this one's."
            )
        return best

    def report(self, format: Format = "text", *, proofs: str = "docs/proofs") -> str:
        """The privacy statement, for a reviewer: see `Mechanism.report`."""
        return render(statement_of(self), format, out=None, proofs=proofs)

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"Selection({self.mechanism!r}, {self.repetitions})"


def _by_moments(mu: float, repetitions: Repetitions, delta: float) -> float:
    """The bound of Papernot and Steinke, which is less where a Poisson law has hundreds of runs."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    if repetitions.shape != math.inf:  # it is larger there, by a test
        return math.inf
    accountant = RdpAccountant(orders=[*np.linspace(1.05, 11.0, 100), *np.geomspace(11.5, 1e5, 150)])
    one = dp_event.GaussianDpEvent(1.0 / mu)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(one, repetitions.mean, math.inf))
    return float(accountant.get_epsilon(delta)) * (1.0 + 1e-9)


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
        ValueError: for an argument out of range, a private score without mechanism, or an epsilon that the
            score alone uses up.
        MismatchError: if the two mechanisms protect different units.
        UnsupportedError: for a mechanism that secret batches amplify.

    References:
        Papernot and Steinke (arXiv 2110.03620); docs/proofs/selection.md.
    """
    one_of("score_on", score_on, ("public", "private"))
    if (score_on == "private") != (score_mechanism is not None):
        raise ValueError(
            f"score_on={score_on!r} with score_mechanism={score_mechanism!r}: a private score needs the"
            " mechanism that releases it, and a public one has none."
        )
    for part in (mechanism, score_mechanism):
        if part is not None and (not isinstance(part, Mechanism) or part.amplified):
            raise UnsupportedError(
                f"{part!r} is not an unamplified Mechanism, which selection is proved for here: calibrate one"
                " under FixedOrder or External sampling, or count all runs: compose(mechanism, times=k)."
            )
    law = Repetitions.named(repetitions, mean)
    delta = mechanism.delta if delta is None else fraction("delta", delta)

    def at(std: float) -> Selection:
        return Selection(replace(mechanism, noise_std=std, delta=delta), law, score_mechanism, delta)

    found = at(mechanism.noise_std)
    found.one_run  # noqa: B018 - refuses two units
    if epsilon is None:
        return found
    epsilon = positive_float("epsilon", epsilon)
    if at(1e9 * mechanism.noise_std).epsilon() > epsilon:
        raise ValueError(
            f"epsilon={epsilon} is used up by the score alone: give score_mechanism more noise, a larger"
            " epsilon, or fewer runs."
        )
    # three times the noise of one run is about what ten of them cost
    guess = 3.0 * mechanism.noise_std * mechanism.epsilon(delta) / epsilon
    return at(least_noise(lambda std: at(std).epsilon(), epsilon, guess, 1e-3))

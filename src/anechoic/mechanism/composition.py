"""The guarantee of several mechanisms that are run on the same data.

    both = anechoic.compose(pretraining, finetuning)
    runs = anechoic.compose(mechanism, times=8)          # eight settings of a hyper-parameter, all released
    print(runs.epsilon(1e-6))

A strategy that is restarted within one run (`strategies.Restarted`) is one mechanism, not a composition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from anechoic._validate import fraction, positive_int
from anechoic.accounting import Verified, gaussian_epsilon
from anechoic.accounting.accountant import Accountant
from anechoic.accounting.loss_distributions.composition import composed_epsilon
from anechoic.accounting.loss_distributions.sampled_gaussian import MOST_CELLS, gaussian_pld, log_tail
from anechoic.accounting.terms import Term
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.has_guarantee import HasGuarantee
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.rounding.drift import DRIFT, before_drift

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Part = Mechanism | EndlessMechanism

_GRID = 3300  # widths of the grid of privacy losses to the epsilon that is to be found
_FINEST, _COARSEST = 1e-5, 10.0
_GAUSSIAN_REACH = 20.0  # about the length of the losses of a Gaussian that are kept, over mu
_REFINED = 4  # times that the grid is made finer, as long as epsilon falls


def compose(
    *mechanisms: Part | Composition | Iterable[Part | Composition], times: int = 1, disjoint: bool = False
) -> Composition:
    """Return the guarantee of several mechanisms together, for a unit whose data all of them may use.

    Adaptive: a mechanism may be fed by what the earlier ones released. Which mechanisms there are, and how
    many, must be fixed before the first release.

    Args:
        mechanisms: `Mechanism`s and `EndlessMechanism`s; a `Composition` counts as its parts.
        times: how often all of them are run, >= 1.
        disjoint: the units of one mechanism take part in no other one. This is a promise of whoever splits
            the data, before anything is released and not depending on it. The guarantee is that of the
            weakest part.

    Raises:
        ValueError: for no mechanism, or something else than one.
        MismatchError: for two that protect different units, or under different adjacency.
    """
    parts: list[tuple[Part, int]] = []
    for item in mechanisms:
        for one in item if isinstance(item, Iterable) else [item]:
            if isinstance(one, Composition):
                if one.disjoint != disjoint and one.runs > 1:
                    raise ValueError(
                        "a composition of disjoint mechanisms cannot be a part of one of mechanisms on the"
                        " same data, nor the other way around: compose the mechanisms that one unit takes"
                        " part in, for each group of units, and take the largest epsilon."
                    )
                parts.extend(one.parts)
            else:
                parts.append((one, 1))
    times = positive_int("times", times)
    if disjoint and times > 1:
        raise ValueError(
            f"times={times} with disjoint=True: a unit would take part in every repetition. Compose the"
            " mechanisms that one unit takes part in, for each group of units, and take the largest epsilon."
        )
    return Composition(tuple((part, count * times) for part, count in parts), disjoint)


@dataclass(frozen=True, repr=False)
class Composition(HasGuarantee):
    """Several mechanisms and how often each is run; make one with `compose`.

    Attributes:
        parts: (mechanism, count) pairs, each mechanism once, in the order of their fingerprints.
        disjoint: whether no unit takes part in more than one of the runs.

    Raises:
        ValueError, MismatchError: as `compose` says.
    """

    parts: tuple[tuple[Part, int], ...]
    disjoint: bool = False

    def __post_init__(self) -> None:
        counts: dict[str, tuple[Part, int]] = {}
        for part, count in self.parts:
            if not isinstance(part, (Mechanism, EndlessMechanism)):
                raise ValueError(f"{part!r} cannot be composed: give Mechanisms, of a plan plan.mechanism.")
            before = counts.get(part.fingerprint, (part, 0))[1]
            counts[part.fingerprint] = (part, before + positive_int("count", count))
        if not counts:
            raise ValueError("compose() needs at least one mechanism: nothing was given.")
        ordered = tuple(counts[name] for name in sorted(counts))
        for name in ("adjacency", "unit"):
            values = {getattr(part, name): part for part, _ in ordered}
            if len(values) > 1:
                (one, first), (other, second) = list(values.items())[:2]
                raise MismatchError(
                    f"{name}={one!r} of {first.fingerprint[:12]}… and {name}={other!r} of"
                    f" {second.fingerprint[:12]}… cannot be composed: a guarantee protects one {name}."
                    " Calibrate all mechanisms for the same."
                )
        object.__setattr__(self, "parts", ordered)

    # -- what is composed ----------------------------------------------------------------------

    @property
    def adjacency(self) -> str:
        """That of every part."""
        return self.parts[0][0].adjacency

    @property
    def unit(self) -> str:
        """What every part protects."""
        return self.parts[0][0].unit

    @property
    def delta(self) -> float:
        """The largest of the parts' own, at which the guarantee is printed."""
        return max(part.delta for part, _ in self.parts)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(count for _, count in self.parts)

    @property
    def amplified(self) -> bool:
        """Whether (epsilon, delta) uses the secrecy of the batches of a part."""
        return any(_amplified(part) for part, _ in self.parts)

    # -- the guarantee -------------------------------------------------------------------------

    def gdp(self) -> float:
        """Return mu such that all runs together are mu-GDP: $sqrt(sum_i mu_i^2)$, without amplification."""
        if self.disjoint:
            return max(part.gdp() for part, _ in self.parts)
        return math.sqrt(math.fsum(count * part.gdp() ** 2 for part, count in self.parts)) * (1 + 1e-15)

    def epsilon(self, delta: float | None = None) -> float:
        """Return an epsilon such that all runs together are (epsilon, delta)-DP, rounded up.

        Args:
            delta: in (0, 1); None for `delta` of the composition.
        """
        delta = self.delta if delta is None else fraction("delta", delta)
        if delta not in self._epsilons:
            self._epsilons[delta] = float(self._epsilon(delta))
        return self._epsilons[delta]

    @cached_property
    def _epsilons(self) -> dict[float, float]:
        return {}

    def _epsilon(self, delta: float) -> float:
        if self.disjoint or self.runs == 1:
            return max(part.epsilon(delta) for part, _ in self.parts)
        unsampled = gaussian_epsilon(delta, self.gdp())
        if not self.amplified:
            return unsampled
        failure = math.fsum(_failure(part) for part, _ in self.parts)
        if failure >= delta:  # nothing is left: what was verified is not used
            failure = 0.0
        share = (delta - failure) / self.runs
        terms = [
            (*_term(part, share, failure > 0.0), count) for part, count in self.parts if _amplified(part)
        ]
        gaussians = [(part, count) for part, count in self.parts if not _amplified(part)]
        mu = math.sqrt(math.fsum(count * part.gdp() ** 2 for part, count in gaussians)) * (1 + 1e-15)
        # the sum of the single epsilons, at equal parts of delta
        basic = math.fsum((term.epsilon + excess) * count for term, excess, count in terms)
        if gaussians:
            basic += gaussian_epsilon(share * sum(count for _, count in gaussians), mu)
        known = min(unsampled, basic * (1 + 1e-12))
        if known == 0.0:
            return known
        # the finest grid on which every part can be held
        reaches = [mu * (mu + _GAUSSIAN_REACH), *(term.reach for term, _, _ in terms)]
        finest = max(_FINEST, max(reaches) / MOST_CELLS)
        if finest > _COARSEST:  # next to no noise
            return known
        drifting = sum(count for part, count in self.parts if _amplified(part) and part.drift > 0.0)
        inner, excess = before_drift(delta - failure, DRIFT, drifting)
        for _ in range(_REFINED):
            width = max(min(known / _GRID, _COARSEST), finest)
            pairs = [(pair, times * count) for term, _, count in terms for pair, times in [term.pair(width)]]
            if gaussians:
                pairs.append((gaussian_pld(mu, width, log_tail(share, 1)), 1))
            found = composed_epsilon(pairs, inner) + excess
            before, known = known, min(known, found)
            if known > 0.7 * before or width == finest:
                break
        return known

    def dp_event(self) -> DpEvent:
        """Return all runs as an event of `dp_accounting`; see `Mechanism.dp_event`.

        Raises:
            UnsupportedError: where a part has none, or the runs are of disjoint units.
        """
        from dp_accounting import dp_event

        if self.disjoint:
            raise UnsupportedError("dp_accounting has no event for runs on disjoint units: take each part's.")
        events = [dp_event.SelfComposedDpEvent(part.dp_event(), count) for part, count in self.parts]
        return dp_event.ComposedDpEvent(events)

    # -- for people ----------------------------------------------------------------------------

    def describe(self) -> str:
        """Say in one line how many runs of which mechanisms."""
        listed = ", ".join(f"{count} x {part.fingerprint[:12]}…" for part, count in self.parts)
        kind = "of disjoint units" if self.disjoint else "on the same units"
        return f"composition of {self.runs} run{'s' * (self.runs > 1)} {kind}: {listed}"

    def __repr__(self) -> str:
        return f"Composition({self.describe()})"

    def notion(self) -> str:
        """Name the theorem, and how it is evaluated."""
        if self.disjoint:
            return "parallel composition: the largest of the parts' epsilons"
        if not self.amplified:
            return "composition of Gaussian mechanisms, mu = sqrt(sum of mu_i^2), exact"
        text = (
            "adaptive composition of dominating pairs, each direction apart, as pessimistic privacy loss"
            " distributions; never above the sum of the parts' epsilons"
        )
        failure = math.fsum(_failure(part) for part, _ in self.parts)
        if failure > 0.0:
            text += (
                "; confidence bounds on Monte Carlo samples fail together with probability at most"
                f" {failure!r}, which is a part of delta"
            )
        return text

    def assumption(self) -> str:
        """Say what whoever runs the parts must keep."""
        if self.disjoint:
            return (
                f"no {self.unit} takes part in more than one of the runs; the split was made before the first"
                " release"
            )
        return (
            "these runs and no others use the data; which mechanisms there are was fixed before the first"
            " release; every run has noise and batches from keys of its own"
        )


def _accountant(part: Part) -> Accountant | None:
    """What knows about the amplification of a part; None where its sampling hides nothing."""
    accountant = part.accountant
    return accountant if accountant is not None and accountant.hides else None


def _amplified(part: Part) -> bool:
    return _accountant(part) is not None


def _term(part: Part, share: float, verified: bool) -> tuple[Term, float]:
    """An amplified part at its part of delta, and what the drift of its noise adds to its epsilon alone."""
    accountant = _accountant(part)
    if accountant is None:
        raise TypeError(f"{part!r} is not amplified.")
    inner, excess = before_drift(share, part.drift)
    return accountant.term(inner, part.noise_std, part.gdp(), verified=verified), excess


def _failure(part: Part) -> float:
    """Probability with which a confidence bound on a part may fail, however often the part is run."""
    return part.accounting.failure if isinstance(part.accounting, Verified) else 0.0

"""Cost of a run, and whether an account covers it: sums are exact, comparisons are rounded up.

An account has limits that are fixed before anything is spent: one for the sum of mu^2 of runs that count as
Gaussian mechanisms, and, where the operator sets it apart, one (epsilon, delta) for runs that count by their
own (epsilon, delta). Together they are a privacy filter: what is run next may depend on everything that was
released before (docs/proofs/budget.md). Composing the exact privacy losses of whatever came along is no
filter: see there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from anechoic._validate import at_least, fraction, one_of, positive_float
from anechoic.accounting import gaussian_epsilon
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.mechanism.composition import Composition
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.mechanism import Mechanism
from anechoic.statement.rounding import shortened


@dataclass(frozen=True)
class WithFailureProbability:
    """Mechanism that is not amplified, up to an event of probability `besides`: see docs/proofs/budget.md."""

    mechanism: Mechanism
    besides: float

    @property
    def delta(self) -> float:
        """Of all, rounded up."""
        return _up(Fraction(self.mechanism.delta) + Fraction(self.besides))

    @property
    def unit(self) -> str:
        return self.mechanism.unit

    @property
    def adjacency(self) -> str:
        return self.mechanism.adjacency

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the mechanism; `besides` stands in the text of this object."""
        return self.mechanism.fingerprint

    def epsilon(self) -> float:
        """Return epsilon at `delta`."""
        return self.mechanism.epsilon()


#: What can be charged: a guarantee, or an (epsilon, delta) from elsewhere, in the account's own unit.
Chargeable = Mechanism | EndlessMechanism | Composition | WithFailureProbability | tuple[float, float]

_LARGEST = 1e9  # of what can be charged at all
_SAME = 1e-6  # relative difference up to which two charges may be those of one run, planned twice


@dataclass(frozen=True)
class Cost:
    """Privacy cost of a run: mu, or (epsilon, delta), or mu and delta for `WithFailureProbability`."""

    mu: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def like(self, other: Cost) -> bool:
        """Whether it may be that of the same run."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(math.isclose(one, two, rel_tol=_SAME) for one, two in both)

    def __str__(self) -> str:
        if self.mu:
            return f"mu {self.mu!r}, delta {self.delta!r}" if self.delta else f"mu {self.mu!r}"
        return f"epsilon {self.epsilon!r}, delta {self.delta!r}"


def charges_of(what: Chargeable) -> list[Cost]:
    """Return valid costs of it, from which one is chosen."""
    if isinstance(what, tuple):
        if len(what) != 2:
            raise ValueError(f"{what!r} must be an (epsilon, delta), or a Mechanism.")
        epsilon, delta = at_least("epsilon", what[0]), at_least("delta", what[1])
        if delta >= 1.0 or epsilon == delta == 0.0:
            raise ValueError(f"{what!r} is no (epsilon, delta) to charge: delta is below 1, and not both 0.")
        return [Cost(epsilon=epsilon, delta=delta)]
    if isinstance(what, WithFailureProbability):
        whole = Cost(epsilon=what.epsilon(), delta=what.delta)
        return [whole, Cost(mu=what.mechanism.gdp(), delta=what.besides)]
    if not isinstance(what, Mechanism | EndlessMechanism | Composition):
        raise ValueError(
            f"{type(what).__name__} cannot be charged: give a mechanism, what compose() returned, or the"
            " (epsilon, delta) of something else. A Stream and a PartitionSelectionHistogram take book=."
        )
    gaussian = [Cost(mu=what.gdp())]
    return [*gaussian, Cost(epsilon=what.epsilon(), delta=what.delta)] if what.amplified else gaussian


@dataclass(frozen=True)
class Grant:
    """Budget that the operator grants on one data set; see `BudgetBook.grant`.

    What is not set apart by `amplified` is for Gaussian mechanisms.
    """

    data: str
    epsilon: float
    delta: float
    unit: str = "example"
    adjacency: str = "zero_out"
    amplified: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("data", "unit"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise ValueError(f"{name}={getattr(self, name)!r} must be a name.")
        one_of("adjacency", self.adjacency, ("zero_out", "replace_one", "add_or_remove"))
        object.__setattr__(self, "epsilon", positive_float("epsilon", self.epsilon))
        object.__setattr__(self, "delta", fraction("delta", self.delta))
        apart = tuple(at_least("amplified", each) for each in self.amplified)
        if len(apart) != 2 or apart[0] > self.epsilon or apart[1] > self.delta:
            raise ValueError(
                f"amplified={self.amplified!r} must be an (epsilon, delta) within epsilon={self.epsilon},"
                f" delta={self.delta}, of which it is a part."
            )
        object.__setattr__(self, "amplified", apart)

    @property
    def gaussian(self) -> tuple[float, float]:
        """(epsilon, delta) of what is counted as Gaussian, each rounded down."""
        epsilon, delta = map(Fraction, self.amplified)
        return _down(Fraction(self.epsilon) - epsilon), _down(Fraction(self.delta) - delta)

    def covers(self, squared: Fraction) -> bool:
        """Whether Gaussian mechanisms whose mu^2 sum to `squared` are within `gaussian`."""
        epsilon, delta = self.gaussian
        return not squared or (delta > 0.0 and gaussian_epsilon(delta, root_up(squared)) <= epsilon)

    def check_raises(self, before: Grant) -> None:
        """Refuse what is no more than `before` in every limit: the filter's limits are fixed, or grow.

        Raises:
            GuaranteeError, MismatchError: saying what would shrink or change.
        """
        if (self.unit, self.adjacency) != (before.unit, before.adjacency):
            raise MismatchError(
                f"{self.data!r} has an account per {before.unit}, under {before.adjacency!r}: budgets of"
                f" unit={self.unit!r}, adjacency={self.adjacency!r} do not add up with it. Give the other"
                " view of the data a name of its own; what is spent there is not counted here."
            )
        for name in ("gaussian", "amplified"):
            old, new = getattr(before, name), getattr(self, name)
            if new[0] < old[0] or new[1] < old[1]:
                raise GuaranteeError(
                    f"the {name} part of {self.data!r} is {old} and would become {new}: limits that were"
                    " granted may grow, and never shrink: where amplified= grows, raise the whole too."
                )


@dataclass
class BookedRun:
    """One run in the book, with the fingerprint of its mechanism, or "" for something else.

    Its status is "reserved", "spent" or "cancelled"; the first two are charged.
    """

    token: str
    run: str
    who: str
    what: str
    time: str
    charge: Cost
    fingerprint: str
    status: str = "reserved"

    def __str__(self) -> str:
        said = f"{self.who}: {self.charge}; run {self.run[:32]}, {self.what}"
        return f"  {self.token}  {self.time}  {self.status:<9}  {said}"


@dataclass
class Account:
    """Account of one data set: its grant and its runs."""

    grant: Grant
    runs: dict[str, BookedRun] = field(default_factory=dict)

    @property
    def live(self) -> list[BookedRun]:
        """Runs that are charged."""
        return [one for one in self.runs.values() if one.status != "cancelled"]

    def spent(self) -> tuple[Fraction, Fraction, Fraction]:
        """Sums of mu^2, epsilon and delta, exactly."""
        charges, none = [one.charge for one in self.live], Fraction(0)
        squared = sum((Fraction(one.mu) ** 2 for one in charges), none)
        apart = [sum((Fraction(getattr(one, of)) for one in charges), none) for of in ("epsilon", "delta")]
        return squared, apart[0], apart[1]

    def fits(self, charge: Cost) -> bool:
        """Whether the account covers it besides all that is charged."""
        if max(charge.mu, charge.epsilon) > _LARGEST:
            return False
        squared, epsilon, delta = self.spent()
        if charge.mu and not self.grant.covers(squared + Fraction(charge.mu) ** 2):
            return False
        apart = self.grant.amplified
        return epsilon + Fraction(charge.epsilon) <= apart[0] and delta + Fraction(charge.delta) <= apart[1]

    def choose(self, what: Chargeable) -> Cost:
        """Choose its cost: its own (epsilon, delta) where that fits, for which a part is set apart.

        Raises:
            MismatchError: if it protects another unit, or under another adjacency.
            GuaranteeError: if no way fits.
        """
        ways = charges_of(what)
        if not isinstance(what, tuple):
            both = {name: (getattr(what, name), getattr(self.grant, name)) for name in ("unit", "adjacency")}
            other = [f"{name}={ours!r}" for name, (its, ours) in both.items() if its != ours]
            if other:
                raise MismatchError(
                    f"this run protects one {what.unit} under {what.adjacency!r}, and the account of"
                    f" {self.grant.data!r} one {self.grant.unit} under {self.grant.adjacency!r}: they do not"
                    f" add up. If that is what this run protects, give it {', '.join(other)}; else grant its"
                    " view of the data a name of its own."
                )
        fitting = [way for way in ways if self.fits(way)]
        if not fitting:
            said = "; or ".join(map(self._said, ways))
            raise GuaranteeError(f"the budget does not cover this run ({said}): {self}{self._remedy(ways)}")
        return fitting[-1]

    def _remedy(self, ways: list[Cost]) -> str:
        """Return the least grant that covers a run too, to be typed as it is; "" if there is none."""
        (squared, *spent), found = self.spent(), list[Grant]()
        for way in ways:
            epsilon, delta = self.grant.gaussian
            if 0.0 < way.mu <= _LARGEST:
                delta = delta or self.grant.delta
                mu = root_up(squared + Fraction(way.mu) ** 2)
                epsilon = max(epsilon, shortened(gaussian_epsilon(delta, mu)))
            asked = zip(self.grant.amplified, spent, (way.epsilon, way.delta), strict=True)
            apart = [0.0 + shortened(_up(max(Fraction(a), u + Fraction(more)))) for a, u, more in asked]
            parts = zip((epsilon, delta), apart, strict=True)
            epsilon, delta = (shortened(_up(Fraction(rest) + Fraction(part))) for rest, part in parts)
            if epsilon < math.inf and delta < 1.0:
                would = replace(self.grant, epsilon=epsilon, delta=delta, amplified=(apart[0], apart[1]))
                found += [would] if Account(would, self.runs).fits(way) else []
        if not found:
            return ""
        least = vars(min(found, key=lambda one: (one.epsilon, one.delta)))
        said = [f"{k}={v!r}" for k, v in least.items() if k != "data" and v != getattr(Grant, k, None)]
        return f" What would cover it: grant({', '.join(said)})."

    def _said(self, charge: Cost) -> str:
        """A charge, with the epsilon of a Gaussian run that was alone in the account."""
        delta = self.grant.gaussian[1]
        if not charge.mu or charge.mu > _LARGEST or not delta:
            return str(charge)
        return f"{charge}, alone epsilon {gaussian_epsilon(delta, charge.mu):.6g} at delta {delta:.6g}"

    def __str__(self) -> str:
        squared, *apart = self.spent()
        grant, (epsilon, delta) = self.grant, self.grant.gaussian
        used = gaussian_epsilon(delta, root_up(squared)) if squared and delta else 0.0
        said = [f"{float(u):.6g} of {w:.6g}" for u, w in zip(apart, grant.amplified, strict=True)]
        return (
            f"{grant.data!r}: ({grant.epsilon!r}, {grant.delta!r}) per {grant.unit}, {grant.adjacency}."
            f" Gaussian runs: mu {root_up(squared):.6g}, which is epsilon {used:.6g} of {epsilon:.6g} at"
            f" delta {delta:.6g}. Runs counted by their own (epsilon, delta): {' and '.join(said)}."
        )


def root_up(squared: Fraction) -> float:
    """Return the least float whose square is at least `squared`."""
    root = math.sqrt(float(squared))
    while Fraction(root) ** 2 < squared:
        root = math.nextafter(root, math.inf)
    while root > 0.0 and Fraction(below := math.nextafter(root, 0.0)) ** 2 >= squared:
        root = below
    return root


def _up(value: Fraction) -> float:
    """Return the least float that is at least `value`."""
    return -_down(-value)


def _down(value: Fraction) -> float:
    """Return the largest float that is at most `value`."""
    return math.nextafter(value, -math.inf) if Fraction(float(value)) > value else float(value)


def account_of(accounts: dict[str, Account], data: str) -> Account:
    """Read the account of a data set."""
    if data not in accounts:
        raise GuaranteeError(
            f"nothing was granted for {data!r}: the operator grants a budget, by BudgetBook.grant or anechoic"
            f" budget grant BOOK DATA --epsilon … --delta …. This book knows {sorted(accounts)}."
        )
    return accounts[data]


def changed(accounts: dict[str, Account], entry: dict[str, Any]) -> None:
    """Apply one entry of the book."""
    kind = entry["kind"]
    if kind == "grant":
        given = {name: entry[name] for name in ("data", "epsilon", "delta", "unit", "adjacency")}
        grant = Grant(**given, amplified=tuple(entry["amplified"]))
        accounts.setdefault(grant.data, Account(grant)).grant = grant
        return
    runs = accounts[entry["data"]].runs
    if kind == "reserve":
        said = {name: entry[name] for name in ("token", "run", "who", "what", "time", "fingerprint")}
        runs[entry["token"]] = BookedRun(**said, charge=Cost(**entry["charge"]))
        return
    runs[entry["token"]].status = {"spend": "spent", "cancel": "cancelled"}[kind]

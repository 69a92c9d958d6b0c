"""The contract of a participation: everything it says, against its own patterns by brute force at small n."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np

from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic
from anechoic.participation.accounts import accounts_of
from anechoic.participation.base import Participation
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedToeplitz, Dense, Identity
from anechoic.strategies.base import Strategy
from anechoic.testing._compare import Contract, require, rule
from anechoic.testing.guarantee import compare_sensitivity

STEPS = (1, 2, 3, 6)  # lengths of the runs that are tried, with every subset of their steps


def check_patterns(participation: Participation) -> None:
    """Patterns hold steps of the run, each once; the longest, all steps touched and the rule are said."""
    for n in STEPS:
        patterns = list(participation.patterns(n))
        for pattern in patterns:
            proper = len(set(pattern)) == len(pattern) > 0 and set(pattern) <= set(range(n))
            require(participation, proper, f"pattern {pattern} holds no distinct steps of {n}")
        most, longest = participation.max_participations_in(n), max(map(len, patterns), default=0)
        rule = f"max_participations_in({n}) = {most}, and the longest pattern has {longest} steps"
        require(participation, most == max(1, longest), rule)
        left = sorted({t for pattern in patterns for t in pattern} - set(participation.touched(n)))
        require(participation, not left, f"touched({n}) leaves out steps {left} of patterns")
    sentence = participation.describe()
    require(participation, bool(sentence) and "\n" not in sentence, "describe() is not one line")


def check_allowed(participation: Participation) -> None:
    """`allows` holds of the parts of patterns and of nothing else, and `together` is what it says of two."""
    for n in STEPS:
        expected = np.zeros((n, n), dtype=bool)
        for steps, inside in _subsets(participation, n):
            if not steps:
                continue
            said = bool(participation.allows(steps, n))
            rule = f"allows({steps}, {n}) is {said}, but {steps} is {'' if inside else 'not '}in a pattern"
            require(participation, said == inside, rule)
            if len(steps) == 2:
                expected[steps, steps[::-1]] = inside
        both = np.asarray(participation.together(n))
        require(participation, both.shape == (n, n), f"together({n}) has shape {both.shape}, not {(n, n)}")
        wrong = np.argwhere(both != expected)[:1].tolist()
        require(participation, not wrong, f"together({n}) is wrong of the steps {wrong}")


def check_accounts(participation: Participation) -> None:
    """Accounts admit a unit to the steps that patterns hold with all its steps before, and to no other."""
    for n in STEPS:
        allowed = dict(_subsets(participation, n))
        calm = max(participation.patterns(n), key=len, default=())
        for steps in allowed:
            accounts = accounts_of(participation, 3, n)
            for t in range(n):  # unit 0 keeps to a pattern, 1 is tried, and 2 stays away
                batch = np.array([unit for unit, own in enumerate((calm, steps)) if t in own], dtype=np.int64)
                held = allowed[tuple(s for s in steps if s <= t)]
                said = bool(accounts.admit(t, batch).all())
                rule = f"accounts admit a unit in {steps} to step {t} of {n}: {said}, which is {held}"
                require(participation, said == held, rule)
                if not held:
                    break


def check_contained_period(participation: Participation) -> None:
    """Every pattern of the cyclic schema of `contained_period`, where one is known, is allowed."""
    for n in STEPS:
        try:
            period = participation.contained_period(n)
        except UnsupportedError:
            continue
        proper = isinstance(period, int) and 1 <= period <= n
        require(participation, proper, f"contained_period({n}) = {period!r} is not between 1 and {n}")
        allowed = dict(_subsets(participation, n))
        for pattern in Cyclic(period).patterns(n):
            rule = f"contained_period({n}) = {period}, but {pattern} is not in a pattern"
            require(participation, allowed[pattern], rule)


def check_registered_sensitivity(participation: Participation, seed: int = 0) -> None:
    """Its `sensitivity` is not below the supremum over its patterns, nor above where it says exact.

    A participation without a theorem of its own is refused by name.
    """
    for n in STEPS:
        for strategy in _strategies(n, seed):
            try:
                sensitivity(strategy, participation)
            except UnsupportedError as refused:
                named = type(participation).__name__ in str(refused)
                rule = f"sensitivity is refused without the participation's name: {refused}"
                require(participation, named, rule)
                continue
            compare_sensitivity(strategy, participation, participation, seed=seed)


def _subsets(participation: Participation, n: int) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Every set of steps below n, in order, and whether a pattern holds it; the empty set always is held."""
    patterns = [set(pattern) for pattern in participation.patterns(n)]
    for count in range(n + 1):
        for steps in combinations(range(n), count):
            yield steps, not steps or any(pattern.issuperset(steps) for pattern in patterns)


def _strategies(n: int, seed: int) -> Iterator[Strategy]:
    """Of positive, of mixed and of alternating entries: no theorem for one structure alone may do."""
    rng = np.random.default_rng(seed)
    yield Identity(n)
    yield BandedToeplitz(n, [1.0, 0.6, 0.3][: min(n, 3)])
    yield BandedToeplitz(n, [1.0, -0.6][: min(n, 2)])
    yield Dense(np.tril(rng.uniform(0.1, 1.0, (n, n))))
    yield Dense(np.tril(rng.standard_normal((n, n))) + 2.0 * np.eye(n))


class ParticipationContract(Contract[Participation]):
    """Tests of a participation, for pytest: inherit it in a class named Test…, and give `participations`.

    Give those whose rule shows within 6 steps, and the least and the largest that your constructor takes.

    Attributes:
        serialized: whether participations must survive a round trip through JSON.
        seed: of the strategies whose sensitivity is compared.
    """

    gives = "participations"

    def participations(self) -> Iterable[Participation]:
        """The participations to test, whose rule shows within 6 steps."""
        raise NotImplementedError(
            "give participations(): the participations to test, whose rule shows within 6 steps."
        )

    test_patterns_are_sets_of_steps_and_counted = rule(check_patterns)
    test_what_is_allowed_is_part_of_a_pattern = rule(check_allowed)
    test_accounts_admit_what_is_allowed = rule(check_accounts)
    test_the_contained_cycles_are_allowed = rule(check_contained_period)
    test_sensitivity_is_never_below_the_supremum = rule(check_registered_sensitivity, "seed")

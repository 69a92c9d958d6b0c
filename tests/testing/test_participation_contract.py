"""Every participation against the shipped contract, and the contract against those that break it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.participation.accounts import NEVER, first_step
from anechoic.participation.base import Participation
from anechoic.sensitivity.dispatch import sensitivity, sensitivity_of
from anechoic.testing import ParticipationContract
from anechoic.testing._compare import ContractError
from tests.contracts import check_participation

OURS = [
    Single(),
    FullBatch(),
    Cyclic(1),
    Cyclic(3),
    Cyclic(7),
    MinSep(1),
    MinSep(2),
    MinSep(2, 2),
    OncePerEpoch(2),
    OncePerEpoch(4),
    Patterns([(0, 4), (1, 2, 5)]),
]


class TestOurs(ParticipationContract):
    def participations(self):
        return OURS


@dataclass(frozen=True)
class Sound(MinSep):
    """Separated steps under another name; what breaks a rule is a class of this with something replaced."""


def test_the_sound_one_keeps_the_contract():
    check_participation(Sound(2), serialized=False)


def unsupported(self, n):
    raise UnsupportedError("none")


BROKEN = {
    "outside": ({"patterns": lambda self, n: [(0, n)]}, "no distinct steps"),
    "twice": ({"patterns": lambda self, n: [(0, 0)]}, "no distinct steps"),
    "empty": ({"patterns": lambda self, n: [(), (0,)]}, "no distinct steps"),
    "fewer": (
        {"max_participations_in": lambda self, n: 1, "patterns": MinSep(1).patterns},
        "longest pattern",
    ),
    "more": ({"max_participations_in": lambda self, n: n}, "longest pattern"),
    "touched": ({"touched": lambda self, n: range(n - 1)}, "leaves out steps"),
    "sentence": ({"describe": lambda self: ""}, "not one line"),
    "lines": ({"describe": lambda self: "two\nlines"}, "not one line"),
    "allows all": ({"allows": lambda self, steps, n: True}, "not in a pattern"),
    "allows less": ({"allows": lambda self, steps, n: len(steps) < 2}, "is False"),
    "pairs": ({"together": lambda self, n: np.zeros((n, n), dtype=bool)}, "together.* is wrong"),
    "itself": ({"together": lambda self, n: MinSep(2).together(n) | np.eye(n, dtype=bool)}, "is wrong"),
    "shape": ({"together": lambda self, n: np.zeros(n, dtype=bool)}, "has shape"),
    "period": ({"contained_period": lambda self, n: 1}, "is not in a pattern"),
    "no period": ({"contained_period": lambda self, n: 0}, "is not between"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name):
    replaced, words = BROKEN[name]
    with pytest.raises(ContractError, match=words):
        check_participation(type("Broken", (Sound,), replaced)(2), serialized=False)


RULES = {
    "blind": (lambda step, last, count: step, ": True, which is False"),
    "strict": (lambda step, last, count: np.full_like(step, NEVER), ": False, which is True"),
    "at most twice": (
        lambda step, last, count: np.where(count > 1, NEVER, last + 2),
        ": False, which is True",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_accounts_by_a_broken_rule_are_named(name):
    rule, words = RULES[name]

    @dataclass(frozen=True)
    class Broken(Sound):
        pass

    @first_step.register
    def _(participation: Broken, step, last, count):
        return np.maximum(step, rule(step, last, count))

    with pytest.raises(ContractError, match=words):
        check_participation(Broken(2), serialized=False)


def test_no_contained_period_is_no_fault():
    check_participation(type("Unbounded", (Sound,), {"contained_period": unsupported})(2), serialized=False)


def registered(change):
    """A class whose sensitivity is that of MinSep, changed."""

    @dataclass(frozen=True)
    class Lying(Sound):
        pass

    @sensitivity_of.register
    def _(participation: Lying, strategy):
        return change(sensitivity(strategy, MinSep(participation.separation)))

    return Lying(2)


def refusing(found):
    raise UnsupportedError("no theorem")


SENSITIVITIES = {
    "a tenth": (lambda found: replace(found, value=found.value / 10), "is below"),
    "a little less": (lambda found: replace(found, value=found.value * (1 - 1e-6)), "is below"),
    "exact": (lambda found: replace(found, value=found.value * 1.1, exact=True), "is called exact"),
    "nameless": (refusing, "without the participation's name: no theorem"),
}


@pytest.mark.parametrize("name", SENSITIVITIES)
def test_a_sensitivity_that_is_not_the_supremum_is_seen(name):
    change, words = SENSITIVITIES[name]
    with pytest.raises(ContractError, match=words):
        check_participation(registered(change), serialized=False)


def test_one_without_a_theorem_is_refused_by_name():
    @dataclass(frozen=True)
    class Unproved(Participation):
        def max_participations_in(self, n):
            return 1

        def patterns(self, n):
            return Single().patterns(n)

        def describe(self):
            return "once"

    check_participation(Unproved(), serialized=False)


def test_one_that_no_file_holds_is_seen():
    with pytest.raises(TypeError, match="register its class"):
        check_participation(Sound(2))

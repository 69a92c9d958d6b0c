"""The arithmetic of an account: exact at its limits, and a filter where natural ones are none."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

import anechoic as an
from anechoic.accounting import gaussian_delta, gaussian_epsilon
from anechoic.budget.account import (
    Account,
    BookedRun,
    Cost,
    Grant,
    WithFailureProbability,
    charges_of,
    root_up,
)
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.participation import Single
from anechoic.sampling import External, Poisson
from anechoic.strategies import Identity

ONCE = External(Single(), 1, 8)


def filled(grant, *charges):
    """An account with these runs."""
    runs = {
        str(i): BookedRun(str(i), str(i), "me", "run", "now", one, "", "spent")
        for i, one in enumerate(charges)
    }
    return Account(grant, runs)


def mechanism(epsilon=1.0, **options):
    return an.calibrate(Identity(8), sampling=ONCE, epsilon=epsilon, delta=1e-6, **options)


class TestFloats:
    @pytest.mark.parametrize(
        "squared", [Fraction(2), Fraction(1, 3), Fraction(0.1) ** 2, Fraction(10**30, 7)]
    )
    def test_a_root_is_the_least_float_above(self, squared):
        root = root_up(squared)
        assert Fraction(root) ** 2 >= squared > Fraction(math.nextafter(root, 0.0)) ** 2

    def test_a_root_of_a_square_is_itself(self):
        rng = np.random.default_rng(0)
        for mu in rng.uniform(1e-3, 10.0, 200).tolist():
            assert root_up(Fraction(mu) ** 2) == mu

    def test_ten_tenths_are_more_than_one(self):
        """0.1 as a float is above a tenth: a sum of floats would say .9999999999999999 and go on."""
        tenth, grant = Cost(epsilon=0.1), Grant("d", 1.0, 1e-6, amplified=(1.0, 0.0))
        assert sum([0.1] * 10) < 1.0 < 10 * Fraction(0.1)
        assert filled(grant, *[tenth] * 8).fits(tenth)
        assert not filled(grant, *[tenth] * 9).fits(tenth)

    def test_not_one_unit_in_the_last_place_beyond_a_limit(self):
        grant = Grant("d", 2.0, 1e-6, amplified=(1.0, 1e-7))
        full = filled(grant, Cost(epsilon=0.5, delta=5e-8))
        assert full.fits(Cost(epsilon=0.5, delta=5e-8))
        assert not full.fits(Cost(epsilon=math.nextafter(0.5, 1.0), delta=5e-8))
        assert not full.fits(Cost(epsilon=0.5, delta=math.nextafter(5e-8, 1.0)))

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
    def test_a_budget_covers_the_run_that_was_calibrated_for_it_once(self, epsilon):
        one = mechanism(epsilon)
        account = Account(Grant("d", epsilon, 1e-6))
        charge = account.choose(one)
        assert charge == Cost(mu=one.gdp())
        assert not filled(account.grant, charge).fits(Cost(mu=1e-6))

    def test_gaussian_runs_count_as_one_gaussian(self):
        parts, grant = [0.3, 0.4, 0.5, 0.2], Grant("d", 4.0, 1e-5)
        limit = brentq(lambda mu: gaussian_epsilon(1e-5, mu) - 4.0, 0.1, 5.0, xtol=1e-12)
        account = filled(grant, *[Cost(mu=mu) for mu in parts])
        left = math.sqrt(limit**2 - sum(mu**2 for mu in parts))
        assert account.fits(Cost(mu=left * (1 - 1e-9))) and not account.fits(Cost(mu=left * (1 + 1e-9)))

    @pytest.mark.parametrize("charge", [Cost(mu=math.inf), Cost(mu=1e200), Cost(epsilon=math.inf)])
    def test_what_has_no_privacy_fits_nowhere(self, charge):
        assert not Account(Grant("d", 1e6, 0.5, amplified=(1e5, 0.1))).fits(charge)


class TestWhatIsCharged:
    def test_amplified_runs_count_by_their_own_epsilon_where_a_part_is_set_apart(self):
        sampled = an.Mechanism(Identity(8), Poisson(10_000, 100, 8), 1.0, delta=1e-7)
        charge = Account(Grant("d", 8.0, 1e-6, amplified=(4.0, 5e-7))).choose(sampled)
        assert charge == Cost(epsilon=sampled.epsilon(), delta=1e-7)
        assert Account(Grant("d", 64.0, 1e-6)).choose(sampled) == Cost(mu=sampled.gdp())

    def test_a_composition_fixed_in_advance_is_one_run(self):
        sampled = an.Mechanism(Identity(8), Poisson(10_000, 100, 8), 2.0, delta=1e-7)
        both = an.compose(sampled, times=2)
        charge = Account(Grant("d", 8.0, 1e-6, amplified=(4.0, 5e-7))).choose(both)
        assert charge == Cost(epsilon=both.epsilon(), delta=1e-7)
        assert charge.epsilon < 2 * sampled.epsilon()

    @pytest.mark.parametrize(
        ("cost", "limits"),
        [
            (mechanism(), {}),
            (mechanism(2.0), {"amplified": (0.5, 1e-6)}),  # nothing of delta is left for it
            ((0.3, 1e-7), {}),
            ((0.3, 0.0), {"amplified": (0.1, 1e-7)}),
            (WithFailureProbability(mechanism(), 1e-7), {}),
            (an.Mechanism(Identity(8), Poisson(10_000, 100, 8), 1.0, delta=1e-7), {}),
        ],
    )
    def test_the_refusal_names_a_grant_that_covers_all_runs_together(self, cost, limits):
        account = filled(Grant("d", 1.0, 1e-6, **limits), Cost(mu=0.05), Cost(epsilon=0.05))
        with pytest.raises(GuaranteeError, match="does not cover") as refused:
            account.choose(cost)
        typed = str(refused.value).split("What would cover it: ")[1].removesuffix(".")
        wanted = eval(typed, {"grant": lambda epsilon, delta, **rest: Grant("d", epsilon, delta, **rest)})
        wanted.check_raises(account.grant)
        assert Account(wanted, account.runs).choose(cost)
        old = account.grant.gaussian[0]
        less = wanted.epsilon * (1 - 1e-4)  # it names no more than it takes
        least = replace(wanted, epsilon=max(less, wanted.amplified[0]))
        assert least.gaussian[0] < old or not any(map(Account(least, account.runs).fits, charges_of(cost)))

    @pytest.mark.parametrize("options", [{"unit": "user"}, {"adjacency": "replace_one"}])
    def test_another_unit_or_adjacency_is_refused(self, options):
        with pytest.raises(MismatchError, match="do not add up"):
            Account(Grant("d", 8.0, 1e-6)).choose(mechanism(**options))

    @pytest.mark.parametrize("cost", [(1.0,), (0.0, 0.0), (1.0, 1.0), (-1.0, 0.1), "all", None])
    def test_what_has_no_cost_is_refused(self, cost):
        with pytest.raises((ValueError, TypeError)):
            Account(Grant("d", 8.0, 1e-6)).choose(cost)

    @pytest.mark.parametrize(
        "change",
        [
            {"data": " "},
            {"epsilon": 0.0},
            {"delta": 0.0},
            {"amplified": (9.0, 0.0)},
            {"amplified": (0.0, 1e-3)},
            {"adjacency": "any"},
        ],
    )
    def test_grants_out_of_range_are_refused(self, change):
        with pytest.raises(ValueError):
            Grant(**{"data": "d", "epsilon": 8.0, "delta": 1e-6, **change})


class TestFilter:
    """An analyst who chooses the second run by what the first one released."""

    EPSILON, DELTA, FIRST = 1.0, 1e-2, 0.3

    @staticmethod
    def profile(strike, mu, epsilon=0.0):
        """H_K of a Gaussian with mu and of randomised response with epsilon, together."""
        keep = 1.0 / (1.0 + math.exp(-epsilon))

        def gaussian(level):
            if mu == 0.0:
                return np.maximum(1.0 - level, 0.0)
            return ndtr(mu / 2 - np.log(level) / mu) - level * ndtr(-mu / 2 - np.log(level) / mu)

        # the outcome with loss +epsilon has probability `keep`
        strike = np.asarray(strike)
        more, less = gaussian(strike * math.exp(-epsilon)), gaussian(strike * math.exp(epsilon))
        return keep * more + (1.0 - keep) * less

    def adaptive(self, choices):
        """delta at EPSILON of a first Gaussian, after which each outcome has the worst of the choices."""
        y = np.linspace(-12.0, 12.0, 20_001) + self.FIRST / 2
        ratio = np.exp(self.FIRST * y - self.FIRST**2 / 2)  # of the first release at y, with over without
        level = math.exp(self.EPSILON) / ratio
        worst = np.max([self.profile(level, *choice) for choice in choices], axis=0)
        return float(np.trapezoid(np.exp(-((y - self.FIRST) ** 2) / 2) / math.sqrt(2 * math.pi) * worst, y))

    def test_the_natural_filter_is_none_and_the_account_refuses_it(self):
        """Either second run keeps (epsilon, delta) with the first; chosen by its outcome they do not."""

        def left(number, kind):
            return self.adaptive([(number, 0.0) if kind == "mu" else (0.0, number)]) - self.DELTA

        mu = brentq(left, 1e-3, 3.0, args=("mu",), xtol=1e-10)
        epsilon = brentq(left, 1e-3, 3.0, args=("epsilon",), xtol=1e-10)
        assert self.adaptive([(mu, 0.0)]) == pytest.approx(self.DELTA, rel=1e-6)
        assert self.adaptive([(0.0, epsilon)]) == pytest.approx(self.DELTA, rel=1e-6)
        broken = self.adaptive([(mu, 0.0), (0.0, epsilon)])
        assert broken > self.DELTA * 1.01
        for apart in (0.0, epsilon / 2, epsilon):
            account = filled(
                Grant("d", self.EPSILON, self.DELTA, amplified=(apart, 0.0)), Cost(mu=self.FIRST)
            )
            assert not (account.fits(Cost(mu=mu)) and account.fits(Cost(epsilon=epsilon)))

    @pytest.mark.parametrize("apart", [0.1, 0.3, 0.6])
    def test_no_choice_within_the_limits_breaks_the_guarantee(self, apart):
        grant = Grant("d", self.EPSILON, self.DELTA, amplified=(apart, 0.0))
        account = filled(grant, Cost(mu=self.FIRST))
        highest = brentq(lambda m: gaussian_delta(self.EPSILON - apart, m) - self.DELTA, 1e-2, 3.0)
        rest = math.sqrt(max(highest**2 - self.FIRST**2, 0.0)) * (1 - 1e-9)
        choices = [(mu, part) for mu in (0.0, rest / 2, rest) for part in (0.0, apart / 2, apart)]
        for mu, part in choices:
            assert (not mu or account.fits(Cost(mu=mu))) and (not part or account.fits(Cost(epsilon=part)))
        assert self.adaptive(choices) <= self.DELTA * (1 + 1e-6)

    def test_an_event_beside_a_gaussian_run_is_charged_beside_it(self):
        """Whatever came first, the second run may tell all with the probability that it is booked for."""
        besides = 4e-3
        grant = Grant("d", self.EPSILON, self.DELTA, amplified=(0.0, besides))
        account = filled(grant, Cost(mu=self.FIRST))
        highest = brentq(lambda m: gaussian_delta(self.EPSILON, m) - (self.DELTA - besides), 1e-2, 3.0)
        rest = math.sqrt(highest**2 - self.FIRST**2) * (1 - 1e-9)
        assert account.fits(Cost(mu=rest, delta=besides))
        assert self.adaptive([(rest, 0.0), (0.0, 0.0)]) + besides <= self.DELTA * (1 + 1e-6)
        assert not account.fits(Cost(mu=rest * 1.001, delta=besides))
        assert not account.fits(Cost(mu=rest, delta=besides * 1.001))
        account = filled(grant, Cost(mu=self.FIRST, delta=besides))
        assert account.fits(Cost(mu=rest)) and not account.fits(Cost(mu=1e-3, delta=1e-9))

    def test_limits_never_shrink(self):
        before = Grant("d", 2.0, 1e-6, amplified=(1.0, 1e-7))
        Grant("d", 3.0, 1e-6, amplified=(1.5, 1e-7)).check_raises(before)
        for epsilon, amplified in (
            (1.9, (1.0, 1e-7)),
            (2.0, (1.5, 1e-7)),
            (2.0, (0.5, 1e-7)),
            (9.0, (1.0, 0.0)),
        ):
            with pytest.raises(GuaranteeError, match="never shrink"):
                Grant("d", epsilon, 1e-6, amplified=amplified).check_raises(before)
        with pytest.raises(MismatchError, match="a name of its own"):
            Grant("d", 3.0, 1e-6, "user").check_raises(before)

    def test_a_run_of_another_unit_is_told_the_account_s(self):
        with pytest.raises(MismatchError, match=r"give it unit='user'; else"):
            Account(Grant("d", 2.0, 1e-6, "user")).choose(mechanism())

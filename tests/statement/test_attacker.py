"""What an attacker gains: the best attack on a Gaussian reaches the figures, and none exceeds them."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import anechoic as an
from anechoic.accounting import gaussian_delta, gaussian_epsilon
from anechoic.participation import Single
from anechoic.sampling import External, Poisson
from anechoic.statement.attacker import ACCUSED, Attacker, attacker_of
from anechoic.statement.statement import statement_of
from anechoic.strategies import Identity

MUS = [0.05, 0.5, 1.0, 3.0]
DRAWS = 400_000


def gaussian(mu, delta=1e-9, **options):
    """That of a mu-GDP release, whose own epsilon adds nothing to the curve."""
    return Attacker(((gaussian_epsilon(delta, mu), delta),), mu, **options)


def lines(epsilon, delta, accused):
    """The true positive rate of an (epsilon, delta)-DP release by its definition, in both directions."""
    return min(1.0, math.exp(epsilon) * accused + delta, 1 - math.exp(-epsilon) * (1 - delta - accused))


class TestMembership:
    @pytest.mark.parametrize("mu", MUS)
    @pytest.mark.parametrize("prior", [0.5, 0.1, 0.01, 0.9])
    def test_the_likelihood_ratio_reaches_the_figure_and_does_not_exceed_it(self, mu, prior):
        rng = np.random.default_rng(int(1000 * mu + 10 * prior))
        inside = rng.random(DRAWS) < prior
        seen = rng.standard_normal(DRAWS) + mu * inside
        says = mu * seen - mu**2 / 2 > math.log((1 - prior) / prior)
        share = float((says == inside).mean())
        figure = gaussian(mu).accuracy(prior)
        assert abs(share - figure) < 5 * math.sqrt(figure * (1 - figure) / DRAWS) + 1e-9
        assert figure >= max(prior, 1 - prior)

    @pytest.mark.parametrize("mu", MUS)
    @pytest.mark.parametrize("accused", ACCUSED)
    def test_true_positives_at_false_positives(self, mu, accused):
        rng = np.random.default_rng(int(1000 * mu + 1000 * accused))
        threshold = norm.isf(accused)
        share = float((rng.standard_normal(DRAWS) + mu > threshold).mean())
        figure = gaussian(mu).true_positive_rate(accused)
        assert abs(share - figure) < 5 * math.sqrt(figure * (1 - figure) / DRAWS)
        believed = gaussian(mu).believed(0.01, accused)
        assert believed == pytest.approx(0.01 * figure / (0.01 * figure + 0.99 * accused), rel=1e-9)

    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0, 800.0])
    @pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
    def test_two_lines_by_brute_force(self, epsilon, delta):
        """Over all false positive rates: what the definition allows, and no more."""
        attacker = Attacker(((epsilon, delta),))
        grid = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 4001)])
        rates = np.array([lines(min(epsilon, 700.0), delta, x) for x in grid])
        for place in range(0, len(grid), 400):
            assert attacker.true_positive_rate(grid[place]) == pytest.approx(rates[place], abs=1e-9)
        for prior in (0.5, 0.2, 0.01, 0.7):
            best = float((prior * rates + (1 - prior) * (1 - grid)).max())
            assert best - 1e-12 <= attacker.accuracy(prior) <= best + 1e-3

    @pytest.mark.parametrize("mu", MUS)
    def test_the_gain_is_the_profile(self, mu):
        """Being right at even odds is (1 + delta(0)) / 2, and at other priors delta at their logarithm."""
        for prior in (0.5, 0.25, 0.1):
            strike = (1 - prior) / prior
            profile = gaussian_delta(math.log(strike), mu)
            assert gaussian(mu).accuracy(prior) == pytest.approx(1 - prior + prior * profile, rel=1e-9)

    def test_the_lower_curve_holds(self):
        both, one, other = Attacker(((1.0, 1e-5),), 2.0), Attacker(((1.0, 1e-5),)), gaussian(2.0)
        for accused in (1e-3, 0.1, 0.5):
            lower = min(one.true_positive_rate(accused), other.true_positive_rate(accused))
            assert both.true_positive_rate(accused) == pytest.approx(lower, rel=1e-9)
        assert both.accuracy(0.5) < other.accuracy(0.5)

    def test_no_noise_hides_nothing(self):
        nothing = Attacker(((math.inf, 1e-6),))
        assert nothing.accuracy(0.5) == nothing.true_positive_rate(0.01) == nothing.guessing_rate(10) == 1.0


class TestAttributes:
    @pytest.mark.parametrize("mu", MUS)
    def test_two_opposite_values_reach_the_figure(self, mu):
        """Each of two values is a clip norm from nothing, on opposite sides: zero-out allows it."""
        rng = np.random.default_rng(5)
        value = rng.integers(0, 2, DRAWS) * 2 - 1
        share = float((np.sign(rng.standard_normal(DRAWS) + mu * value) == value).mean())
        figure = gaussian(mu).guessing_rate(2)
        assert abs(share - figure) < 5 * math.sqrt(figure * (1 - figure) / DRAWS) + 1e-9

    @pytest.mark.parametrize("mu", MUS)
    @pytest.mark.parametrize("values", [2, 10, 100])
    def test_values_in_directions_of_their_own_do_not_exceed_it(self, mu, values):
        rng = np.random.default_rng(7)
        seen = rng.standard_normal((20_000, values))
        seen[:, 0] += mu
        share = float((seen.argmax(axis=1) == 0).mean())
        figure = gaussian(mu).guessing_rate(values)
        assert 1 / values < figure and share <= figure + 5 * math.sqrt(figure / 20_000)
        # a line of values: the best interval about one of them
        best = minimize_scalar(lambda x: -(norm.cdf(x + mu) - norm.cdf(x)), bounds=(-8, 8), method="bounded")
        assert values != 2 or -best.fun <= figure

    @pytest.mark.parametrize("mu", MUS)
    def test_replacing_makes_two_values_neighbours(self, mu):
        one = gaussian(mu, replaced=True)
        assert one.guessing_rate(2) == pytest.approx(norm.cdf(mu / 2), rel=1e-9)
        assert one.guessing_rate(10) == pytest.approx(norm.cdf(norm.ppf(0.1) + mu), rel=1e-9)


class TestStatements:
    def mechanism(self, **options):
        return an.Mechanism(Identity(8), External(Single(), 1, 8), 2.0, delta=1e-5, **options)

    def test_the_curve_is_that_of_the_mechanism(self):
        mech = self.mechanism()
        attacker = attacker_of(statement_of(mech).record)
        assert attacker == Attacker(((mech.epsilon(), 1e-5),), mech.gdp())
        assert attacker.accuracy(0.5) == pytest.approx(norm.cdf(0.25), rel=1e-9)
        assert attacker_of(statement_of(self.mechanism(adjacency="replace_one")).record).replaced

    def test_an_amplified_run_has_points_of_its_curve(self):
        """One step of Poisson sampling: the likelihood ratio of the mixture, simulated, is near the bound."""
        rate, mu = 0.5, 1.0
        mech = an.Mechanism(Identity(1), Poisson(1000, 500, 1), 1 / mu, delta=1e-6)
        attacker = attacker_of(statement_of(mech).record)
        assert len(attacker.points) == 5
        rng = np.random.default_rng(9)
        inside = rng.random(DRAWS) < 0.5
        seen = rng.standard_normal(DRAWS) + mu * (inside & (rng.random(DRAWS) < rate))
        ratio = 1 - rate + rate * np.exp(mu * seen - mu**2 / 2)
        share = float(((ratio > 1) == inside).mean())
        assert share - 0.003 < attacker.accuracy(0.5) < share + 0.05
        alone = Attacker(attacker.points[:1], attacker.mu)
        assert attacker.accuracy(0.5) < alone.accuracy(0.5) - 0.05

    @pytest.mark.slow
    def test_a_selection_has_its_own_epsilon(self):
        mech = an.calibrate(Identity(8), sampling=External(Single(), 1, 8), epsilon=0.5, delta=1e-5)
        chosen = an.select(mech, mean=3, score_on="public")
        attacker = attacker_of(statement_of(chosen).record)
        assert attacker == Attacker(((chosen.epsilon(), chosen.delta),))
        assert attacker.accuracy(0.5) > attacker_of(statement_of(mech).record).accuracy(0.5)

    def test_rounded_up_for_people(self):
        text = dict(statement_of(self.mechanism()).pairs)["Attacker"]
        assert "at most 0.5988 (0.5 by chance)" in text  # 0.59870…
        assert "whether one example is in" in text

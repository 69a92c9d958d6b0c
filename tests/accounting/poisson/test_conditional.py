"""Conditional composition: against every pattern of participation, dp-accounting and plain sampling."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from anechoic.accounting import gaussian_delta, poisson_epsilon
from anechoic.accounting.poisson import conditional as conditional_module
from anechoic.accounting.poisson.conditional import DIRECTIONS, HistoryChain, dense_chain, toeplitz_chain
from anechoic.accounting.poisson.rows import bernoulli_row
from anechoic.accounting.poisson.tails import Tails
from tests.marks import each_once, every_other

HIGH = 60.0


def patterns(steps):
    return np.array(list(itertools.product([0.0, 1.0], repeat=steps)))


def log_weights(x, rate):
    return x.sum(axis=1) * math.log(rate) + (1 - x).sum(axis=1) * math.log1p(-rate)


def true_deltas(matrix, rate, std, epsilons, direction, samples=20_000):
    """(estimate, standard error) at each epsilon of the exact pair, by all 2^n patterns."""
    rng = np.random.default_rng(0)
    steps = matrix.shape[1]
    x = patterns(steps)
    means, logs = x @ matrix.T, log_weights(x, rate)
    y = std * rng.standard_normal((samples, len(matrix)))
    if direction == "remove":
        y += (rng.random((samples, steps)) < rate) @ matrix.T
    loss = logsumexp((y @ means.T - (means**2).sum(axis=1) / 2) / std**2 + logs, axis=1)
    loss = -loss if direction == "add" else loss
    values = [-np.expm1(np.minimum(epsilon - loss, 0.0)) for epsilon in epsilons]
    return [(v.mean(), v.std() / math.sqrt(samples)) for v in values]


def random_matrix(steps, seed, toeplitz=False):
    rng = np.random.default_rng(seed)
    if toeplitz:
        c = np.append(1.0, rng.random(steps - 1))
        return sum(np.diag(np.full(steps - k, c[k]), -k) for k in range(steps))
    return np.tril(rng.random((steps, steps)), -1) + np.diag(rng.uniform(0.3, 1.2, steps))


EPSILONS = (0.0, 0.1, 0.4, 1.0, 3.0)


@pytest.mark.parametrize(
    ("steps", "rate", "std", "seed", "toeplitz", "direction"),
    each_once(
        [
            (1, 0.3, 1.0, 0, False),
            (2, 0.5, 2.0, 1, False),
            (3, 0.2, 1.5, 2, True),
            (5, 0.1, 0.7, 3, False),
            (5, 0.02, 1.0, 6, True),
            (7, 0.4, 6.0, 4, True),
            (7, 0.05, 3.0, 5, False),
        ],
        DIRECTIONS,
    ),
)
def test_never_below_the_truth(steps, rate, std, seed, toeplitz, direction):
    matrix = random_matrix(steps, seed, toeplitz)
    truth = true_deltas(matrix, rate, std, EPSILONS, direction)
    chains = [dense_chain(matrix, rate)]
    if toeplitz:
        chains.append(toeplitz_chain(matrix[:, 0], steps, rate))
    for chain in chains:
        for exceeded in (1e-4, 1e-2):
            composed = chain.composed(std, exceeded, direction)
            for epsilon, (estimate, error) in zip(EPSILONS, truth, strict=True):
                assert estimate - 4 * error <= composed.delta(epsilon)


def test_conditioning_on_the_noise_alone_would_be_too_little():
    """Thresholds that leave out what participation adds to <v, y> give a delta below the truth."""
    matrix, rate, std, epsilon = np.array([[5.0, 0.0], [6.0, 0.1]]), 0.05, 1.0, 18.0
    ((truth, error),) = true_deltas(matrix, rate, std, [epsilon], "remove")
    chain = dense_chain(matrix, rate)

    class Faulty(HistoryChain):
        def probabilities(self, std, failure, direction):
            return super().probabilities(std, failure, "add")

    faulty = Faulty(chain.rows, chain.overlaps, chain.least, chain.largest, chain.exceptions, rate)
    assert faulty.composed(std, 1e-2, "remove").delta(epsilon) < truth - 4 * error
    assert chain.composed(std, 1e-2, "remove").delta(epsilon) > truth


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_close_to_the_truth_where_there_is_much_noise(direction):
    matrix, std = random_matrix(6, 11), 80.0
    composed = dense_chain(matrix, 0.2).composed(std, 1e-7, direction)
    # the truth is close to one Gaussian at the mean participation
    mu = 0.2 * np.linalg.norm(matrix.sum(axis=1)) / std
    assert gaussian_delta(0.0, mu) * 0.99 < composed.delta(0.0) < 1.25 * gaussian_delta(0.0, mu)


def test_odds_of_a_participation_are_bounded_given_everything_else():
    """Where no threshold is exceeded, x_j has at most the stated probability, whatever the other x are."""
    rate, std, rng = 0.3, 1.3, np.random.default_rng(5)
    matrix = random_matrix(5, 7)
    chain = dense_chain(matrix, rate)
    thresholds = chain._tails.thresholds(std, 1e-2)
    stated = chain.probabilities(std, 1e-2, "remove")
    pairs = [(i, j) for i in range(5) for j in range(i)]
    assert len(pairs) == chain.exceptions == len(stated)
    nearest = 0.0
    for (i, j), t, most in zip(pairs, thresholds, stated, strict=True):
        v = matrix[:i, j]
        for others in patterns(i):
            y = rng.standard_normal(i) * 3
            y += v * (t - v @ y) / (v @ v)  # on the threshold
            logs = []
            for own in (0.0, 1.0):
                x = others.copy()
                x[j] = own
                distance = ((y - matrix[:i, :i] @ x) ** 2).sum()
                logs.append(own * math.log(rate / (1 - rate)) - distance / (2 * std**2))
            found = 1 / (1 + math.exp(logs[0] - logs[1]))
            assert found <= most * (1 + 1e-9)
            nearest = max(nearest, found / most)
    assert nearest > 0.999999  # the bound is attained


def test_thresholds_are_exceeded_as_seldom_as_promised():
    """By all patterns and exact Gaussian tails, at both ways to bound them."""
    rate, std = 0.25, 0.7
    for seed in range(4):
        matrix = random_matrix(6, seed)
        chain = dense_chain(matrix, rate)
        x = patterns(6)
        weights = np.exp(log_weights(x, rate))
        for failure in (1e-2, 1e-6, 1e-10):
            exact = chain._tails.thresholds(std, failure)
            chernoff = chain._tails._chernoff(std, failure)
            assert (exact < chernoff).all()
            pairs = [(i, j) for i in range(6) for j in range(i)]
            for (i, j), t, above in zip(pairs, exact, chernoff, strict=True):
                v = matrix[:i, j]
                means, noise = x[:, :i] @ matrix[:i, :i].T @ v, std * np.linalg.norm(v)
                assert weights @ norm.sf(t, means, noise) <= failure
                assert weights @ norm.sf(above, means, noise) <= failure
                # and not much more seldom: values are rounded to a grid
                assert weights @ norm.sf(t * 0.98, means, noise) > failure


@pytest.mark.parametrize(
    ("overlaps", "failure", "largest"), [([3.0, 2.0, 0.5], 1e-3, 3.0), ([3.0], 0.0099, 0.3)]
)
def test_thresholds_hold_for_every_noise_between_the_bounds(overlaps, failure, largest):
    """Less noise is the worse where t lies below a value of the sum."""
    tails = Tails(np.array([overlaps]), np.array([1e-6]), np.array([largest**2]), 0.01)
    t = tails.thresholds(1.0, failure)[0]
    x = patterns(len(overlaps))
    for noise in np.geomspace(1e-3, largest, 9):
        assert np.exp(log_weights(x, 0.01)) @ norm.sf(t, x @ overlaps, noise) <= failure


@pytest.mark.slow
def test_one_band_is_plain_poisson_sampling():
    for rate, std, steps in [(0.05, 3.0, 100), (0.3, 8.0, 30), (0.01, 1.0, 1), (0.002, 0.8, 200)]:
        plain = poisson_epsilon(1e-5, std, rate, steps)
        found = toeplitz_chain(np.array([1.0]), steps, rate).epsilon(1e-5, std, HIGH)
        assert found == pytest.approx(plain, rel=2e-3)
        scaled = dense_chain(2 * np.eye(min(steps, 5)), rate).epsilon(1e-5, 2 * std, HIGH)
        assert scaled == pytest.approx(poisson_epsilon(1e-5, std, rate, min(steps, 5)), rel=2e-3)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.slow
def test_rows_against_dp_accounting(direction, composed_three):
    """Rows of three different sums, composed: dp-accounting's mixture of Gaussians, also pessimistic."""
    laws, total = composed_three
    ratio, slack = conditional_module.composed_rows(laws, direction)
    assert slack < 1e-8
    side = total._pmf_remove if direction == "remove" else total._pmf_add
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        found = ratio.remove(epsilon) if direction == "remove" else ratio.add(epsilon)
        assert found == pytest.approx(side.get_delta_for_epsilon(epsilon), rel=0.01)


@pytest.fixture(scope="module")
def composed_three():
    """Rows of three different sums as often as given, and their composition by dp-accounting."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    std, total, laws = 2.0, None, []
    ones = [([1.0], [0.1], 16), ([1.0, 0.5], [0.1, 0.2], 32), ([1.0, 1.0, 0.25], [0.05, 0.2, 0.3], 9)]
    for values, probabilities, count in ones:
        law = bernoulli_row(np.array(values), np.array(probabilities), std)
        laws.append((count, law))
        sums = patterns(len(values))
        mass = np.prod(np.where(sums > 0, probabilities, 1 - np.array(probabilities)), axis=1)
        one = pld.from_mixture_gaussian_mechanism(
            std, list(sums @ values), list(mass / mass.sum()), value_discretization_interval=1e-3
        )
        one = one.self_compose(count)
        total = one if total is None else total.compose(one)
    return laws, total


def test_rounding_only_raises_the_sums():
    rng = np.random.default_rng(3)
    values, probabilities = rng.random(12), rng.random(12) * 0.3
    law = bernoulli_row(values, probabilities, 1.0)
    x = patterns(12)
    mass = np.prod(np.where(x > 0, probabilities, 1 - probabilities), axis=1)
    sums = x @ values
    for t in np.linspace(0, sums.max(), 200):
        assert law.mass[law.points > t - 1e-9].sum() + law.lost >= mass[sums > t].sum() - 1e-12
    assert law.mass.sum() + law.lost == pytest.approx(1.0, abs=1e-12)
    assert law.points @ law.mass < 1.01 * (values @ probabilities)
    assert len(law.points) <= 500


@pytest.mark.parametrize("steps", every_other([4, 9, 30]))
def test_toeplitz_is_not_below_dense(steps):
    c = np.array([1.0, 0.5, 0.3, 0.2])[: min(4, steps)]
    dense = sum(np.diag(np.full(steps - k, c[k]), -k) for k in range(len(c)))
    for std in (3.0, 12.0):
        exact = dense_chain(dense, 0.1).epsilon(1e-5, std, HIGH)
        grouped = toeplitz_chain(c, steps, 0.1).epsilon(1e-5, std, HIGH)
        assert exact * (1 - 1e-3) <= grouped < 1.06 * exact


@pytest.mark.slow
def test_groups_of_lags_and_rows_are_bounds(monkeypatch):
    c = 1.0 / np.sqrt(np.arange(1, 17))
    dense = sum(np.diag(np.full(16 - k, c[k]), -k) for k in range(16))
    exact = dense_chain(dense, 0.05).epsilon(1e-5, 15.0, HIGH)
    fine = toeplitz_chain(c, 16, 0.05).epsilon(1e-5, 15.0, HIGH)
    monkeypatch.setattr(conditional_module, "_EXACT_LAGS", 3)
    monkeypatch.setattr(conditional_module, "_LAG_GROUPS", 6)
    coarse_chain = toeplitz_chain(c, 16, 0.05)
    assert (coarse_chain.least < coarse_chain.largest).any()
    every, failure, often = dense_chain(dense, 0.3), 1e-8, toeplitz_chain(c, 16, 0.3)
    stated = often.probabilities(4.0, failure, "remove")
    single = every.probabilities(4.0, failure, "remove")
    kinds = [row for row in often.rows for _ in range(row.count)]
    for i, (kind, row) in enumerate(zip(kinds, every.rows, strict=True)):
        for j in range(i):
            assert stated[kind.places[i - j - 1]] > 0.995 * single[row.places[j]]
            assert kind.values[i - j - 1] == row.values[j]
    coarse = coarse_chain.epsilon(1e-5, 15.0, HIGH)
    assert exact * (1 - 1e-3) < fine < coarse < 1.2 * exact


def test_pairs_are_all_counted():
    for bands, steps in [(1, 5), (3, 3), (3, 8), (4, 40)]:
        c = np.ones(bands)
        assert toeplitz_chain(c, steps, 0.1).exceptions == sum(min(i, bands - 1) for i in range(steps))
        assert sum(row.count for row in toeplitz_chain(c, steps, 0.1).rows) == steps


def test_all_pairs_share_the_probability_of_exceeding_a_threshold():
    chain, asked = dense_chain(random_matrix(6, 0), 0.1), []

    class Recording(HistoryChain):
        def probabilities(self, std, failure, direction):
            asked.append(failure)
            return super().probabilities(std, failure, direction)

    recording = Recording(chain.rows, chain.overlaps, chain.least, chain.largest, chain.exceptions, 0.1)
    recording.composed(3.0, 1e-3, "remove")
    recording.composed(3.0, 1e-3, "add")
    assert asked == [1e-3 / 15] * 2


def test_probability_of_exceeding_a_threshold_is_a_part_of_delta():
    chain = toeplitz_chain(np.array([1.0, 0.5]), 10, 0.1)
    for direction in DIRECTIONS:
        composed = chain.composed(3.0, 1e-3, direction)
        assert composed.delta(50.0) == pytest.approx(1e-3, rel=1e-6)
    alone = toeplitz_chain(np.array([1.0]), 10, 0.1).composed(3.0, 1e-3, "add")
    assert alone.delta(50.0) < 1e-12


def test_falls_in_noise_and_where_nothing_can_be_shown_the_known_bound_returns():
    chain = toeplitz_chain(np.array([1.0, 0.6, 0.4]), 60, 0.05)
    found = [chain.epsilon(1e-6, std, HIGH) for std in (2.5, 4.0, 8.0, 30.0)]
    assert sorted(found, reverse=True) == found and found[-1] < found[0] / 4
    assert chain.epsilon(1e-6, 0.01, 123.0) == 123.0
    assert chain.epsilon(1e-6, 8.0, found[2] / 2) == pytest.approx(found[2] / 2, rel=1e-9)

"""Audits by scores of an attack: bounds that a mechanism which keeps its claim rarely exceeds."""

import math

import numpy as np
import pytest
from scipy import stats

from anechoic.accounting import gaussian_epsilon
from anechoic.audit import from_scores
from anechoic.audit.scores import _refuted


def answered(epsilon, canaries, seed):
    """Scores of randomised response about fair coins, (in, out): the law that attains epsilon."""
    rng = np.random.default_rng(seed)
    truth = rng.random(canaries) < 0.5
    kept = rng.random(canaries) < 1 / (1 + math.exp(-epsilon))
    found = np.where(kept, truth, ~truth) + 1e-6 * rng.random(canaries)
    return found[truth], found[~truth]


def test_bounds_exceed_the_truth_as_rarely_as_stated():
    above = {"epsilon": 0, "mu": 0}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        found = from_scores(
            1 + rng.standard_normal(150), rng.standard_normal(150), delta=0.05, confidence=0.8
        )
        above["epsilon"] += found.epsilon.value > gaussian_epsilon(0.05, 1.0)
        above["mu"] += found.mu.value > 1.0
    assert max(above.values()) <= 20


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_one_run_exceeds_the_truth_as_rarely_as_stated_and_comes_near(epsilon):
    bounds = []
    for seed in range(15):
        into, out = answered(epsilon, 1500, seed)
        bounds.append(from_scores(into, out, delta=1e-9, confidence=0.8, one_run=True).epsilon.value)
    assert np.sum(np.array(bounds) > epsilon) <= 3
    assert np.mean(bounds) > epsilon - 0.25


@pytest.mark.parametrize("digits", [0, 1])
def test_ties_prove_nothing(digits):
    assert from_scores(np.zeros(500), np.zeros(500), delta=1e-9, one_run=True).epsilon.value == 0.0
    found = []
    for seed in range(60):
        into, out = np.random.default_rng(seed).standard_normal((2, 300)).round(digits)
        found.append(from_scores(into, out, delta=1e-9, one_run=True).epsilon.value)
    assert np.count_nonzero(found) <= 6


def p_value(m, guesses, right, epsilon, delta):
    """Algorithm of the paper's appendix D, a loop over counts."""
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    mass, steepest = 0.0, 0.0
    for i in range(1, right + 1):
        mass += law.pmf(right - i)
        steepest = max(steepest, mass / i)
    return min(1.0, law.sf(right - 1) + 2 * m * delta * steepest)


@pytest.mark.parametrize("delta", [1e-12, 1e-3])
@pytest.mark.parametrize(("guesses", "right"), [(10, 10), (40, 33), (40, 30), (40, 21), (40, 0)])
def test_the_epsilon_that_so_many_right_guesses_refute(guesses, right, delta):
    found = _refuted(60, guesses, right, delta, 0.05)
    if found == 0.0:
        assert p_value(60, guesses, right, 0.0, delta) >= 0.05
    else:
        assert p_value(60, guesses, right, found, delta) <= 0.05 * (1 + 1e-9)
        assert p_value(60, guesses, right, found + 1e-5, delta) > 0.05


def test_noise_that_is_too_small_is_found():
    rng = np.random.default_rng(0)
    found = from_scores(2.4 + rng.standard_normal(4000), rng.standard_normal(4000), delta=1e-5)
    assert found.mu.value > 2.0 and found.epsilon.value > gaussian_epsilon(1e-5, 1.0)
    into, out = answered(2.0, 4000, 1)
    assert from_scores(into, out, delta=1e-9, one_run=True).epsilon.value > 1.0
    assert from_scores(into[::-1] * 0, out * 0, delta=1e-9).epsilon.value == 0.0


def test_rates_and_words():
    rng = np.random.default_rng(0)
    into, out = 1.5 + rng.standard_normal(2000), rng.standard_normal(1500)
    found = from_scores(into, out, delta=1e-5)
    pairs = into[:, None] > out
    assert found.auroc == pytest.approx(pairs.mean(), abs=1e-12)
    rate = found.tpr_at(0.01)
    assert rate.estimate == np.mean(into > np.sort(out)[-16]) and rate.value < rate.estimate
    text = str(found)
    assert "at delta 1e-05" in text and "TPR" in text and "2000 canaries in, 1500 out" in text


def test_the_picture_has_the_curve():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    figure = from_scores(1 + rng.standard_normal(300), rng.standard_normal(300), delta=1e-5).plot()
    assert next(line.get_label() for line in figure.axes[0].lines) == "this attack"
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([], [1.0]), "in_scores"),
        (([1.0], [math.nan]), "out_scores"),
        (([1.0], [[1.0]]), "out_scores"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        from_scores(*given, delta=1e-5)
    with pytest.raises(ValueError, match="delta=2"):
        from_scores([1.0], [0.0], delta=2)

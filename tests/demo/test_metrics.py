import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.demo.metrics import accuracy, auc, mean_and_error


def by_pairs(scores, labels):
    """AUC from its definition: all pairs of a positive and a negative example."""
    positive = [s for s, label in zip(scores, labels, strict=True) if label]
    negative = [s for s, label in zip(scores, labels, strict=True) if not label]
    wins = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    return sum(wins) / len(wins)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
@pytest.mark.slow
def test_auc_is_the_share_of_ordered_pairs(rows):
    scores, labels = zip(*rows, strict=True)
    if len(set(labels)) < 2:
        with pytest.raises(ValueError, match="needs both"):
            auc(scores, labels)
    else:
        assert auc(scores, labels) == pytest.approx(by_pairs(scores, labels), abs=1e-12)


def test_auc_of_perfect_reversed_and_constant_scores():
    labels = [0, 0, 1, 1]
    assert auc([1, 2, 3, 4], labels) == 1.0
    assert auc([4, 3, 2, 1], labels) == 0.0
    assert auc([7, 7, 7, 7], labels) == 0.5


def test_auc_does_not_change_under_a_monotone_map():
    rng = np.random.default_rng(0)
    scores, labels = rng.standard_normal(1000), rng.random(1000) < 0.3
    assert auc(np.exp(scores), labels) == auc(scores, labels)


def test_auc_of_a_diverged_model_is_that_of_guessing():
    assert auc([np.nan] * 4, [0, 1, 0, 1]) == 0.5


def test_auc_refuses_other_shapes():
    with pytest.raises(ValueError, match="one label a score"):
        auc([1.0, 2.0], [1])


def test_accuracy():
    assert accuracy([1, 2, 3, 4], [1, 2, 0, 0]) == 0.5


def test_mean_and_standard_error():
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert mean == 2.0 and error == pytest.approx(1 / np.sqrt(3))
    assert mean_and_error([5.0]) == (5.0, 0.0)
    with pytest.raises(ValueError, match="at least one run"):
        mean_and_error([])

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.demo.metrics import accuracy, auc, mean_and_error


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_share_of_ordered_pairs(rows):
    scores, labels = zip(*rows, strict=True)
    if len(set(labels)) < 2:
        with pytest.raises(ValueError, match="needs both"):
            auc(scores, labels)
        return
    pairs = [(p, n) for p, one in rows for n, other in rows if one and not other]
    share = sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)
    assert auc(scores, labels) == pytest.approx(share, abs=1e-12)


def test_auc_of_a_diverged_model_is_that_of_guessing_and_shapes_are_checked():
    assert auc([np.nan] * 4, [0, 1, 0, 1]) == 0.5
    with pytest.raises(ValueError, match="one label a score"):
        auc([1.0, 2.0], [1])


def test_accuracy_mean_and_standard_error():
    assert accuracy([1, 2, 3, 4], [1, 2, 0, 0]) == 0.5
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert mean == 2.0 and error == pytest.approx(1 / np.sqrt(3))
    assert mean_and_error([5.0]) == (5.0, 0.0)
    with pytest.raises(ValueError, match="at least one run"):
        mean_and_error([])

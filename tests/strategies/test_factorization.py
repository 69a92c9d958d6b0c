"""Rectangular factorisations as square strategies: same errors, no larger sensitivity."""

import numpy as np
import pytest

from anechoic import error, sensitivity, workloads
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.strategies import FullTree, Tree, from_factorization
from tests.zoo import dense


def factorization(n, r, seed=0):
    """A random C with r rows, and B = A L for a left inverse L that is not the pseudo-inverse."""
    rng = np.random.default_rng([seed, n, r])
    c = rng.standard_normal((r, n))
    pseudo = np.linalg.pinv(c)
    other = rng.standard_normal((n, r))
    left = pseudo + 0.3 * (other - other @ c @ pseudo)
    workload = workloads.momentum(n, 0.6)
    return workload, workload.to_dense() @ left, c


@pytest.mark.parametrize(("n", "r"), [(1, 1), (1, 3), (5, 5), (7, 9), (8, 20)])
def test_errors_are_the_same_and_sensitivities_not_larger(n, r):
    workload, b, c = factorization(n, r)
    square = from_factorization(b, c)
    np.testing.assert_allclose(error(workload, square).per_step, np.linalg.norm(b, axis=1), rtol=1e-9)
    gram = square.to_dense().T @ square.to_dense()
    assert np.linalg.eigvalsh(c.T @ c - gram).min() >= -1e-9 * np.abs(gram).max()  # for every pattern and m
    assert square.largest_column_norm() <= np.linalg.norm(c, axis=0).max() * (1 + 1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 13])
def test_the_full_tree(n):
    c = Tree(n).to_dense()
    a = workloads.prefix_sum(n).to_dense()
    np.testing.assert_allclose(
        from_factorization(a @ np.linalg.pinv(c), c).to_dense(), FullTree(n).to_dense(), atol=1e-12
    )


@pytest.mark.parametrize("participation", [Single(), Cyclic(3), MinSep(2), FullBatch()], ids=str)
def test_a_rotated_square_strategy_is_found_again(participation):
    strategy = dense(9)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 9)))[0]
    c = rotation @ strategy.to_dense()
    found = from_factorization(np.linalg.inv(c), c)
    np.testing.assert_allclose(found.to_dense(), strategy.to_dense(), atol=1e-12)
    expected = sensitivity(strategy, participation)
    assert float(sensitivity(found, participation)) == pytest.approx(float(expected), rel=1e-9)

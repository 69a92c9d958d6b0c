"""What the dense optimisers rest on: the rational root, moduli of bidiagonal inverses, Newton's curvature."""

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.optimize.full import newton as _dense_newton
from anechoic.optimize.full.bidiagonal import BidiagonalModulus, bidiagonal_inverse
from anechoic.optimize.full.modulus import MatrixModulus
from anechoic.optimize.full.quadrature import inverse_root
from tests.marks import in_turn
from tests.optimize.full.test_dense import catalogue


@in_turn("ratio", [1.0, 1.5, 10.0, 1e4, 1e9, 1e14])
@in_turn("tolerance", [0.1, 1e-3, 1e-8, 1e-11])
def test_the_excess_of_the_rational_root_is_its_largest_error_and_no_less(ratio, tolerance):
    root = inverse_root(0.37, 0.37 * ratio, tolerance)
    x = np.geomspace(0.37, 0.37 * ratio, 20_001)
    reached = sum(np.sqrt(x) * w / (x + s) for s, w in zip(root.shifts, root.weights, strict=True))
    assert reached.max() <= root.excess <= 1 + 1.5 * tolerance + 3e-12
    assert reached.min() >= 1 - 1.5 * tolerance - 3e-12


def test_an_empty_interval_is_refused():
    with pytest.raises(ValueError, match="positive"):
        inverse_root(2.0, 1.0, 1e-3)


@pytest.mark.parametrize("name", ["prefix", "decay", "rates", "restarts", "restarts-rates"])
@in_turn("n", [1, 2, 3, 8, 61])
def test_bidiagonal_moduli_are_those_of_singular_vectors(name, n):
    workload = catalogue(n)[name]
    rng = np.random.default_rng(n)
    p, q = 10.0 ** rng.uniform(-6, 0, (2, n))
    exact = MatrixModulus(workload.to_dense(), symmetric=False)
    norm = exact.singular(p, q).values.sum()
    slow = exact.diagonals(p, q, rows=True)
    for tolerance in (0.05, 1e-4, 1e-10):
        fast = BidiagonalModulus(*bidiagonal_inverse(workload), symmetric=False, tolerance=tolerance)
        found = fast.diagonals(p, q, rows=True)
        assert found.columns == pytest.approx(slow.columns, rel=1.1 * tolerance + 1e-9)
        assert found.rows == pytest.approx(slow.rows, rel=1.1 * tolerance + 1e-9)
        assert norm * (1 - 3 * tolerance - 1e-9) <= found.certain <= norm * (1 + 1e-14)
        gram, expected = np.triu(fast.flipped_gram(p, q)), np.triu(exact.flipped_gram(p, q))
        assert np.abs(gram - expected).max() <= (tolerance + 1e-9) * expected.max()
    assert norm * (1 - 1e-9) <= slow.certain <= norm
    assert np.abs(fast._entries() - workload.to_dense()).max() < 1e-12


def test_other_inverses_are_not_taken_for_bidiagonal_ones():
    named = catalogue(9)
    assert all(
        bidiagonal_inverse(named[name]) is None
        for name in ("momentum", "momentum-rates", "nesterov", "window", "restarts-momentum", "random")
    )
    plain = workloads.momentum(9, 0.0, learning_rates=np.ones(9))
    assert bidiagonal_inverse(plain)[1].tolist() == [0.0] + [-1.0] * 8


@pytest.mark.parametrize("symmetric, blocks", [(False, 1), (False, 2), (True, 1)])
def test_the_curvature_is_the_second_difference_of_the_nuclear_norm(symmetric, blocks, monkeypatch):
    monkeypatch.setattr(
        _dense_newton, "SPACING", 0.5
    )  # a percent is enough for the method, not for this test
    a = np.tri(6) if symmetric else np.tril(np.random.default_rng(0).standard_normal((6, 6))) + np.eye(6)
    modulus = MatrixModulus(a, symmetric=symmetric)
    rng = np.random.default_rng(1)
    p, q, direction = rng.random(6) + 0.1, rng.random(6) + 0.1, rng.standard_normal(6 * blocks)
    if symmetric:
        p = q[::-1].copy()

    def norm(t):
        moved = (1 + t * direction).reshape(blocks, 6)
        rows = moved[1] if blocks == 2 else moved[0][::-1] if symmetric else np.ones(6)
        return modulus.singular(p * rows, q * moved[0]).values.sum()

    h = 1e-3
    second = (norm(h) - 2 * norm(0) + norm(-h)) / h**2
    curvature = direction @ _dense_newton._curvature(modulus.singular(p, q), blocks, symmetric) @ direction
    # H is minus twice the second derivative; the flip of q doubles it, which the caller divides out again
    assert curvature * (2 if symmetric else 1) == pytest.approx(-2 * second, rel=1e-3)


def test_weights_that_vanish_do_not_slow_newton_down():
    # many rows of B stay short here: their weights are 0 at the optimum
    workload = workloads.momentum(100, 0.9, learning_rates=np.linspace(1.0, 0.01, 100))
    assert optimize.dense(workload, loss="max").evaluations <= 25

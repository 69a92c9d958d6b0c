"""Newton's method for the max loss where patterns partition the steps: derivatives, optimality, failures."""

from importlib import import_module

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.lower_bounds.dual import DualPoint, Multiplier, cycles
from anechoic.optimize.full.patterns import PatternNewton, serves
from anechoic.participation import Cyclic


def random_workload(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.tril(rng.standard_normal((n, n))) + 2.0 * np.eye(n)


def begun(a, patterns, seed=0):
    """Anywhere: random p, and random correlations times random shares."""
    rng = np.random.default_rng(seed)
    count, k = patterns.shape
    factors = np.tril(rng.standard_normal((count, k, k))) + 2.0 * np.eye(k)
    factors /= np.sqrt(np.square(factors).sum(axis=2, keepdims=True))
    shares = rng.dirichlet(np.full(count, 3.0))
    factors = np.where((patterns >= 0)[:, :, None], factors * np.sqrt(shares)[:, None, None], 0.0)
    p = rng.dirichlet(np.full(len(a), 3.0))
    return PatternNewton(a, patterns, DualPoint(p, Multiplier(patterns, factors), 0.0, a, p))


def whole(multiplier, n):
    w = np.zeros((n, n))
    for steps, factor in zip(multiplier.patterns, multiplier.factors, strict=True):
        kept = steps[steps >= 0]
        w[np.ix_(kept, kept)] = (factor @ factor.T)[: len(kept), : len(kept)]
    return w


SHAPES = [(1, 1), (5, 2), (7, 3), (6, 1), (6, 3), (4, 4)]


@pytest.mark.parametrize(("n", "period"), SHAPES)
def test_curvature_is_that_of_finite_differences(n, period, monkeypatch):
    """Along random steps, the second difference of the nuclear norm, with nodes that lie close."""
    monkeypatch.setattr(import_module("anechoic.optimize.full.patterns"), "SPACING", 0.5)
    a, patterns = random_workload(n), cycles(period, n)
    newton = begun(a, patterns)
    p = newton.point.weights
    quadratic = np.tril(newton._curvature())
    quadratic += np.tril(quadratic, -1).T
    factors = newton.point.multiplier.factors
    rng = np.random.default_rng(1)

    def norm(t, d, blocks):
        changed = Multiplier(patterns, factors @ np.linalg.cholesky(np.eye(blocks.shape[1]) + t * blocks))
        root = np.linalg.cholesky(whole(changed, n))
        return np.linalg.norm(np.sqrt(p * (1 + t * d))[:, None] * a @ root, "nuc")

    assert newton.point.value == pytest.approx(norm(0.0, np.zeros(n), np.zeros_like(factors)))
    for _ in range(3):
        step = rng.standard_normal(len(quadratic))
        d, blocks = step[:n], newton._blocks(step[n:])
        h = 2e-3
        second = (norm(h, d, blocks) - 2 * norm(0.0, d, blocks) + norm(-h, d, blocks)) / h**2
        assert -0.5 * step @ quadratic @ step == pytest.approx(second, rel=1e-2)


@pytest.mark.parametrize(("n", "period"), SHAPES)
@pytest.mark.few(2)
def test_maximiser_has_level_errors_and_diagonal_blocks(n, period):
    a, patterns = random_workload(n, 3), cycles(period, n)
    newton = begun(a, patterns)
    barrier = 1e-3
    for _ in range(40):
        newton.step(barrier)
    point = newton.point
    w, m, total = whole(point.multiplier, n), point.gram(), point.value
    assert np.allclose(m @ w @ m, a.T @ (point.weights[:, None] * a))
    raised = m / (2 * total) + barrier / n * np.linalg.inv(w)
    for steps in patterns:
        kept = steps[steps >= 0]
        block = raised[np.ix_(kept, kept)]
        assert np.allclose(block, np.diag(block.diagonal()), atol=1e-7)
        assert block.trace() == pytest.approx(0.5 + barrier, abs=1e-7)
        assert np.allclose(newton.gram(barrier)[np.ix_(kept, kept)], 2 * total * np.diag(block.diagonal()))
    squares = np.einsum("tj,jk,tk->t", a, np.linalg.inv(m), a)
    assert np.allclose(squares / (2 * total) + barrier / n / point.weights, 0.5 + barrier, atol=1e-7)
    # what the barrier costs
    better = newton.gram(barrier)
    squares = np.einsum("tj,jk,tk->t", a, np.linalg.inv(better), a)
    sums = [better.diagonal()[steps[steps >= 0]].sum() for steps in patterns]
    assert np.sqrt(squares.max() * max(sums)) <= total * (1 + 2 * barrier) * (1 + 1e-6)


def test_serves_partitions_of_few_numbers():
    a = np.eye(7)
    assert serves(a, cycles(3, 7))
    assert not serves(a, np.array([[0, 1], [1, 2], [3, 4], [5, 6]]))
    assert not serves(a, cycles(3, 6))
    assert not serves(np.ones((8, 7)), cycles(3, 7))
    assert not serves(np.eye(200), cycles(2, 200))


@pytest.mark.parametrize("workload", [workloads.prefix_sum(17), workloads.momentum(17, 0.9)])
@pytest.mark.slow
def test_same_optimum_as_without_newton(workload, monkeypatch):
    found = optimize.dense(workload, participation=Cyclic(5), loss="max", gap=1e-4)
    assert found.gap <= 1e-4
    assert found.evaluations < 60 or not workload.is_prefix_sum  # the optimum for momentum is degenerate
    module = import_module("anechoic.optimize.full.search")
    monkeypatch.setattr(module, "serves", lambda a, patterns: False)
    other = optimize.dense(workload, participation=Cyclic(5), loss="max", gap=1e-4)
    assert found.loss == pytest.approx(other.loss, rel=2e-4 + other.gap)


def test_path_is_followed_where_newton_fails(monkeypatch):
    def fails(self, barrier):
        raise np.linalg.LinAlgError("no curvature")

    monkeypatch.setattr(PatternNewton, "step", fails)
    found = optimize.dense(workloads.prefix_sum(12), participation=Cyclic(4), loss="max", gap=1e-3)
    assert found.gap <= 1e-3

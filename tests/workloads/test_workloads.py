"""Workloads against the updates of the optimisers they stand for."""

import json
import tracemalloc

import numpy as np
import pytest

from anechoic import _serialize, workloads
from anechoic.strategies import Output
from anechoic.workloads.base import Workload
from anechoic.workloads.general import LowerTriangular, RestartDifferences
from anechoic.workloads.optimizers import Momentum, Scheduled
from anechoic.workloads.sums import PrefixSum
from tests.contracts import check_strategy
from tests.marks import in_turn

RATES = np.linspace(1.0, 0.1, 9)


def triangle(n):
    """A lower triangle without structure, well conditioned."""
    matrix = np.tril(np.random.default_rng(n).standard_normal((n, n)) / np.sqrt(n))
    np.fill_diagonal(matrix, 1.0 + np.arange(n) / n)
    return matrix


ALL = {
    "prefix": workloads.prefix_sum(9),
    "prefix-1": workloads.prefix_sum(1),
    "plain": workloads.momentum(9, 0.0),
    "momentum": workloads.momentum(9, 0.9),
    "decay": workloads.momentum(9, 0.0, weight_decay=0.1),
    "both": workloads.momentum(9, 0.8, weight_decay=0.05),
    "equal": workloads.momentum(9, 0.8, weight_decay=0.2),  # a double root
    "rates": workloads.momentum(9, 0.8, weight_decay=0.05, learning_rates=RATES),
    "one": workloads.momentum(1, 0.8, weight_decay=0.05, learning_rates=[0.3]),
    "two": workloads.momentum(2, 0.8, weight_decay=0.05),
    "long": workloads.momentum(700, 0.95, weight_decay=0.001),
    "nesterov": workloads.nesterov(9, 0.8),
    "nesterov-plain": workloads.nesterov(9, 0.0),
    "nesterov-all": workloads.nesterov(9, 0.9, weight_decay=0.05, learning_rates=RATES),
    "nesterov-1": workloads.nesterov(1, 0.9, weight_decay=0.05),
    "nesterov-2": workloads.nesterov(2, 0.9, weight_decay=0.05),
    "fading": workloads.exponential_decay(9, 0.7),
    "fading-0": workloads.exponential_decay(9, 0.0),
    "fading-1": workloads.exponential_decay(1, 0.7),
    "window": workloads.sliding_window(11, 3),
    "window-1": workloads.sliding_window(9, 1),
    "window-even": workloads.sliding_window(12, 4),
    "window-cut": workloads.sliding_window(9, 8),
    "window-all": workloads.sliding_window(9, 9),
    "window-beyond": workloads.sliding_window(9, 20),
    "window-of-one": workloads.sliding_window(1, 1),
    "coefficients": workloads.from_coefficients([1.0, 0.5, -0.25], 9),
    "coefficients-ones": workloads.from_coefficients(np.ones(5)),
    "coefficients-long": workloads.from_coefficients(0.9 / (1 + np.arange(400))),
    "scheduled": workloads.scheduled(workloads.sliding_window(9, 4), RATES),
    "scheduled-twice": workloads.scheduled(workloads.momentum(9, 0.5, learning_rates=RATES), 1 + RATES),
    "general": workloads.from_dense(triangle(9)),
    "general-2": workloads.from_dense([[1.0, 0.0], [0.5, 2.0]]).truncate(2),
    "general-scheduled": workloads.scheduled(workloads.from_dense(triangle(9)), RATES),
    "restarts": workloads.restart_differences(workloads.prefix_sum(11), period=3),
    "restarts-even": workloads.restart_differences(workloads.prefix_sum(12), period=4),
    "restarts-1": workloads.restart_differences(workloads.prefix_sum(7), period=1),
    "restarts-n": workloads.restart_differences(workloads.prefix_sum(7), period=7),
    "restarts-never": workloads.restart_differences(workloads.prefix_sum(7), period=9),
    "restarts-momentum": workloads.restart_differences(workloads.momentum(11, 0.9), period=4),
    "restarts-momentum-1": workloads.restart_differences(workloads.momentum(11, 0.9), period=1),
    "restarts-rates": workloads.restart_differences(
        workloads.nesterov(9, 0.9, learning_rates=RATES), period=2
    ),
    "restarts-general": workloads.restart_differences(workloads.from_dense(triangle(9)), period=5),
}


class TestEveryWorkload:
    @in_turn("name", ALL)
    def test_dense(self, name):
        a = ALL[name]
        dense = a.to_dense()
        assert dense.shape == (a.n, a.n) and not np.triu(dense, 1).any() and (dense.diagonal() > 0).all()
        if not a.has_toeplitz_factor:
            assert a.rates is None and not a.is_toeplitz
            for what in ("coefficients", "inverse_coefficients", "fraction"):
                with pytest.raises(TypeError, match="not Toeplitz times a diagonal"):
                    getattr(a, what)
            return
        column, rates = a.coefficients, np.ones(a.n) if a.rates is None else a.rates
        i, j = np.indices((a.n, a.n))
        assert np.allclose(dense, np.where(i >= j, column[np.maximum(i - j, 0)], 0.0) * rates, rtol=1e-14)

    @in_turn("name", ALL)
    def test_multiply_and_solve(self, name):
        a = ALL[name]
        for shape in ((a.n,), (a.n, 2), (a.n, 2, 2)):
            x = np.random.default_rng(1).standard_normal(shape)
            y = a.multiply(x)
            assert np.allclose(y, np.tensordot(a.to_dense(), x, axes=1), rtol=0, atol=1e-10)
            assert np.allclose(a.solve(y), x, rtol=0, atol=1e-9)
            kept = x.copy()
            assert np.allclose(
                a.adjoint_multiply(x), np.tensordot(a.to_dense().T, x, axes=1), rtol=0, atol=1e-10
            )
            assert (x == kept).all()
        found = a.multiply(np.eye(a.n)), a.solve(a.to_dense()), a.adjoint_multiply(np.eye(a.n))
        for matrix, expected in zip(found, (a.to_dense(), np.eye(a.n), a.to_dense().T), strict=True):
            assert np.allclose(matrix, expected, rtol=0, atol=1e-10)

    @in_turn("name", ALL)
    def test_fraction(self, name):
        a = ALL[name]
        if a.has_toeplitz_factor:
            p, q = a.fraction
            assert max(len(p), len(q)) <= a.n
            quotient = np.convolve(a.coefficients, q)[: a.n]
            assert np.allclose(quotient, np.pad(p, (0, a.n - len(p))), rtol=0, atol=1e-11)

    @in_turn("name", ALL)
    def test_inverse_coefficients(self, name):
        a = ALL[name]
        if not a.has_toeplitz_factor:
            return
        inverse = a.inverse_coefficients
        assert 1 <= len(inverse) <= a.n
        assert np.allclose(np.convolve(inverse, a.coefficients)[: a.n], np.eye(1, a.n)[0], atol=1e-10)

    @in_turn("name", ALL)
    def test_truncate(self, name):
        a = ALL[name]
        for steps in {1, max(1, a.n // 2), a.n}:
            block = a.truncate(steps)
            assert block.n == steps
            assert np.allclose(block.to_dense(), a.to_dense()[:steps, :steps], rtol=1e-13, atol=1e-15)
        for steps in (0, a.n + 1, True):
            with pytest.raises(ValueError, match=f"steps={steps} must lie between 1 and n={a.n}"):
                a.truncate(steps)

    @in_turn("name", ALL)
    def test_flags(self, name):
        a = ALL[name]
        dense = a.to_dense()
        constant = all(np.ptp(dense.diagonal(-lag)) <= 1e-15 for lag in range(a.n))
        assert a.is_toeplitz == (a.has_toeplitz_factor and a.rates is None)
        assert constant or not a.is_toeplitz
        assert a.is_prefix_sum == bool((dense == np.tril(np.ones((a.n, a.n)))).all()) or a.n == 1

    @in_turn("name", ALL)
    def test_json(self, name):
        a = ALL[name]
        again = _serialize.decode(json.loads(json.dumps(_serialize.encode(a))))
        assert type(again) is type(a)
        assert (again.to_dense() == a.to_dense()).all()

    @in_turn("name", ALL)
    def test_wrong_length(self, name):
        a = ALL[name]
        for call in (a.multiply, a.solve, a.adjoint_multiply):
            with pytest.raises(ValueError, match=f"axis 0 must have n={a.n} steps"):
                call(np.zeros((a.n + 1, 2)))
            with pytest.raises(ValueError, match="axis 0"):
                call(1.0)


def test_momentum_is_what_the_optimiser_does():
    """v <- beta v + eta_t g_t; theta <- (1 - lambda) theta - v, from theta = v = 0."""
    a = workloads.momentum(9, 0.8, weight_decay=0.05, learning_rates=RATES)
    gradients = np.random.default_rng(2).standard_normal((9, 3))
    theta, velocity, path = np.zeros(3), np.zeros(3), []
    for rate, gradient in zip(RATES, gradients, strict=True):
        velocity = 0.8 * velocity + rate * gradient
        theta = (1 - 0.05) * theta - velocity
        path.append(theta)
    assert np.allclose(-a.multiply(gradients), path, rtol=0, atol=1e-13)


def test_nesterov_is_what_the_optimiser_does():
    """torch.optim.SGD(nesterov=True): v <- beta v + g; step eta (g + beta v); here eta enters with g."""
    a = workloads.nesterov(9, 0.8, weight_decay=0.05, learning_rates=RATES)
    gradients = np.random.default_rng(2).standard_normal((9, 3))
    theta, velocity, path = np.zeros(3), np.zeros(3), []
    for rate, gradient in zip(RATES, gradients, strict=True):
        velocity = 0.8 * velocity + rate * gradient
        theta = (1 - 0.05) * theta - (rate * gradient + 0.8 * velocity)
        path.append(theta)
    assert np.allclose(-a.multiply(gradients), path, rtol=0, atol=1e-13)


@pytest.mark.parametrize("nesterov", [False, True])
def test_torch_moves_as_the_workload_says(nesterov):
    torch = pytest.importorskip("torch")
    n, rate, beta = 12, 0.3, 0.9
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=rate, momentum=beta, nesterov=nesterov)
    gradients = np.random.default_rng(3).standard_normal((n, 3))
    path = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        path.append(weight.detach().numpy().copy())
    make = workloads.nesterov if nesterov else workloads.momentum
    assert np.allclose(-rate * make(n, beta).multiply(gradients), path, rtol=0, atol=1e-13)


def test_momentum_without_anything_is_the_prefix_sum():
    plain = workloads.momentum(6, 0.0)
    assert plain.is_prefix_sum
    assert (plain.to_dense() == workloads.prefix_sum(6).to_dense()).all()


def test_long_workloads_cost_nothing():
    tracemalloc.start()
    prefix = workloads.prefix_sum(10**9)
    for a in (
        prefix,
        workloads.momentum(10**9, 0.9),
        workloads.nesterov(10**9, 0.9),
        workloads.exponential_decay(10**9, 0.9),
        workloads.sliding_window(10**9, 10**8),
        workloads.from_coefficients([1.0, 0.5], 10**9),
        workloads.restart_differences(prefix, period=10**6),
    ):
        assert a.truncate(10**8).n == 10**8
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def lambda_matrix(n, tau):
    """Lambda of paper 004, Appendix B, entry by entry: rows and columns counted from 1."""
    found = np.zeros((n, n))
    for t in range(1, n + 1):
        if t % tau:
            found[t - 1, t - 1] = 1 / np.sqrt(tau)
            if t > tau:
                found[t - 1, t // tau * tau - 1] = -1 / np.sqrt(tau)
        else:
            found[t - 1, t - 1] = 1
            if t > tau:
                found[t - 1, t - tau - 1] = -1
    return found


@in_turn("tau", [1, 2, 3, 5, 12, 13, 40])
@in_turn("base", ["prefix", "momentum", "general"])
def test_restart_differences_are_those_of_the_paper(base, tau):
    n = 12
    a = {
        "prefix": workloads.prefix_sum(n),
        "momentum": workloads.momentum(n, 0.9, weight_decay=0.1),
        "general": workloads.from_dense(triangle(n)),
    }[base]
    found = workloads.restart_differences(a, period=tau)
    assert np.allclose(found.to_dense(), lambda_matrix(n, tau) @ a.to_dense(), rtol=0, atol=1e-14)
    if base == "prefix":  # block-diagonal
        i, j = np.indices((n, n))
        assert not found.to_dense()[i // tau != j // tau].any()


def test_restart_differences_of_many_steps_stay_exact():
    n = 200_000
    a = workloads.restart_differences(workloads.prefix_sum(n), period=1000)
    x, y = np.random.default_rng(4).standard_normal((2, n))
    assert np.allclose(a.solve(a.multiply(x)), x, rtol=0, atol=1e-11)
    assert y @ a.multiply(x) == pytest.approx(a.adjoint_multiply(y) @ x, abs=1e-9 * n)


def test_windows_forget_what_has_left_them():
    x = np.ones(1000)
    x[10] = 1e20
    sums = workloads.sliding_window(1000, 7).multiply(x)
    assert (sums[20:] == 7.0).all()


class TestFromDense:
    def test_finds_structure(self):
        n = 9
        i, j = np.indices((n, n))
        plain = np.where(i >= j, 0.5 ** np.maximum(i - j, 0), 0.0)
        assert workloads.from_dense(np.tril(np.ones((n, n)))).is_prefix_sum
        assert workloads.from_dense(plain).is_toeplitz
        scaled = workloads.from_dense(plain * RATES)
        assert scaled.has_toeplitz_factor and not scaled.is_toeplitz
        assert np.allclose(scaled.rates, RATES / RATES[0])
        assert np.allclose(scaled.to_dense(), plain * RATES, rtol=1e-15)
        banded = workloads.from_dense(np.triu(plain, -2))
        assert banded.is_toeplitz and len(banded.fraction[0]) == 3

    @pytest.mark.parametrize("where", [(7, 0), (5, 3), (8, 7), (4, 4)])
    def test_one_entry_off_is_general(self, where):
        matrix = workloads.momentum(9, 0.5).to_dense()
        matrix[where] *= 1 + 1e-13
        found = workloads.from_dense(matrix)
        assert not found.has_toeplitz_factor
        assert (found.to_dense() == matrix).all()

    @in_turn("name", ALL)
    def test_every_workload_comes_back(self, name):
        a = ALL[name]
        again = workloads.from_dense(a.to_dense())
        assert np.allclose(again.to_dense(), a.to_dense(), rtol=1e-14, atol=0)
        assert again.has_toeplitz_factor >= a.has_toeplitz_factor
        assert again.is_prefix_sum == (a.is_prefix_sum or (a.n == 1 and a.to_dense()[0, 0] == 1.0))

    def test_one_step(self):
        assert workloads.from_dense([[2.0]]).is_toeplitz
        assert workloads.from_dense([[1.0]]).is_prefix_sum


def test_momentum_of_many_steps_keeps_its_digits():
    # the root 1 of the recursion is exact, so that the limit 1 / (1 - beta) is kept
    a = workloads.momentum(10**6, 0.9)
    assert a.coefficients[-1] == pytest.approx(10.0, rel=1e-12)
    x = np.random.default_rng(7).standard_normal(10**6)
    assert np.allclose(a.solve(a.multiply(x)), x, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", [name for name, a in ALL.items() if a.n < 20])
@pytest.mark.few(10)
def test_output_perturbation_of_every_workload(name):
    check_strategy(Output(ALL[name]))


def test_what_is_handed_out_cannot_change_the_workload():
    a = workloads.momentum(9, 0.9, learning_rates=RATES)
    for array in (a.coefficients, a.rates):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2.0
    own = np.array(RATES)
    b = Momentum(9, learning_rates=own)
    own[0] = 7.0
    assert b.rates[0] == 1.0


def test_third_parties_can_add_a_workload():
    class Window(Workload):
        """Sums of the last two gradients; gives only its first column."""

        @property
        def coefficients(self):
            return np.r_[1.0, 1.0, np.zeros(self.n - 2)]

    a = Window(5)
    assert a.is_toeplitz
    assert not a.is_prefix_sum
    assert np.allclose(a.solve(a.multiply(np.arange(5.0))), np.arange(5.0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrefixSum(0), "n=0 must be at least 1. n counts the steps."),
        (lambda: PrefixSum(-3), "n=-3 must be at least 1"),
        (lambda: PrefixSum(2.0), "n=2.0 must be an integer"),
        (lambda: PrefixSum(True), "n=True must be an integer"),
        (lambda: workloads.prefix_sum("9"), "n='9' must be an integer"),
        (lambda: Momentum(0), "n=0 must be at least 1"),
        (lambda: Momentum(3, 1.0), r"momentum=1.0 must lie in \[0, 1\)"),
        (lambda: Momentum(3, -0.1), r"momentum=-0.1 must lie in \[0, 1\)"),
        (lambda: Momentum(3, float("nan")), r"momentum=nan must lie in \[0, 1\)"),
        (lambda: Momentum(3, "0.5"), "momentum='0.5' must be a real number"),
        (lambda: Momentum(3, 0.5, 1.0), r"weight_decay=1.0 must lie in \[0, 1\)"),
        (lambda: Momentum(3, learning_rates=[1.0, 2.0]), "learning_rates has 2 entries; 3 are needed"),
        (
            lambda: Momentum(2, learning_rates=[1.0, 0.0]),
            r"learning_rates\[1\]=0.0 must be > 0: drop the steps",
        ),
        (lambda: Momentum(2, learning_rates=[1.0, np.nan]), r"learning_rates\[1\]=nan is not finite"),
        (lambda: workloads.nesterov(3, 1.0), r"momentum=1.0 must lie in \[0, 1\)"),
        (
            lambda: workloads.nesterov(2, 0.5, learning_rates=[1.0, -1.0]),
            r"learning_rates\[1\]=-1.0 must be > 0",
        ),
        (lambda: workloads.exponential_decay(3, 1.0), r"decay=1.0 must lie in \[0, 1\). With 1, these are"),
        (lambda: workloads.exponential_decay(0, 0.5), "n=0 must be at least 1"),
        (lambda: workloads.sliding_window(3, 0), "width=0 must be at least 1"),
        (lambda: workloads.sliding_window(3, 1.5), "width=1.5 must be an integer"),
        (lambda: workloads.sliding_window(0, 3), "n=0 must be at least 1"),
        (lambda: workloads.from_coefficients([0.0, 1.0]), r"coefficients\[0\]=0.0 must be > 0"),
        (lambda: workloads.from_coefficients([1.0, 1.0], 1), "coefficients has 2 entries; at most n=1"),
        (lambda: workloads.from_coefficients([1.0, np.inf]), "is not finite"),
        (lambda: workloads.from_coefficients([]), "non-empty 1-dimensional"),
        (lambda: workloads.from_dense([[1.0, 0.0]]), r"matrix has shape \(1, 2\); it must be square"),
        (lambda: workloads.from_dense([[1.0, 1.0], [0.0, 1.0]]), "entries above its diagonal"),
        (lambda: workloads.from_dense([[1.0, 0.0], [1.0, 0.0]]), r"matrix\[1, 1\]=0.0 must be > 0"),
        (lambda: workloads.from_dense([[np.nan]]), "is not finite"),
        (lambda: LowerTriangular(np.eye(2), 3), "n=3 differs from the matrix's 2 rows"),
        (lambda: workloads.scheduled(3, [1.0]), "base=3 must be a Workload"),
        (lambda: workloads.scheduled(PrefixSum(3), [1.0]), "learning_rates has 1 entries; 3 are needed"),
        (lambda: Scheduled(PrefixSum(3), np.ones(3), 4), "n=4 differs from the workload's 3 steps"),
        (lambda: workloads.restart_differences(PrefixSum(3), period=0), "period=0 must be at least 1"),
        (
            lambda: workloads.restart_differences(np.eye(3), period=2),
            r"shape \(3, 3\) .* workloads.from_dense",
        ),
        (lambda: RestartDifferences(PrefixSum(3), 2, 4), "n=4 differs from the workload's 3 steps"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()

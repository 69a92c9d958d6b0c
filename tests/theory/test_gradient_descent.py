"""Terms of paper 004 against B written out; its bounds against exact runs of quadratics."""

import math

import numpy as np
import pytest

import anechoic as an
from anechoic import theory
from anechoic.theory.gradient_descent import (
    anti_pgd_bound,
    convex_bound,
    convex_rate,
    gradient_norms,
    named_factorizations,
    nonconvex_bound,
    pgd_bound,
    restart_terms,
)
from tests.marks import in_turn

NAMES = ["PGD", "Anti-PGD", "Chess-PGD", "tree, online", "tree, full"]


def sums(strategy, period):
    """Squared rows of B one by one: all, those within a period, across periods, and the last restart."""
    n = strategy.n
    left = strategy.correlate(np.eye(strategy.rows))
    b = np.vstack([np.zeros(strategy.rows), np.tril(np.ones((n, n))) @ left])
    within = sum(np.square(b[t] - b[t // period * period]).sum() for t in range(1, n + 1))
    across = sum(np.square(b[t] - b[t - period]).sum() for t in range(period, n + 1, period))
    return np.square(b).sum(), within, across, np.square(b[n // period * period]).sum()


@in_turn("name", NAMES)
@in_turn(("n", "period"), [(7, 3), (8, 4), (5, 9), (2, 1)])
def test_terms_are_sums_over_rows_of_the_decoder(name, n, period):
    strategy = named_factorizations(n)[name]
    total, within, across, last = sums(strategy, period)
    found = restart_terms(strategy, period)
    assert found.within == pytest.approx(within, abs=1e-12)
    assert found.across == pytest.approx(across, abs=1e-12)
    assert found.last == pytest.approx(last, abs=1e-12)
    assert found.total == pytest.approx(total)
    assert found.nonconvex(2.0) == pytest.approx(4 / (n * period) * (within / period + across))
    assert found.convex(3.0) == pytest.approx((within / period + across + found.last) / (n * 3 * period))
    assert found.online(0.1, 2.0) == pytest.approx(0.2 * math.sqrt(total / n))


def test_chess_board():
    chess = named_factorizations(5)["Chess-PGD"]
    decoder = np.tril(np.ones((5, 5))) @ chess.solve(np.eye(5))
    board = [[math.sqrt(2) * ((i - j) % 2 == 0 and i >= j) for j in range(5)] for i in range(5)]
    assert decoder == pytest.approx(np.array(board), abs=1e-12)
    assert chess.largest_column_norm() == pytest.approx(1.0)


def test_the_terms_tell_chess_from_plain():
    """Equal Frobenius norms (in the limit), but Chess-PGD diverges: its restart term grows with T."""
    for n in (64, 256):
        plain, chess = (restart_terms(named_factorizations(n)[k], 8) for k in NAMES[:3:2])
        assert chess.total == pytest.approx(plain.total, rel=0.02)
        assert chess.restart > n / 40 * plain.restart


def run(strategy, eigenvalues, rate, sigma, displacement):
    """Exact E f(x_t) - f* and E|grad f(x_t)|^2 of gradient descent on a quadratic."""
    problem = theory.LinearRegression(eigenvalues, rate, batch_size=math.inf)
    order = an.sampling.External(an.participation.Single(), 1, steps=strategy.n)
    per_entry = sigma / math.sqrt(len(eigenvalues)) / strategy.largest_column_norm()
    mechanism = an.calibrate(strategy, sampling=order, noise_multiplier=per_entry, delta=1e-6)
    values = theory.trajectory(problem, mechanism, displacement=displacement)
    return values, gradient_norms(problem, mechanism, displacement=displacement)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("period", [4, 16])
def test_no_quadratic_exceeds_the_bounds(name, period):
    strategy, sigma = named_factorizations(48)[name], 3.0
    displacement, values = np.array([1.0, -2.0, 0.5]), np.array([2.0, 1.0, 0.01])
    _, gradients = run(strategy, values, 1 / (2.0 * period), sigma, displacement)
    start = float(values @ displacement**2) / 2
    bound = nonconvex_bound(strategy, smoothness=2.0, period=period, start_gap=start, sigma=sigma)
    assert gradients.mean() <= bound
    rate = convex_rate(48, 2.0, period)
    suboptimality, _ = run(strategy, values, rate, sigma, displacement)
    distance = float(np.linalg.norm(displacement))
    assert suboptimality.mean() <= convex_bound(
        strategy, smoothness=2.0, period=period, distance=distance, sigma=sigma
    )


@in_turn("name", NAMES)
@in_turn(("n", "period"), [(48, 4), (33, 16), (9, 30)])
def test_bounds_have_the_constants_of_appendix_c(name, n, period):
    """The last inequality of C.2, and of C.3 over gamma (T + 1) / 4, from rows of B one by one."""
    strategy, smooth, sigma = named_factorizations(n)[name], 2.0, 3.0
    _, within, across, last = sums(strategy, period)
    rate = 1 / (smooth * period)
    ours = nonconvex_bound(strategy, smoothness=smooth, period=period, start_gap=5.0, sigma=sigma)
    noise = 4 * rate**2 * smooth**2 * within + 40 * smooth * rate * across
    assert ours * (n + 1) == pytest.approx(8 * 5.0 / rate + noise * sigma**2)
    rate = convex_rate(n, smooth, period)
    assert rate == pytest.approx(1 / (8 * smooth * period * math.log2(n)))
    ours = convex_bound(strategy, smoothness=smooth, period=period, distance=7.0, sigma=sigma)
    inside = 3 * rate**2 * (smooth * rate * within + across + last) * sigma**2 + 7.0**2
    assert ours * rate * (n + 1) / 4 == pytest.approx(inside)


@pytest.mark.parametrize(
    ("name", "bound", "share", "reached"),
    [("PGD", pgd_bound, 2, 0.32), ("Anti-PGD", anti_pgd_bound, 4, 0.14)],
)
def test_the_noise_terms_of_propositions_4_4_and_4_5_are_tight(name, bound, share, reached):
    """From the optimum, at the largest rate and curvature: a third and a seventh of the bounds, no less."""
    smooth, sigma, steps = 2.0, 3.0, 200
    rate = 1 / (share * smooth)
    found, _ = run(named_factorizations(steps)[name], np.array([smooth]), rate, sigma, [0.0])
    at_most = bound(steps=steps, smoothness=smooth, rate=rate, distance=0.0, sigma=sigma)
    assert reached * at_most <= found.mean() <= at_most
    # of the order of the noise term at other rates too: gamma sigma^2, and L gamma^2 sigma^2
    order = math.log(bound(steps=steps, smoothness=smooth, rate=rate / 8, distance=0.0, sigma=sigma))
    assert (math.log(at_most) - order) / math.log(8) == pytest.approx(1.0 if name == "PGD" else 2.0)


def test_appendix_f_what_each_proof_can_give_for_pgd():
    """Virtual iterates of PGD leave the optimum as L T gamma^2 sigma^2, real ones keep to gamma sigma^2."""
    smooth, rate, sigma = 1.0, 0.2, 3.0
    for steps in (100, 400):
        real, virtual = np.zeros(steps), np.zeros(steps)  # coefficients of z_1 … z_T
        excess = []
        for t in range(steps):
            virtual = virtual - rate * smooth * real
            real = (1 - rate * smooth) * real
            real[t] -= rate
            excess.append([smooth / 2 * sigma**2 * (x @ x) for x in (real, virtual)])
        ours, theirs = np.mean(excess, axis=0)
        assert ours <= rate * sigma**2
        assert theirs == pytest.approx(smooth * rate**2 * sigma**2 * steps / 4, rel=0.15)


@pytest.mark.parametrize("keep", [0.3, 0.9, 1.0])
def test_propositions_4_4_and_4_5_and_their_floors(keep):
    """Exact runs on quadratics lie below the bounds; Appendix E's floors lie below the last step."""
    smooth, sigma, steps = 2.0, 3.0, 200
    displacement, values = np.array([1.0, -2.0, 0.5]), np.array([2.0, 1.0, 0.01])
    given = {"steps": steps, "smoothness": smooth, "distance": float(np.linalg.norm(displacement))}
    for name, bound, rate, floor in (
        ("PGD", pgd_bound, keep / (2 * smooth), lambda r: r * sigma**2 / 8),
        ("Anti-PGD", anti_pgd_bound, keep / (4 * smooth), lambda r: smooth * r**2 * sigma**2 / 2),
    ):
        strategy = named_factorizations(steps)[name]
        suboptimality, _ = run(strategy, values, rate, sigma, displacement)
        assert suboptimality.mean() <= bound(**given, rate=rate, sigma=sigma)
        # one mode of curvature L carries all noise: f = L |x|^2 / 2
        single, _ = run(strategy, np.array([smooth]), rate, sigma, [1.0])
        assert single[-1] >= floor(rate) * (1 - 1e-9)


def test_a_sampled_run_has_the_exact_gradients():
    strategy, rng = named_factorizations(9)["Chess-PGD"], np.random.default_rng(0)
    values, rate, sigma = np.array([1.0, 0.2]), 0.3, 1.5
    _, exact = run(strategy, values, rate, sigma, [1.0, 1.0])
    theta = np.ones((20_000, 2))
    for row in strategy.solve(rng.standard_normal((9, 40_000))).reshape(9, -1, 2):
        theta = theta - rate * (theta * values + sigma / math.sqrt(2) * row)
    norms = np.square(theta * values).sum(axis=1)
    assert abs(norms.mean() - exact[-1]) < 3 * norms.std() / math.sqrt(20_000)

"""Errors of the companion papers (docs/errata.md): each test shows that the printed form fails."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from anechoic import participation, strategies, theory, workloads
from anechoic.losses.dispatch import loss
from anechoic.theory.ftrl import population_risk_orders
from anechoic.theory.lq_noise import ExponentialPower
from anechoic.theory.optimal import asymptotic_loss, independent_noise
from anechoic.theory.problems import MeanEstimation


def test_p1_last_iterate_of_private_ftrl_is_less_private_than_claimed():
    """Gradients beta w + z: earlier noise fades by a = 1 - eta beta a step, and does not add up."""
    sensitivity, noise = 2.0, 1.0  # a last gradient that differs by 2 L, L = 1

    def ratio_to_claim(steps, fade):
        variance = noise**2 * sum(fade ** (2 * t) for t in range(steps))
        claimed = sensitivity**2 / (steps * noise**2)  # (alpha, 4 alpha L^2 / (T sigma^2)), over alpha
        return sensitivity**2 / (2 * variance) / claimed

    steps = 10_000
    assert ratio_to_claim(steps, 1.0) == pytest.approx(0.5)  # where all noise stays, the claim holds
    assert ratio_to_claim(steps, 1 - 1 / math.sqrt(steps)) == pytest.approx(99.5, abs=0.1)
    assert ratio_to_claim(steps, 0.0) == pytest.approx(steps / 2)


@pytest.mark.parametrize(
    ("q", "scale", "shift", "order", "true", "ratio"),
    [(2.0, 1.0, 2.0, 1.5, 6.0, 7e3), (3.0, 2.0, 1.0, 1.2, 0.5, 1e8)],
)
def test_p1_also_in_the_lq_setting(q, scale, shift, order, true, ratio):
    """Theorems 4.3, 5.5 / C.2: eta beta = 1 leaves the noise of the last step alone, whatever T is.

    So the last example has the divergence of one row of noise, in the range of alpha that is claimed.
    """
    steps = 10_000
    assert 1 < order < 2 ** (q - 1) / (2 ** (q - 1) - 1)
    claimed = 2 * shift**q / (steps ** (q - 1) * scale**q)
    exact = ExponentialPower(q, scale).divergence(order, shift)
    if q == 2.0:
        assert exact == pytest.approx(order * shift**2 / scale**2)  # Gaussian, of variance scale^2 / 2
    assert exact == pytest.approx(true, abs=0.05)
    assert exact > ratio * claimed


def test_p2_noise_in_the_first_step_alone_can_be_erased():
    """Private FTRL, Theorem 4.4: with eta beta = 1 the state after the second step does not hold it."""
    noise = np.random.default_rng(1).standard_normal(100)
    eta = beta = 1.0
    state = -eta * noise
    state = state - eta * beta * state
    assert np.all(state == 0.0)


def test_p3_renyi_divergence_of_shifted_exponential_power_noise():
    """Lemma C.1: q = 3, alpha = 1.2, d = 10^4 and an even shift of norm sigma: claimed 1, true 39."""
    q, alpha, d = 3, 1.2, 10_000
    shift = d ** (-1 / q)
    mass = quad(lambda x: math.exp(-(abs(x) ** q)), -8, 8)[0]

    def integrand(x):
        p, moved = math.exp(-(abs(x) ** q)), math.exp(-(abs(x - shift) ** q))
        return moved**alpha * p ** (1 - alpha) / mass if p > 0 else 0.0

    one = math.log(quad(integrand, -6, 6, epsabs=1e-13, epsrel=1e-12, limit=200)[0]) / (alpha - 1)
    assert d * one == pytest.approx(39, abs=1)


def test_p4_chess_pgd_has_the_loss_of_pgd_only_in_the_limit():
    """Gradient Descent with Linearly Correlated Noise, Example A.1: equal losses are claimed for every T."""

    def ratio(steps):
        chess = math.sqrt(2) * np.array(
            [[float(t >= s and (t - s) % 2 == 0) for s in range(steps)] for t in range(steps)]
        )
        c = np.linalg.inv(chess) @ np.tril(np.ones((steps, steps)))
        mine = np.linalg.norm(c, axis=0).max() * np.linalg.norm(chess)
        return mine, np.linalg.norm(np.tril(np.ones((steps, steps))))

    assert ratio(4) == pytest.approx((3.464, 3.162), abs=5e-4)
    mine, plain = ratio(400)
    assert mine / plain == pytest.approx(1.0, abs=0.01)


def test_p5_limiting_sensitivity_needs_minimum_phase():
    """Correlated Noise Provably Beats …, Eq. 5: beta = (1, -2) gives 1/3, the truth is infinite."""
    integral = quad(lambda w: 1 / abs(1 - 2 * np.exp(1j * w)) ** 2, -math.pi, math.pi)[0] / (2 * math.pi)
    assert integral == pytest.approx(1 / 3)
    truth = [strategies.Toeplitz(n, 2.0 ** np.arange(n)).largest_column_norm() ** 2 for n in (4, 8, 16)]
    assert truth == pytest.approx([(4.0**n - 1) / 3 for n in (4, 8, 16)])


def test_p8_lags_of_the_multiplier_are_subtracted():
    """Theorem E.1: mu = 0, L = 1, gradient max(theta, 0), theta = 1, -1, 1, …, and lambda_1 = lambda_0."""
    theta = np.array([1.0, -1.0] * 4)
    gradient = np.maximum(theta, 0.0)
    rest = theta - gradient  # L theta - g, beside g - mu theta = g
    lagged = gradient @ np.roll(rest, 1)
    assert gradient @ rest + lagged == -4.0  # printed: must be >= 0
    assert gradient @ rest - lagged == 4.0


@pytest.mark.slow
def test_p9_the_programme_of_figure_3_gives_dp_sgd_more_than_it_has():
    problem = theory.StronglyConvex(condition=100.0, learning_rate=1.0)
    plain = strategies.make_endless(strategies.BandedInverse(1, [1.0]))
    drawn = theory.strongly_convex_bound(problem, plain, rho=0.5, causal=False).value
    contraction = 0.5 / (1 - 0.99**2)  # L / 2 E|d|^2, E|d|^2 <= (1 - eta mu)^2 E|d|^2 + eta^2 s^2
    assert problem.contraction_bound(0.5) == pytest.approx(contraction)
    assert drawn > 5 * contraction
    optimised = theory.optimized_strongly_convex_bound(problem, rho=0.5, causal=False, turns=2)
    assert contraction < optimised.bound.value < drawn


def test_p12_the_ratio_of_table_4_is_that_of_its_cells():
    """Row 1/k: its cells give log^3; row 1/k^2: they give log^2, and the ratio is printed with log^3."""
    shares = []
    for d in (64, 512):
        problem = theory.LinearRegression(1.0 / np.arange(1, d + 1) ** 2, 1e-3)
        rule = asymptotic_loss(problem, strategies.endless.damped(1e-3 / d**2)) ** 2
        ratio = rule / independent_noise(problem).loss ** 2 * d / 1e-3
        shares.append([ratio / math.log(d / 1e-3) ** power for power in (2, 3)])
    squared, cubed = np.transpose(shares)
    assert squared[1] == pytest.approx(squared[0], rel=0.12)  # a constant
    assert cubed[1] < 0.87 * cubed[0]


def test_p13_the_least_noise_has_the_scale_of_the_sensitivity():
    """Theorem 2.1 and Eq. (19): G^2 sigma_dp^2 with sigma_dp^2 = gamma^2 / (2 rho) counts gamma twice."""
    problem, rho = MeanEstimation(0.1), 0.7
    best = theory.optimal_noise(problem)
    exact = theory.asymptotic_suboptimality(problem, best.strategy, rho=rho).privacy
    assert exact == pytest.approx(problem.smallest_loss**2 / (2 * rho))
    printed = problem.smallest_loss**2 * best.strategy.limiting_norm**2 / (2 * rho)
    assert printed > 1.4 * exact


def test_p14_sensitivity_is_a_column_norm():
    c = strategies.BandedToeplitz(6, [1.0, 0.5, 0.5])
    moved = np.zeros((6, 1))
    moved[0] = 1.0  # one row of G, changed by a vector of length 1
    assert np.linalg.norm(c.to_dense() @ moved) == pytest.approx(c.largest_column_norm())
    assert c.largest_column_norm() ** 2 != pytest.approx(c.largest_column_norm())


def test_p15_the_coefficient_of_the_first_noise_of_anti_pgd():
    """004, Appendix E.2: x_{t+1} = (1 - gamma L) x_t - gamma z_{t+1} + gamma z_t, z_0 = 0."""
    rate, smooth, steps = 0.3, 1.7, 6
    x = np.zeros(steps + 1)  # coefficients of z_1 … z_steps
    for t in range(steps):
        x = (1 - rate * smooth) * x
        x[t + 1] -= rate
        x[t] += rate if t else 0.0
    keep = 1 - rate * smooth
    assert x[1] == pytest.approx(rate**2 * smooth * keep ** (steps - 2))
    assert x[1] != pytest.approx(rate * keep ** (steps - 1))


def test_p17_the_proof_of_anti_pgd_needs_a_quarter():
    """Appendix D: gamma (1 - 2 L gamma) is at least gamma / 2 for gamma <= 1 / (4 L) only."""
    smooth = 1.0
    for rate, holds in ((0.25, True), (0.49, False)):
        assert (rate * (1 - 2 * smooth * rate) >= rate / 2) == holds


def test_p16_the_sum_in_theorem_a3_is_harmonic():
    """001: the recurrence E S_{k-1} <= E S_k + eta G^2 / (2 k) adds up H_{T-1}, which exceeds log T."""
    harmonic = sum(1 / k for k in range(1, 1000))
    assert harmonic > math.log(1000) + 0.5
    printed = math.log(1000) / 2 / math.sqrt(1000) + 1.5 / math.sqrt(1000)
    ours = theory.last_iterate_excess(1000, gradient_bound=1.0, distance=1.0)
    assert ours == pytest.approx((harmonic + 3) / 2 / math.sqrt(1000))
    assert ours > printed


def test_p10_the_gradient_is_that_of_half_the_square():
    x, y, theta, step = np.array([0.3, -2.0]), 0.7, np.array([1.0, 0.5]), 1e-6
    printed = x * (x @ theta) - y * x
    for factor, matches in ((1.0, False), (0.5, True)):
        slope = [
            factor * ((y - (theta + e) @ x) ** 2 - (y - (theta - e) @ x) ** 2) / (2 * step)
            for e in step * np.eye(2)
        ]
        assert (np.abs(slope - printed).max() < 1e-6) == matches


def test_p11_learning_rates_near_one_gain_nothing():
    """Theorem 2.1: at eta = 1 the iterate is z + w, of variance r_0 gamma^2 >= 1; the order printed is 0."""
    for eta in (0.99, 0.999999):
        problem = MeanEstimation(eta)
        best = problem.smallest_loss**2
        printed = eta**2 * math.log(1 / eta) ** 2
        assert best == pytest.approx(independent_noise(problem).loss ** 2, rel=1e-3)
        assert printed < 1e-3 * best


def test_p6_directions_of_balls_in_bins():
    """arXiv 2410.06266, Lemma 3.2, exchanges them: taking an example out compares the mixture with N(0, 1).

    One step that an example joins with probability 1/2: log(without / with) is at most log 2, so that adding
    costs nothing at epsilon = log 2, and removing does.
    """
    x = np.linspace(-30, 30, 200_001)
    without = norm.pdf(x)
    with_it = (norm.pdf(x) + norm.pdf(x, 1.0)) / 2

    def hockey_stick(p, q, epsilon):
        return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x))

    removing, adding = (
        hockey_stick(with_it, without, math.log(2)),
        hockey_stick(without, with_it, math.log(2)),
    )
    assert adding == pytest.approx(0, abs=1e-12)  # log(without/with) <= log 2 always
    assert removing > 0.01


def test_p7_headers_of_the_federated_table_are_exchanged():
    """arXiv 2408.08868, n = 2052, b = 342, k = 6: DP-SGD's 78.48 stands under Max, and is the RMS loss."""
    a, schema = workloads.prefix_sum(2052), participation.MinSep(342, 6)
    identity = strategies.Identity(2052)
    assert loss(a, identity, schema, "rms") == pytest.approx(78.48, abs=0.01)
    assert loss(a, identity, schema, "max") == pytest.approx(110.96, abs=0.01)


def test_p18_rows_of_chess_pgd_of_opposite_parity_share_nothing():
    """004, Example A.1: |b_t - b_t'|^2 <= t is printed; for opposite parity it is |b_t|^2 + |b_t'|^2."""
    chess = math.sqrt(2) * np.array([[s <= t and (t - s) % 2 == 0 for s in range(12)] for t in range(12)])
    squared = np.square(chess[11] - chess[10]).sum()  # rows 12 and 11, counted from 1
    assert squared == pytest.approx(2 * 12)
    assert squared > 12


def test_p19_the_geometric_sum_of_pgd():
    """004, Appendix E.1: gamma L = 0.1, T = 10."""
    share, steps = 0.1, 10
    true = sum((1 - share) ** (2 * j) for j in range(steps))
    assert true == pytest.approx((1 - (1 - share) ** (2 * steps)) / (2 * share - share**2))
    assert true >= 1 / (4 * share)  # what is concluded from it
    assert (1 - (1 - 2 * share) ** (2 * steps)) / (2 * share - share**2) > 1.1 * true


@pytest.mark.parametrize("steps", [2, 7, 200])
def test_p20_the_inner_sum_of_the_virtual_sequence_ends_one_term_earlier(steps):
    """004, Appendix E.3: coefficients of z_1 … z_{T-1} in x~_T, step by step."""
    rate, smooth = 0.3, 0.5
    keep = 1 - rate * smooth
    noise, virtual = np.zeros(steps - 1), np.zeros(steps - 1)
    for t in range(steps):  # x~_{t+1} = (1 - gamma L) x~_t + gamma L (x~_t - x_t)
        virtual = keep * virtual + rate * smooth * rate * noise
        noise[t : t + 1] = 1.0  # z_{t+1} is in x_{t+1} from now on
    sums = [sum(keep**i for i in range(j)) for j in range(1, steps)]
    assert (virtual @ virtual) == pytest.approx(rate**4 * smooth**2 * np.square(sums).sum())
    assert sums == pytest.approx([(1 - keep**j) / (rate * smooth) for j in range(1, steps)])
    printed = [sum(keep**i for i in range(j + 1)) for j in range(1, steps)]
    assert printed[0] > 1.8 * (1 - keep) / (rate * smooth)  # the two sides of the printed equality, j = 1
    assert rate**4 * smooth**2 * np.square(printed).sum() > (virtual @ virtual) * (1 + 1e-3)
    if steps >= 2 * math.log(4) / (rate * smooth):  # the floor that is concluded stands
        assert (virtual @ virtual) >= rate**2 * steps / 4


def test_p21_the_sensitivity_of_anti_pgd_is_a_root():
    """000, Appendix C.5: beta = (1, -1) has the inverse of all ones."""
    for n in (4, 9, 100):
        found = strategies.BandedInverse(n, [1.0, -1.0]).largest_column_norm()
        assert found == pytest.approx(math.sqrt(n))
        assert found < n


def test_p22_the_noise_of_theorem_4_1_is_larger_than_theorem_5_4_needs():
    """001: sigma = 2 alpha L / sqrt(T eps) in (alpha, 4 alpha L^2 / (T sigma^2)) is eps / alpha."""
    alpha, bound, steps, epsilon = 8.0, 1.5, 400, 0.7
    stated = 2 * alpha * bound / math.sqrt(steps * epsilon)
    assert 4 * alpha * bound**2 / (steps * stated**2) == pytest.approx(epsilon / alpha)
    needed = stated / math.sqrt(alpha)
    assert 4 * alpha * bound**2 / (steps * needed**2) == pytest.approx(epsilon)


def test_p23_the_damping_of_anti_pgd_is_eta_lambda():
    """000, Proposition C.24: beta = (1, -(1 - eta lambda)), and a bound in nu, which is eta lambda."""
    problem = theory.LinearRegression(1.0 / np.arange(1, 17), 0.01)
    eta, trace = 0.01, float(np.sum(problem.eigenvalues))
    shares = []
    for damping in (0.1, 1.0, 10.0):  # lambda
        noise = strategies.make_endless(strategies.BandedInverse(2, [1.0, -(1 - eta * damping)]))
        exact = asymptotic_loss(problem, noise) ** 2
        shares.append([exact / (eta * (nu * 16 + eta * trace / nu)) for nu in (eta * damping, damping)])
    right, printed = np.transpose(shares)
    assert right.max() < 3 * right.min()
    assert printed.max() > 10 * printed.min()


def test_p24_the_strongly_convex_rows_of_table_1_lost_a_square():
    """001, Table 1: d / (eps^2 n) as printed is worse than what convexity alone gives, for n = d = 10^4.

    With D = L / lambda, which strong convexity gives, L D max(1 / sqrt(n), sqrt(d) / (eps n)) holds too.
    """
    n, d, epsilon = 10_000, 10_000, 1.0
    convex = population_risk_orders(n, d, epsilon)["best known"]  # L = lambda = 1
    assert 1 / n + d / (epsilon**2 * n) > 50 * convex
    ours = 1 / n + d / (epsilon**2 * n**2)
    assert convex**2 <= ours <= 2 * convex**2  # the square of the convex rate, as without privacy


def test_p25_the_trace_of_the_identity_is_its_dimension():
    """000, Lemma F.19: |tr(A_1 … A_k)| <= d is right, and its proof has tr(I) = 1."""
    a = np.diag([0.9, 0.8, 0.7])
    assert 1 < np.trace(a @ a) <= 3
    assert np.trace(np.eye(3)) == 3
    # Lemma F.18, second line: -2 eta tr(M M) should be -2 eta tr(H M)
    h, m, eta = np.diag([1.0, 0.1]), np.diag([1.0, 5.0]), 0.05
    rng = np.random.default_rng(0)
    x = np.where(rng.random((200_000, 2)) < 0.5, 1.0, -1.0) * np.sqrt(np.diag(h))
    left = np.trace(m) + np.mean(
        -2 * eta * np.einsum("ni,ij,nj->n", x, m, x)
        + eta**2 * np.square(x).sum(1) * np.einsum("ni,ij,nj->n", x, m, x)
    )
    fourth = float(np.square(x[0]).sum()) * h  # |x|^2 is the same for all signs
    assert left == pytest.approx(np.trace(m) - 2 * eta * np.trace(h @ m) + eta**2 * np.trace(fourth @ m))
    assert left > np.trace(m) - 2 * eta * np.trace(m @ m) + eta**2 * np.trace(fourth @ m) + 1


def test_p26_an_integral_without_its_root_and_a_minimum_that_is_not_reached():
    """000, Lemma F.13, and the first equality of Lemma F.20."""
    a = 0.8
    found = quad(lambda w: 1 / (1 + a * math.cos(w)), -math.pi, math.pi)[0]
    assert found == pytest.approx(2 * math.pi / math.sqrt(1 - a**2))
    assert found < 0.7 * 2 * math.pi / (1 - a**2)  # printed
    a, rho, t = 0.1, 0.5, 11
    tau = min(t - 1, math.log(1 / rho) / a)
    reached = tau + math.exp(-a * tau) / (rho * a)
    assert tau < t - 1 < reached == pytest.approx((1 + math.log(1 / rho)) / a)


def test_every_entry_has_a_test_and_every_test_an_entry():
    here = Path(__file__).parent
    page = (here.parents[1] / "docs" / "errata.md").read_text("utf-8")
    entries = set(re.findall(r"^\| ([MP]\d+) \|", page, flags=re.MULTILINE))
    sources = "".join(path.read_text("utf-8") for path in here.glob("test_*.py"))
    tests = {name.upper() for name in re.findall(r"^def test_([mp]\d+)_", sources, flags=re.MULTILINE)}
    assert entries == tests and len(entries) >= 36

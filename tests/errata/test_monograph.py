"""Misprints of the monograph (docs/errata.md): each test shows that the printed form fails and ours holds."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import toeplitz as dense_toeplitz

import anechoic as an
from anechoic import optimize, participation, strategies, workloads
from anechoic.algebra import toeplitz
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies.tree_aggregation import TreeAggregation
from anechoic.theory.learning import convex_risk
from anechoic.theory.participation import conjecture_4_7
from studies.published import monograph


def lower(column):
    """Lower-triangular Toeplitz matrix."""
    return dense_toeplitz(column, np.r_[column[0], np.zeros(len(column) - 1)])


PRE = np.tril(np.ones((8, 8)))
ROOT = strategies.Toeplitz.square_root(workloads.prefix_sum(8)).to_dense()


def test_m1_frobenius_norm_in_theorem_1_11():
    matrix = np.array([[1.0, -2.0], [2.0, -1.0]])
    assert matrix.sum() == 0  # printed: the root of the sum of entries
    assert math.sqrt(np.square(matrix).sum()) == pytest.approx(np.linalg.norm(matrix))


def test_m2_condition_of_a_pre_in_eq_1_6():
    printed = np.array([[1.0 if t <= tau else 0.0 for tau in range(4)] for t in range(4)])
    mine = workloads.prefix_sum(4).to_dense()
    assert not np.array_equal(printed, mine)
    assert np.array_equal(printed.T, mine)


def test_m3_first_noisy_gradient_of_the_one_parameter_family_in_section_1_4_3():
    rng = np.random.default_rng(0)
    g, z = rng.standard_normal((2, 5))
    noisy = g + np.linalg.inv(lower(0.6 ** np.arange(5.0))) @ z
    assert noisy[0] == g[0] + z[0] != g[1] + z[1]  # printed: g_1 + z_1 at t = 0
    assert np.allclose(noisy[1:], g[1:] + z[1:] - 0.6 * z[:-1])


def test_m4_index_of_the_decoder_row_before_eq_1_18():
    """theta_t is the sum of the gradients 0 … t - 1, so its noise is row t - 1 of B Z, not row t."""
    variance_of_sum = np.arange(9.0)  # of the first t independent gradients
    rows = np.square(PRE).sum(axis=1)
    assert not np.array_equal(rows, variance_of_sum[:8])  # printed
    assert np.array_equal(rows, variance_of_sum[1:])


def test_m5_inverse_coefficients_in_remark_2_6():
    c = ROOT[:, 0]
    inverse = np.linalg.inv(ROOT)[:, 0]
    printed = np.r_[1.0, c[2:] - c[1:-1]]
    assert not np.allclose(printed, inverse[:7])
    assert np.allclose(np.r_[1.0, c[1:] - c[:-1]], inverse)


def test_m6_algorithm_2_1_divides_the_fresh_row_too():
    c, z = np.array([2.0, 1.0, 0.5]), np.random.default_rng(1).standard_normal(8)
    printed, mine = np.zeros(8), np.zeros(8)
    for t in range(8):
        past = [(j, t - j) for j in range(1, min(t, 2) + 1)]
        printed[t] = z[t] - sum(c[j] * printed[s] for j, s in past) / c[0]
        mine[t] = (z[t] - sum(c[j] * mine[s] for j, s in past)) / c[0]
    exact = strategies.BandedToeplitz(8, c).solve(z)
    assert not np.allclose(printed, exact)
    assert np.allclose(mine, exact)


def test_m7_the_matrix_of_recursion_2_13_has_alternating_signs():
    decay, z = 0.7, np.random.default_rng(2).standard_normal(6)
    rows = np.zeros(6)
    for t in range(6):
        rows[t] = z[t] - (decay * rows[t - 1] if t else 0.0)
    printed = lower(np.r_[1.0, -(decay ** np.arange(1.0, 6.0))])
    assert not np.allclose(printed @ z, rows)
    assert np.allclose(lower((-decay) ** np.arange(6.0)) @ z, rows)


def test_m8_rows_of_the_tree_decoder_hold_their_own_step():
    """Section 2.7 defines row t by the sum g_0 + … + g_(t-1); its matrix, and B C = A_pre, take g_t in."""

    def decoder(ends):
        nodes = [(j * 2**h, (j + 1) * 2**h) for h in range(4) for j in range(8 // 2**h)]
        c = np.array([[1.0 if a <= t < e else 0.0 for t in range(8)] for a, e in nodes])
        b = np.zeros((8, len(nodes)))
        for t, end in enumerate(ends):
            start = 0
            while start < end:
                size = max(2**h for h in range(4) if start % 2**h == 0 and start + 2**h <= end)
                b[t, nodes.index((start, start + size))] = 1.0
                start += size
        return b @ c

    assert not np.array_equal(decoder(range(8)), PRE)  # printed
    assert np.array_equal(decoder(range(1, 9)), PRE)


def test_m9_baselines_approximate_the_square_root_badly_but_not_by_root_n():
    """After Theorem 2.26: err(r), said to be of order sqrt(n) for r = 1 and 1 - x, is at most 2.5."""
    for n in (10, 10**3, 10**6):
        x = (1 - 1 / n) * np.exp(2j * np.pi * np.linspace(0, 1, 4001))
        for r in (np.ones_like(x), 1 - x):
            assert np.abs(r - np.sqrt(1 - x)).max() < 2.5


def blt_pair(n):
    """Scales and decays of a BLT and of its inverse, and both matrices."""
    scale, decay = np.array([0.3, 0.2]), np.array([0.9, 0.4])
    c = strategies.BLT(n, scale, decay).to_dense()
    inverse_decay = np.linalg.eigvals(np.diag(decay) - np.outer(np.ones(2), scale)).real
    inverse_scale = [
        -np.prod(inverse_decay[i] - decay) / np.prod(np.delete(inverse_decay[i] - inverse_decay, i))
        for i in range(2)
    ]
    return scale, decay, np.array(inverse_scale), inverse_decay, c


def geometric(decay, n):
    return (1 - decay**n) / (1 - decay)


@pytest.mark.parametrize("n", [2, 7, 30])
def test_m10_linear_terms_of_lemma_2_29(n):
    _, _, a, x, c = blt_pair(n)
    b = np.tril(np.ones((n, n))) @ np.linalg.inv(c)
    pairs = list(itertools.product(range(2), repeat=2))

    def row(sign):
        linear = sum(a[i] * (n - geometric(x[i], n)) / (1 - x[i]) for i in range(2))
        double = sum(
            a[i]
            * a[j]
            * (n - geometric(x[i], n) - geometric(x[j], n) + geometric(x[i] * x[j], n))
            / ((1 - x[i]) * (1 - x[j]))
            for i, j in pairs
        )
        return n + sign * 2 * linear + double

    def frobenius(sign):
        def s(y):
            return 1 - y + y / (1 - y) * (n - geometric(y, n))

        half = n * (n - 1) / 2
        linear = sum(a[i] * (1 + (half - s(x[i])) / (1 - x[i])) for i in range(2))
        double = sum(
            a[i] * a[j] * (1 + (half - s(x[i]) - s(x[j]) + s(x[i] * x[j])) / ((1 - x[i]) * (1 - x[j])))
            for i, j in pairs
        )
        return (n + 1) / 2 + sign * 2 * linear / n + double / n

    assert row(-1) == pytest.approx(np.square(b[-1]).sum()) != pytest.approx(row(1))
    assert frobenius(-1) == pytest.approx(np.square(b).sum() / n) != pytest.approx(frobenius(1))


def test_m11_recursion_for_constant_recurrent_coefficients_leaves_out_c_0():
    """After Theorem 2.28: with c_t = u^T A^t v, z_t - M_t v inverts the column (1, c_0, …)."""
    rng = np.random.default_rng(3)
    u, v = rng.random((2, 2))
    a = np.array([[0.5, 0.2], [0.1, 0.3]])
    c = np.array([u @ np.linalg.matrix_power(a, t) @ v for t in range(7)])
    z, memory, rows = rng.standard_normal(7), np.zeros(2), np.zeros(7)
    for t in range(7):
        rows[t] = z[t] - memory @ v
        memory = memory @ a + rows[t] * u
    assert not np.allclose(lower(c) @ rows, z)  # printed
    assert np.allclose(lower(np.r_[1.0, c[:-1]]) @ rows, z)


def test_m12_table_2_2_prints_less_than_any_factorisation_can_reach():
    for n, printed in {128: 2.320, 256: 2.532, 1024: 2.958}.items():
        assert optimize.dense_bound(workloads.prefix_sum(n), loss="max").value > printed + 0.0005


def test_m13_table_2_2_full_tree_is_not_the_loss_of_its_definition():
    found = an.loss(workloads.prefix_sum(8), strategies.FullTree(8), participation.Single(), "max")
    assert found == pytest.approx(2.0095, abs=5e-5)  # printed 2.382
    rms = an.loss(workloads.prefix_sum(8), strategies.FullTree(8), participation.Single())
    assert rms == pytest.approx(1.656, abs=5e-4)  # Table 2.3 has the same mechanism right


def test_m14_table_2_3_toeplitz_is_the_rms_optimum_not_the_square_root():
    a = workloads.prefix_sum(1024)
    root = an.loss(a, strategies.Toeplitz.square_root(a), participation.Single())
    assert root == pytest.approx(3.1098, abs=5e-5)
    assert optimize.toeplitz(a, loss="rms").loss == pytest.approx(3.057, abs=5e-4)


def test_m15_weights_of_momentum_grow_at_first():
    """After Eq. 3.5 the weights are called exponentially decaying; with little decay they grow first."""
    a = workloads.momentum(50, 0.9, weight_decay=0.01).coefficients
    assert np.all(np.diff(a[:10]) > 0)
    assert a[-1] < a.max()


def test_m16_algorithm_3_1_sums_to_the_current_step():
    inverse = np.linalg.inv(ROOT)
    z = np.random.default_rng(4).standard_normal(8)
    printed = np.array([inverse[t, :t] @ z[:t] for t in range(8)])
    assert printed[0] == 0.0  # the first gradient would be released without noise
    assert np.allclose([inverse[t, : t + 1] @ z[: t + 1] for t in range(8)], inverse @ z)


def test_m17_dimension_enters_eq_3_7_by_its_root():
    z = np.random.default_rng(5).standard_normal((20_000, 9))
    assert math.sqrt(np.square(z).sum(axis=1).mean()) == pytest.approx(3.0, rel=0.01)  # not 9


def test_m18_number_of_min_sep_patterns_is_not_bounded_by_eq_3_23():
    n, b, k = 3, 2, 2
    patterns = [
        pattern
        for size in range(1, k + 1)
        for pattern in itertools.combinations(range(n), size)
        if all(later - earlier >= b for earlier, later in itertools.pairwise(pattern))
    ]
    assert len(patterns) == 4 > n * (n - b)


def test_m19_sensitivity_in_eq_3_22_and_4_12_is_squared():
    c = strategies.BandedToeplitz(8, [1.0, 0.5, 0.25])
    schema = participation.MinSep(4, 2)
    total = sum(c.column_norms_squared()[t] for t in (0, 4))
    value = float(sensitivity(c, schema))
    assert value != pytest.approx(total)  # printed
    assert value**2 == pytest.approx(total)


def test_m20_lags_in_the_proof_of_lemma_3_16_b():
    """It has inner products vanish for lags above the bands and patterns more than b apart: both are >=."""
    c = strategies.BandedToeplitz(8, [1.0, 0.5, 0.25]).to_dense()
    gram = c.T @ c
    assert gram[0, 2] != 0
    assert gram[0, 3] == 0
    # as many bands as the separation, which the lemma allows and "bands < b" does not: root k still
    assert float(sensitivity(strategies.BandedToeplitz(8, [1.0, 0.5, 0.25]), participation.MinSep(3, 2))) == (
        pytest.approx(math.sqrt(2) * np.linalg.norm(c[:, 0]))
    )
    # steps exactly b apart are a pattern of Definition 3.14
    assert float(sensitivity(strategies.Identity(8), participation.MinSep(4))) == pytest.approx(math.sqrt(2))


def test_m21_restarts_are_identity_kronecker_c():
    c = strategies.BandedToeplitz(3, [1.0, 0.5])
    mine = strategies.Restarted(c, 2).to_dense()
    assert not np.array_equal(np.kron(c.to_dense(), np.eye(2)), mine)  # printed
    assert np.array_equal(np.kron(np.eye(2), c.to_dense()), mine)


def test_m22_single_participation_sensitivity_times_root_k_needs_b_to_divide_n():
    """Section 4.3.1 takes sens = sqrt(k) ||C||_col for every n; Lemma 3.16 (d) needs whole last columns."""
    c = strategies.BandedToeplitz(9, [1.0, 0.5, 0.25])
    schema = participation.MinSep(4)  # patterns reach step 8, whose column is cut
    assert float(sensitivity(c, schema)) < math.sqrt(3) * c.largest_column_norm() - 1e-3
    assert float(sensitivity(c.truncate(8), schema)) == pytest.approx(math.sqrt(2) * c.largest_column_norm())


def test_m23_example_of_a_banded_matrix_in_section_4_3_is_for_five_steps():
    assert strategies.BandedToeplitz(5, [3.0, 2.0, 1.0]).to_dense().shape == (5, 5)  # printed: n = 4


def test_m24_the_decision_problem_of_footnote_3_8_asks_for_at_least_kappa():
    """As printed (norm at most kappa) the answer is always yes, by u = 0."""
    assert np.linalg.norm(ROOT @ np.zeros(8)) <= 0.0
    best = max(np.linalg.norm(ROOT @ np.array(signs)) for signs in itertools.product((-1, 1), repeat=8))
    assert best == pytest.approx(np.linalg.norm(ROOT @ np.ones(8)))


def test_m25_generating_function_of_c_is_one_over_r_in_eq_2_21():
    """Theorem 2.26 has C^-1 generated by r; Eq. 2.21 calls the function of C itself r."""
    scale, decay = np.array([0.3, 0.2]), np.array([0.9, 0.4])
    blt = strategies.BLT(200, scale, decay)
    x = 0.5
    of_c = 1 + (scale * x / (1 - decay * x)).sum()
    powers = x ** np.arange(200)
    assert blt.coefficients @ powers == pytest.approx(of_c)
    assert toeplitz.inverse(blt.coefficients, 200) @ powers == pytest.approx(1 / of_c)


def test_m26_conjecture_4_7_fails_under_min_sep():
    """n = 4, any three steps: equal sums on every pattern force M = I/3; a falling diagonal does better."""
    schema = participation.MinSep(1, 3)
    a = workloads.prefix_sum(4)
    equal = an.loss(a, strategies.Identity(4), schema)
    assert equal == pytest.approx(math.sqrt(7.5))
    falling = np.sqrt([2.0, math.sqrt(3), math.sqrt(3), math.sqrt(3)])
    better = strategies.Dense(np.diag(falling))
    assert an.loss(a, better, schema) == pytest.approx(1 + math.sqrt(3))
    assert 1 + math.sqrt(3) < equal - 0.006
    assert not conjecture_4_7(a, schema)


def test_m27_rms_loss_in_eq_4_4_is_divided_by_root_n():
    a, c = workloads.prefix_sum(8), strategies.BandedToeplitz(8, [1.0, 0.5, 0.25])
    schema = participation.MinSep(4, 2)
    printed = float(sensitivity(c, schema)) * np.linalg.norm(PRE @ np.linalg.inv(c.to_dense()))
    mine = an.loss(a, c, schema)
    assert printed != pytest.approx(mine)
    assert printed / math.sqrt(8) == pytest.approx(mine)
    # with one participation it is the RMS loss of Definition 2.23
    once = an.loss(a, c, participation.Single())
    assert once == pytest.approx(
        c.largest_column_norm() * np.linalg.norm(PRE @ np.linalg.inv(c.to_dense())) / math.sqrt(8)
    )


def test_m28_cyclic_participation_has_as_many_patterns_as_an_epoch_has_steps():
    b, k = 5, 3
    patterns = list(participation.Cyclic(b).patterns(b * k))
    assert len(patterns) != k  # printed in Section 4.2.2
    assert len(patterns) == b
    assert all(len(pattern) == k for pattern in patterns)


def test_m29_regenerated_noise_of_a_step_holds_its_own_row():
    """Section 4.4.5, Approach 2, sums C^-1[t, s] Z[s] over s < t: row 0 would be 0, and no row is right."""
    z = np.random.default_rng(4).standard_normal(8)
    inverse = np.linalg.inv(ROOT)
    noise = inverse @ z
    printed = [inverse[t, :t] @ z[:t] for t in range(8)]
    mine = [inverse[t, : t + 1] @ z[: t + 1] for t in range(8)]
    assert printed[0] == 0.0
    assert not np.isclose(printed, noise).any()
    np.testing.assert_allclose(mine, noise, atol=1e-12)


def test_m30_theorem_2_20_is_for_two_steps_or_more():
    def printed(n):
        return math.sqrt(math.ceil(math.log2(n)) * (1 + math.ceil(math.log2(n))))

    def measured(n):
        tree = TreeAggregation(n)
        return an.loss(workloads.prefix_sum(n), tree, participation.Single(), "max")

    assert printed(1) == 0.0 < measured(1) == 1.0
    assert monograph.tree_aggregation(1) >= 1.0
    for n in range(2, 40):
        assert measured(n) <= printed(n) * (1 + 1e-12)
        assert monograph.tree_aggregation(n) == pytest.approx(printed(n), rel=1e-12)


def test_m31_theorem_2_13_needs_two_bands():
    def printed(n, b):
        return math.sqrt((n / b - 1) * math.log(b) + math.log(b) ** 2)

    for n in (4, 100):
        root = strategies.BandedToeplitz.square_root(workloads.prefix_sum(n), 1)
        loss = an.loss(workloads.prefix_sum(n), root, participation.Single(), "max")
        assert printed(n, 1) == 0.0 < loss == pytest.approx(math.sqrt(n))
        assert monograph.banded_toeplitz(n, 1) >= loss
        # from two bands on, ours is of the printed order
        for b in range(2, n):
            assert monograph.banded_toeplitz(n, b) <= 5 * printed(n, b)


def test_m32_theorem_3_22_lacks_the_error_of_learning_without_privacy():
    """Loss theta x on [-1, 1], and x = 1 or -1 of mean +-delta: the risks are delta (1 +- theta)."""
    n, delta = 100, 0.05
    counts = np.arange(n + 1)
    laws = [stats.binom.pmf(counts, n, (1 + sign * delta) / 2) for sign in (1, -1)]
    least = delta * (1 - 0.5 * np.abs(laws[0] - laws[1]).sum())  # of any learner, the worse of both
    assert least > 0.3 / math.sqrt(n)
    for epsilon in (1e6, 1e9):  # logarithms of n and delta do not help
        assert 1 / math.sqrt(epsilon * n) < least / 300
        assert convex_risk(n, 1, epsilon) >= least


def test_m33_fourier_coefficients_are_integrals_over_one_period_of_frequencies():
    c = 0.5 ** np.arange(40)
    for ends, times in ((1, 1), (2, 2)):  # [-pi, pi], and [-2 pi, 2 pi] as printed for F_c
        omega = np.linspace(-ends * math.pi, ends * math.pi, 1000 * ends, endpoint=False)
        transform = np.exp(-1j * np.outer(omega, np.arange(40))) @ c
        found = [(transform * np.exp(1j * omega * t)).sum().real * (2 * math.pi / 1000) for t in range(5)]
        assert np.array(found) / (2 * math.pi) == pytest.approx(times * c[:5])


def test_m34_the_rows_that_algorithm_2_1_keeps():
    """b = 3 bands, t = 6: the outputs that row 6 needs are t - 1 and t - 2, not 1 … 4."""
    t, bands = 6, 3
    c = np.array([2.0, 1.0, 0.5])
    z = np.random.default_rng(0).standard_normal(t + 1)
    outputs = np.linalg.solve(lower(np.r_[c, np.zeros(t + 1 - bands)]), z)
    kept = range(t - bands + 1, t)
    assert len(kept) == bands - 1 != len(range(1, t - bands + 2))
    assert outputs[t] == pytest.approx((z[t] - sum(c[t - s] * outputs[s] for s in kept)) / c[0])

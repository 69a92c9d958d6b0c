"""Trees: their nodes, both estimators by their definitions, norms and errors, and the published numbers."""

import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anechoic import error, loss, sensitivity, workloads
from anechoic.algebra.trees import variances
from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.sensitivity import nodes as nodes_room
from anechoic.strategies import ColumnNormalized, FullTree, Restarted, Tree, from_factorization
from tests.marks import every_other, in_turn

# n: streaming RMS, full RMS (monograph, Table 2.3)
PRINTED = {
    8: (2.178, 1.656),
    16: (2.663, 1.938),
    32: (3.156, 2.227),
    64: (3.652, 2.518),
    128: (4.151, 2.810),
    256: (4.650, 3.102),
    512: (5.150, 3.394),
    1024: (5.650, 3.686),
    2048: (6.150, 3.978),
    4096: (6.650, 4.269),
    8192: (7.150, 4.560),
}
# n: streaming max (NaN in the monograph's Table 2.2) and full max, both recomputed with dense algebra
RECOMPUTED = {8: (2.992, 2.0095), 16: (3.723, 2.3688), 32: (4.441, 2.7222), 64: (5.154, 3.0693)}


def nodes(n, k):
    """(first, stop) of every complete node, in the order in which they are finished, lower ones first."""
    found = [(i * w, (i + 1) * w) for w in (k**h for h in range(40)) if w <= n for i in range(n // w)]
    return sorted(found, key=lambda node: (node[1], node[1] - node[0]))


def rectangular(n, k):
    return np.array([[float(first <= t < stop) for t in range(n)] for first, stop in nodes(n, k)])


def streaming_estimator(n, k):
    """L by definition: combine each node with its children by inverse variance, add up and subtract."""
    order = nodes(n, k)
    row = {node: np.eye(len(order))[i] for i, node in enumerate(order)}
    best = {}
    for first, stop in order:
        width = (stop - first) // k
        own = (row[first, stop], 1.0)
        if width:
            children = [best[first + i * width, first + (i + 1) * width] for i in range(k)]
            below = (sum(c[0] for c in children), sum(c[1] for c in children))
            a, b = 1 / own[1], 1 / below[1]
            own = ((a * own[0] + b * below[0]) / (a + b), 1 / (a + b))
        best[first, stop] = own
    prefixes = []
    for t in range(1, n + 1):
        total, start = np.zeros(len(order)), 0
        while start < t:
            stop = max(e for s, e in order if s == start and e <= t)
            total, start = total + best[start, stop][0], stop
        prefixes.append(total)
    return np.diff(prefixes, axis=0, prepend=0.0)


SIZES = [
    (1, 2),
    (2, 2),
    (3, 2),
    (7, 2),
    (8, 2),
    (13, 2),
    (16, 2),
    (2, 3),
    (9, 3),
    (14, 3),
    (28, 3),
    (6, 7),
    (26, 5),
]


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_nodes_are_the_complete_ones_in_postorder(n, k):
    tree = Tree(n, k)
    np.testing.assert_array_equal(tree.to_dense(), rectangular(n, k))
    assert tree.rows == len(nodes(n, k))


def test_the_recursion_of_the_monograph():
    expected = np.ones((1, 1))
    for _ in range(4):
        zero = np.zeros_like(expected)
        expected = np.vstack(
            [np.hstack([expected, zero]), np.hstack([zero, expected]), np.ones(2 * len(zero[0]))]
        )
    np.testing.assert_array_equal(Tree(16).to_dense(), expected)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_streaming_estimator_by_its_definition(n, k):
    tree = Tree(n, k)
    expected = streaming_estimator(n, k)
    np.testing.assert_allclose(tree.correlate(np.eye(tree.rows)), expected, atol=1e-14)
    np.testing.assert_allclose(expected @ tree.to_dense(), np.eye(n), atol=1e-13)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_full_estimator_is_the_pseudo_inverse(n, k):
    tree, c = FullTree(n, k), rectangular(n, k)
    inverse = tree.solve(np.eye(n))
    best = np.linalg.pinv(c)
    np.testing.assert_allclose(inverse @ inverse.T, best @ best.T, atol=1e-13)
    np.testing.assert_allclose(tree.to_dense().T @ tree.to_dense(), c.T @ c, atol=1e-12)
    errors = np.linalg.norm(np.tril(np.ones((n, n))) @ best, axis=1)
    np.testing.assert_allclose(error(workloads.prefix_sum(n), tree).per_step, errors, rtol=1e-12)


@pytest.mark.parametrize(
    ("n", "k", "horizon"), [(1, 2, 9), (5, 2, 8), (9, 2, 14), (11, 3, 27), (10, 3, 31), (25, 5, 26)]
)
def test_a_tree_cut_short_has_the_noise_of_the_whole_one(n, k, horizon):
    tree, c = FullTree(n, k, horizon), rectangular(horizon, k)
    covariance = np.linalg.inv(c.T @ c)[:n, :n]
    inverse = tree.solve(np.eye(n))
    np.testing.assert_allclose(inverse @ inverse.T, covariance, atol=1e-13)
    np.testing.assert_allclose(tree.to_dense().T @ tree.to_dense(), np.linalg.inv(covariance), atol=1e-11)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(k=st.integers(2, 6), n=st.integers(1, 40), more=st.integers(0, 60), full=st.booleans(), data=st.data())
@example(k=2, n=7, more=1, full=True, data=None)
@example(k=2, n=8, more=8, full=True, data=None)
@example(k=3, n=10, more=17, full=True, data=None)
@pytest.mark.slow
def test_closed_forms_agree_with_the_matrix(k, n, more, full, data):
    tree = FullTree(n, k, n + more) if full else Tree(n, k)
    c = tree.to_dense()
    gram = c.T @ c
    for lag in range(n):
        np.testing.assert_allclose(tree.gram_diagonal(lag), gram.diagonal(lag), atol=1e-12)
    np.testing.assert_allclose(tree.column_norms_squared(), gram.diagonal(), rtol=1e-12)
    assert tree.largest_column_norm() == pytest.approx(np.sqrt(gram.diagonal().max()), rel=1e-12)
    squares = np.square(np.cumsum(tree.correlate(np.eye(tree.rows)), axis=0)).sum(axis=1)
    np.testing.assert_allclose(tree.prefix_errors_squared(), squares, rtol=1e-11)
    separation = 2 if data is None else data.draw(st.integers(1, n))
    count = min(3, -(-n // separation))
    comb = c[:, : (count - 1) * separation + 1 : separation].sum(axis=1)
    assert tree.comb_norm_squared(separation, count) == pytest.approx(comb @ comb, rel=1e-12)


@in_turn("k", [2, 3, 4])
@in_turn("n", [1, 2, 5, 8, 12, 27, 33])
def test_the_full_estimator_is_nowhere_worse(n, k):
    streaming, full = Tree(n, k), FullTree(n, k)
    assert (full.prefix_errors_squared() <= streaming.prefix_errors_squared() + 1e-12).all()
    assert full.largest_column_norm() == pytest.approx(streaming.largest_column_norm(), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 11, 16])
def test_the_streaming_estimator_as_a_square_strategy_needs_less_noise(n):
    tree = Tree(n)
    left = tree.correlate(np.eye(tree.rows))
    square = from_factorization(left, tree.to_dense())
    inverse = square.solve(np.eye(n))
    np.testing.assert_allclose(inverse @ inverse.T, left @ left.T, atol=1e-13)
    for participation in (Single(), Cyclic(2), FullBatch()):
        assert float(sensitivity(square, participation)) <= float(sensitivity(tree, participation)) + 1e-12
    if n > 1:
        assert square.largest_column_norm() < tree.largest_column_norm() - 0.01


class TestPublishedNumbers:
    @pytest.mark.parametrize("n", PRINTED)
    def test_table_2_3(self, n):
        prefix = workloads.prefix_sum(n)
        streaming, full = PRINTED[n]
        assert loss(prefix, Tree(n), Single(), "rms") == pytest.approx(streaming, abs=5.1e-4)
        assert loss(prefix, FullTree(n), Single(), "rms") == pytest.approx(full, abs=5.1e-4)

    @pytest.mark.parametrize("n", RECOMPUTED)
    def test_largest_errors(self, n):
        prefix = workloads.prefix_sum(n)
        streaming, full = RECOMPUTED[n]
        assert loss(prefix, Tree(n), Single(), "max") == pytest.approx(streaming, abs=5.1e-4)
        assert loss(prefix, FullTree(n), Single(), "max") == pytest.approx(full, abs=5.1e-5)

    def test_cyclic_participation(self):
        # arXiv 2408.08868: tree (Honaker) 12.47 at n = 2052, six passes of 342 steps
        found = loss(workloads.prefix_sum(2052), FullTree(2052), Cyclic(342), "rms")
        assert found == pytest.approx(12.47, abs=5.1e-3)

    def test_padding_to_a_power(self):
        # as the docstring says; computed here first
        prefix = workloads.prefix_sum(1023)
        assert loss(prefix, FullTree(1023), Single(), "max") == pytest.approx(7.618, abs=5e-4)
        assert loss(prefix, FullTree(1023, 2, 1024), Single(), "max") == pytest.approx(4.420, abs=5e-4)

    def test_minimum_separation(self):
        # the same number: no separated pattern is worse than a cycle here
        found = loss(workloads.prefix_sum(2052), FullTree(2052), MinSep(342, 6), "rms")
        assert found == pytest.approx(12.47, abs=5.1e-3)

    def test_variance_of_a_node(self):
        # v -> v* = 1 / (1 + 1 / (2 v*)) = 1/2
        assert variances(2, 60)[-1] == pytest.approx(0.5)
        np.testing.assert_allclose(variances(2, 2), [1.0, 2 / 3, 4 / 7])


class TestSensitivity:
    @in_turn("tree", [Tree(13), Tree(27, 3), FullTree(13), FullTree(11, 3, 30)])
    @in_turn("participation", [Single(), Cyclic(3), Cyclic(5), FullBatch()])
    def test_exact(self, tree, participation):
        c = tree.to_dense()
        truth = max(np.linalg.norm(c[:, list(steps)].sum(axis=1)) for steps in participation.patterns(tree.n))
        found = sensitivity(tree, participation)
        assert found.exact
        assert found.value == pytest.approx(truth, rel=1e-12)

    @in_turn("tree", [Tree(10), Tree(11, 3), FullTree(9), FullTree(9, 3, 14), FullTree(10, 2, 16)])
    @in_turn("participation", [MinSep(1, 2), MinSep(2), MinSep(2, 3), MinSep(3), MinSep(4, 2)])
    def test_every_bound_for_min_sep_holds(self, tree, participation):
        from anechoic.sensitivity import bounds, gram

        c = tree.to_dense()
        truth = max(np.linalg.norm(c[:, list(steps)].sum(axis=1)) for steps in participation.patterns(tree.n))
        count = participation.max_participations_in(tree.n)
        for bound in bounds.min_sep_bounds(tree, gram.gram_of(tree), participation.separation, count):
            assert bound.value >= truth * (1 - 1e-12), bound
        found = sensitivity(tree, participation)
        assert found.value >= truth * (1 - 1e-12)
        if isinstance(tree, Tree) or tree.horizon == tree.n:
            assert found.exact
            assert found.value == pytest.approx(truth, rel=1e-12)

    @pytest.mark.parametrize("k", [2, 3])
    @pytest.mark.parametrize("n", every_other([1, 2, 7, 8, 11, 14]))
    @pytest.mark.few(3)
    def test_the_best_pattern(self, n, k):
        c = Tree(n, k).to_dense()
        for separation in range(1 if n < 12 else 2, n + 1):
            for count in range(1, -(-n // separation) + 1):
                patterns = MinSep(separation, count).patterns(n)
                truth = max(np.square(c[:, list(steps)].sum(axis=1)).sum() for steps in patterns)
                assert nodes_room.best_pattern(FullTree(n, k), separation, count) == truth
                assert nodes_room.by_heights(FullTree(n, k), separation, count) >= truth

    def test_a_programme_that_is_too_large_is_left_out(self, monkeypatch):
        monkeypatch.setattr(nodes_room, "WORK", 100)
        found = sensitivity(Tree(300), MinSep(20))
        assert not found.exact or "attained by a cycle" in found.method
        assert nodes_room.best_pattern(FullTree(9, 2, 12), 2, 3) is None  # of a tree cut short there is none

    @pytest.mark.slow
    def test_large_horizons_materialise_nothing(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for tree in (Tree(10**6), FullTree(10**6, 4), FullTree(700_001, 2, 10**6)):
                cycle, apart = (sensitivity(tree, schema) for schema in (Cyclic(10**5), MinSep(10**5)))
                assert cycle.exact
                assert cycle.value <= apart.value < 1.25 * cycle.value
                assert sensitivity(tree, FullBatch()).exact
                assert error(workloads.prefix_sum(tree.n), tree).max < 5

    def test_a_billion_steps(self):
        assert Tree(10**9).largest_column_norm() == pytest.approx(np.sqrt(30), rel=1e-9)
        assert Tree(10**9, 10).comb_norm_squared(10**8, 10) == 10 * 9 + 100
        assert sensitivity(FullTree(10**9), Single()).value == pytest.approx(np.sqrt(30), rel=1e-9)


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Tree(0), "n=0 must be at least 1"),
            (lambda: Tree(4, 1), "branching=1 must be at least 2"),
            (lambda: Tree(4, 2.0), "branching=2.0 must be an integer"),
            (lambda: FullTree(0), "n=0 must be at least 1"),
            (lambda: FullTree(4, 1), "branching=1 must be at least 2"),
            (lambda: FullTree(4, 2, 3), "horizon=3 must be at least 4. The tree has at least n=4 steps"),
            (lambda: Tree(4).multiply(np.zeros(5)), "n=4"),
            (lambda: Tree(4).correlate(np.zeros(4)), "n=7"),
        ],
    )
    def test_bad_arguments(self, make, words):
        with pytest.raises(ValueError, match=words):
            make()

    @pytest.mark.parametrize("wrapped", [ColumnNormalized(Tree(4)), Restarted(Tree(4), 2)], ids=str)
    def test_no_inverse_without_a_square_matrix(self, wrapped):
        with pytest.raises(
            UnsupportedError, match=r"Tree\(n=4.* rows for \d steps and no inverse: use correlate"
        ):
            wrapped.solve(np.zeros(wrapped.rows))
        assert not hasattr(Tree(4), "solve")

    def test_a_square_one_has_it(self):
        np.testing.assert_array_equal(ColumnNormalized(Tree(1)).solve(np.ones(1)), 1.0)


def test_reports():
    assert str(Tree(5, 3)) == "Tree(n=5, branching=3)"
    assert str(FullTree(5, 3)) == "FullTree(n=5, branching=3)"
    assert str(FullTree(5).truncate(3)) == "FullTree(n=3, branching=2, horizon=5)"

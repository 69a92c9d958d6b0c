"""Trees: their nodes, both estimators by their definitions, norms and errors, and the published numbers."""

import numpy as np
import pytest

from anechoic import error, loss, sensitivity, workloads
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.sensitivity import trees as nodes_room
from anechoic.strategies import FullTree, Tree
from anechoic.strategies.tree_aggregation import TreeAggregation
from tests.marks import every_other, in_turn

# n: streaming RMS, full RMS (monograph, Table 2.3); streaming and full max, recomputed with dense algebra
PRINTED = {8: (2.178, 1.656), 128: (4.151, 2.810), 1024: (5.650, 3.686), 8192: (7.150, 4.560)}
RECOMPUTED = {8: (2.992, 2.0095), 16: (3.723, 2.3688), 32: (4.441, 2.7222), 64: (5.154, 3.0693)}
PLAIN = TreeAggregation(11, 3)
SIZES = [(1, 2), (2, 2), (7, 2), (13, 2), (16, 2), (2, 3), (9, 3), (14, 3), (6, 7), (26, 5)]


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


@in_turn(("n", "k"), SIZES)
def test_nodes_are_the_complete_ones_in_postorder(n, k):
    tree = Tree(n, k)
    np.testing.assert_array_equal(tree.to_dense(), rectangular(n, k))
    assert tree.rows == len(nodes(n, k))


@in_turn(("n", "k"), SIZES)
def test_streaming_estimator_by_its_definition(n, k):
    tree = Tree(n, k)
    expected = streaming_estimator(n, k)
    np.testing.assert_allclose(tree.correlate(np.eye(tree.rows)), expected, atol=1e-14)
    np.testing.assert_allclose(expected @ tree.to_dense(), np.eye(n), atol=1e-13)


@in_turn(("n", "k"), SIZES)
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


@in_turn(("n", "k"), SIZES)
def test_tree_aggregation_is_the_dyadic_partition_without_unused_nodes(n, k):
    """By definition: prefix t adds the nodes of the digits of t."""
    order = nodes(n, k)
    b, c = np.zeros((n, len(order))), rectangular(n, k)
    for t in range(1, n + 1):
        start = 0
        while start < t:
            stop = max(e for s, e in order if s == start and e <= t)
            b[t - 1, order.index((start, stop))], start = 1.0, stop
    prefix, tree, kept = np.tri(n), TreeAggregation(n, k), b.any(axis=0)
    np.testing.assert_array_equal(b @ c, prefix)
    assert kept.sum() == n and {tuple(row) for row in tree.to_dense()} == {tuple(row) for row in c[kept]}
    inverse = tree.solve(np.eye(n))
    np.testing.assert_allclose(prefix @ inverse @ inverse.T @ prefix.T, b @ b.T, atol=1e-12)
    for lag in range(n):
        gram = tree.to_dense().T @ tree.to_dense()
        np.testing.assert_array_equal(tree.gram_diagonal(lag), gram.diagonal(lag))


class TestPublishedNumbers:
    def test_table_2_3(self):
        for n, (streaming, full) in PRINTED.items():
            prefix = workloads.prefix_sum(n)
            assert loss(prefix, Tree(n), Single(), "rms") == pytest.approx(streaming, abs=5.1e-4)
            assert loss(prefix, FullTree(n), Single(), "rms") == pytest.approx(full, abs=5.1e-4)

    def test_largest_errors(self):
        for n, (streaming, full) in RECOMPUTED.items():
            prefix = workloads.prefix_sum(n)
            assert loss(prefix, Tree(n), Single(), "max") == pytest.approx(streaming, abs=5.1e-4)
            assert loss(prefix, FullTree(n), Single(), "max") == pytest.approx(full, abs=5.1e-5)

    @pytest.mark.parametrize(
        ("kind", "largest", "rms"),
        [(TreeAggregation, 10.0, 7.0745), (Tree, 7.6176, 5.3891), (FullTree, 7.6176, 3.9614)],
    )
    def test_numbers_of_the_docs(self, kind, largest, rms):
        """docs/mechanisms.md; computed here first."""
        prefix, strategy = workloads.prefix_sum(1023), kind(1023)
        assert loss(prefix, strategy, Single(), "max") == pytest.approx(largest, abs=5.1e-5)
        assert loss(prefix, strategy, Single(), "rms") == pytest.approx(rms, abs=5.1e-5)

    def test_cyclic_participation(self):
        # arXiv 2408.08868: tree (Honaker) 12.47 at n = 2052, six passes of 342 steps
        found = loss(workloads.prefix_sum(2052), FullTree(2052), Cyclic(342), "rms")
        assert found == pytest.approx(12.47, abs=5.1e-3)


class TestSensitivity:
    @in_turn("tree", [Tree(10), Tree(11, 3), FullTree(9), FullTree(9, 3, 14), FullTree(10, 2, 16), PLAIN])
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
        if getattr(tree, "horizon", None) in (None, tree.n):
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

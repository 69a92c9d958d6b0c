"""Plain tree aggregation, the smooth binary mechanism, trees over other strategies, the circulant root."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from anechoic import error, loss, sensitivity, workloads
from anechoic.errors import GuaranteeError
from anechoic.lower_bounds.prefix_sums import mathias_upper_bound
from anechoic.noise import NoiseStream
from anechoic.noise.filter_choice import rounded_filter
from anechoic.participation import Cyclic, FullBatch, MinSep, Single
from anechoic.strategies import BLT, Banded, BandedToeplitz, ColumnNormalized, Identity, Toeplitz, Tree
from anechoic.strategies.circulant import circulant_factors, circulant_root
from anechoic.strategies.rational import rational_blt
from anechoic.strategies.recursive_tree import RecursiveTree
from anechoic.strategies.smooth_binary import SmoothBinary
from anechoic.strategies.tree_aggregation import TreeAggregation
from anechoic.testing._compare import ContractError
from anechoic.testing.noise import check_recurrence
from tests.marks import in_turn
from tests.zoo import dense

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 26]
PATTERNS = [MinSep(1, 2), MinSep(2), MinSep(2, 3), MinSep(3), MinSep(4, 2)]


def supremum(strategy, participation):
    """Of C >= 0: the largest norm of a sum of columns."""
    c = strategy.to_dense()
    return max(np.linalg.norm(c[:, list(s)].sum(axis=1)) for s in participation.patterns(strategy.n))


def digits(count, k):
    """(height, digit) from the highest height on."""
    found = []
    for h in range(40, -1, -1):
        if count >= k**h:
            found.append((h, count // k**h))
            count %= k**h
    return found


def by_dyadic_partition(n, k):
    """B and C over all complete nodes, by definition: prefix t adds the nodes of the digits of t."""
    nodes = [(i * k**h, (i + 1) * k**h) for h in range(8) for i in range(n // k**h)]
    c = np.array([[float(a <= s < b) for s in range(n)] for a, b in nodes])
    b = np.zeros((n, len(nodes)))
    for t in range(n):
        start = 0
        for h, digit in digits(t + 1, k):
            for _ in range(digit):
                b[t, nodes.index((start, start + k**h))] = 1.0
                start += k**h
    return b, c


def balanced(n, height):
    """C and B of the smooth binary mechanism with all its nodes, empty ones too, by definition."""
    leaves = [bits for bits in itertools.product((0, 1), repeat=height) if sum(bits) == height // 2]
    assert len(leaves) > n
    names, rows = [], []
    for t in range(n):
        after = leaves[t + 1]
        used = [(*after[:i], 0) for i in range(height) if after[i]]
        names += [name for name in used if name not in names]
        rows.append(used)
    c = np.array([[float(leaves[s][: len(name)] == name) for s in range(n)] for name in names])
    b = np.array([[float(name in used) for name in names] for used in rows])
    return b, c


class TestTreeAggregation:
    @in_turn("k", [2, 3, 5])
    @in_turn("n", SIZES)
    def test_it_is_the_dyadic_partition_without_unused_nodes(self, n, k):
        b, c = by_dyadic_partition(n, k)
        prefix = np.tril(np.ones((n, n)))
        np.testing.assert_array_equal(b @ c, prefix)
        tree = TreeAggregation(n, k)
        kept = b.any(axis=0)
        assert kept.sum() == n
        ours = {tuple(row) for row in tree.to_dense()}
        assert ours == {tuple(row) for row in c[kept]}
        inverse = tree.solve(np.eye(n))
        np.testing.assert_allclose(prefix @ inverse @ inverse.T @ prefix.T, b @ b.T, atol=1e-12)
        assert tree.largest_column_norm() ** 2 == pytest.approx(np.square(c).sum(axis=0).max())

    def test_the_decoder_that_the_monograph_prints(self):
        b = np.tril(np.ones((8, 8))) @ TreeAggregation(8).solve(np.eye(8))
        assert b.sum(axis=1).tolist() == [1, 1, 2, 1, 2, 2, 3, 1]

    @pytest.mark.parametrize("n", [2, 8, 64, 1024])
    def test_max_loss_at_powers_of_two(self, n):
        h = math.log2(n)
        found = loss(workloads.prefix_sum(n), TreeAggregation(n), Single(), "max")
        assert found == pytest.approx(math.sqrt(h * (h + 1)), rel=1e-12)
        assert found >= loss(workloads.prefix_sum(n), Tree(n), Single(), "max")

    @in_turn("participation", PATTERNS)
    @in_turn(("n", "k"), [(10, 2), (8, 2), (11, 3), (9, 3)])
    def test_minimum_separation_is_exact(self, n, k, participation):
        found = sensitivity(TreeAggregation(n, k), participation)
        assert found.exact
        assert found.value == pytest.approx(supremum(TreeAggregation(n, k), participation), rel=1e-12)

    def test_a_stream_keeps_few_rows(self):
        assert NoiseStream(TreeAggregation(1000), 3).memory_bytes == 10 * 3 * 4
        check_recurrence(TreeAggregation(200, 3), np.random.default_rng(0))


class TestSmoothBinary:
    @pytest.mark.parametrize(
        ("n", "height"), [(1, 2), (2, 3), (5, 4), (4, 4), (9, 5), (19, 6), (13, 6), (7, 6)]
    )
    def test_it_is_the_mechanism_without_its_empty_nodes(self, n, height):
        b, c = balanced(n, height)
        prefix = np.tril(np.ones((n, n)))
        np.testing.assert_array_equal(b @ c, prefix)
        assert (b.sum(axis=1) == height // 2).all()
        kept = c.any(axis=1)
        assert kept.sum() == n
        smooth = SmoothBinary(n, height)
        np.testing.assert_array_equal(smooth.to_dense(), c[kept])
        np.testing.assert_array_equal(smooth.prefix_errors_squared(), b[:, kept].sum(axis=1))
        np.testing.assert_allclose(prefix @ smooth.solve(np.eye(n)), b[:, kept], atol=1e-14)

    @pytest.mark.parametrize("height", range(2, 13))
    def test_a_full_one_attains_both_bounds(self, height):
        n = math.comb(height, height // 2) - 1
        smooth = SmoothBinary(n)
        assert smooth.height <= height
        smooth = SmoothBinary(n, height)
        ones = height // 2
        assert smooth.column_norms_squared().max() == height - ones
        assert smooth.prefix_errors_squared().max() == ones
        assert smooth.prefix_errors_squared()[-1] == ones
        found = loss(workloads.prefix_sum(n), smooth, Single(), "max")
        assert found == pytest.approx(math.sqrt(ones * (height - ones)), rel=1e-12)

    def test_it_halves_the_loss_of_the_tree(self):
        n = 2**14
        prefix = workloads.prefix_sum(n)
        smooth, tree = (loss(prefix, c, Single(), "max") for c in (SmoothBinary(n), TreeAggregation(n)))
        assert smooth == pytest.approx(math.sqrt(8 * 9))  # height 17
        assert smooth < 0.6 * tree

    @pytest.mark.parametrize("participation", [Cyclic(3), Cyclic(5), FullBatch()], ids=str)
    def test_cycles_are_exact(self, participation):
        found = sensitivity(SmoothBinary(13), participation)
        assert found.exact
        assert found.value == pytest.approx(supremum(SmoothBinary(13), participation), rel=1e-12)

    @in_turn("participation", PATTERNS)
    @in_turn(("n", "height"), [(2, 4), (5, 4), (9, 5), (9, 7), (11, 6), (13, 6)])
    def test_minimum_separation_is_exact(self, n, height, participation):
        found = sensitivity(SmoothBinary(n, height), participation)
        assert found.exact
        assert found.value == pytest.approx(supremum(SmoothBinary(n, height), participation), rel=1e-12)

    def test_a_stream_keeps_few_rows(self):
        assert NoiseStream(SmoothBinary(1000), 3).memory_bytes == 6 * 3 * 4
        check_recurrence(SmoothBinary(251), np.random.default_rng(0))

    @pytest.mark.parametrize("n", [1, 2, 9, 10, 200])
    def test_the_least_height(self, n):
        h = SmoothBinary(n).height
        assert math.comb(h, h // 2) > n >= math.comb(h - 1, (h - 1) // 2)


class TestRecursiveTree:
    @in_turn("k", [2, 3, 6])
    @in_turn("n", SIZES)
    def test_over_the_identity_it_is_tree_aggregation(self, n, k):
        tree = RecursiveTree(n, Identity(k - 1))
        np.testing.assert_array_equal(tree.to_dense(), TreeAggregation(n, k).to_dense())

    @in_turn("n", SIZES)
    @in_turn("bands", [1, 2, 4])
    def test_rows_by_definition(self, n, bands):
        base = Banded.from_dense(np.triu(dense(4).to_dense(), 1 - bands))
        c, expected = base.to_dense(), np.zeros((n, n))
        for t in range(n):
            h, digit = digits(t + 1, 5)[-1]
            if (t + 1) % 5**h:
                raise AssertionError("the last digit is the lowest")
            digit = (t + 1) // 5**h % 5
            first = t + 1 - digit * 5**h
            for child in range(digit):
                expected[t, first + child * 5**h : first + (child + 1) * 5**h] = c[digit - 1, child]
        np.testing.assert_allclose(RecursiveTree(n, base).to_dense(), expected, atol=1e-15)

    @in_turn("base", [dense(3), BLT(3, [0.5, 0.2], [0.9, 0.4]), ColumnNormalized(dense(2))])
    @in_turn("n", [1, 4, 15, 16, 17, 40])
    def test_errors_and_column_norms(self, n, base):
        tree = RecursiveTree(n, base)
        c = tree.to_dense()
        np.testing.assert_allclose(tree.column_norms_squared(), np.square(c).sum(axis=0), rtol=1e-12)
        for lag in range(n):
            np.testing.assert_allclose(tree.gram_diagonal(lag), (c.T @ c).diagonal(lag), atol=1e-12)
        b = np.tril(np.ones((n, n))) @ np.linalg.inv(c)
        np.testing.assert_allclose(tree.prefix_errors_squared(), np.square(b).sum(axis=1), rtol=1e-10)
        found = error(workloads.prefix_sum(n), tree).per_step
        np.testing.assert_allclose(found, np.linalg.norm(b, axis=1), rtol=1e-10)

    @pytest.mark.parametrize("height", [1, 2, 3])
    @pytest.mark.parametrize("steps", [1, 3, 7])
    def test_the_loss_is_at_most_height_times_that_of_the_base(self, steps, height):
        base = Toeplitz.square_root(workloads.prefix_sum(steps))
        n = (steps + 1) ** height - 1
        found = loss(workloads.prefix_sum(n), RecursiveTree(n, base), Single(), "max")
        of_base = loss(workloads.prefix_sum(steps), base, Single(), "max")
        assert found == pytest.approx(height * of_base, rel=1e-12)

    def test_wide_trees_over_blts_beat_the_smooth_one_and_keep_few_rows(self):
        n = 41**3
        tree = RecursiveTree(n, rational_blt(40, 6))
        found = loss(workloads.prefix_sum(n), tree, Single(), "max")
        assert found < 0.8 * loss(workloads.prefix_sum(n), SmoothBinary(n), Single(), "max")
        assert tree.recurrence().rows <= 4 * 7

    @pytest.mark.parametrize(
        "base",
        [Identity(4), BLT(4, [0.5, 0.2], [0.9, 0.4]), dense(4), BandedToeplitz(4, [1.0, 0.5])],
        ids=str,
    )
    def test_the_stack_is_never_larger_than_it_says(self, base):
        for n in (1, 3, 5, 24, 25, 26, 130):
            tree = RecursiveTree(n, base)
            recurrence = tree.recurrence()
            depths = [recurrence.depth(s) for s in range(n + 1)]
            assert max(depths) <= recurrence.rows
        check_recurrence(RecursiveTree(130, base), np.random.default_rng(0))

    @pytest.mark.parametrize("base", [Tree(3), 7, None], ids=str)
    def test_bases_without_a_square_matrix_are_refused(self, base):
        with pytest.raises(ValueError, match="must be a strategy with a square matrix"):
            RecursiveTree(9, base)


class TestCirculantRoot:
    @pytest.mark.parametrize("n", [1, 2, 3, 8, 21])
    def test_it_reaches_the_bound_of_mathias(self, n):
        b, c = circulant_factors(workloads.prefix_sum(n))
        np.testing.assert_allclose(b @ c, np.tril(np.ones((n, n))), atol=1e-12)
        norm = math.sqrt(mathias_upper_bound(n))
        np.testing.assert_allclose(np.linalg.norm(c, axis=0), norm, rtol=1e-11)
        np.testing.assert_allclose(np.linalg.norm(b, axis=1), norm, rtol=1e-11)
        root = circulant_root(workloads.prefix_sum(n))
        found = loss(workloads.prefix_sum(n), root, Single(), "max")
        assert found <= mathias_upper_bound(n)
        np.testing.assert_allclose(error(workloads.prefix_sum(n), root).per_step, norm, rtol=1e-10)

    def test_other_toeplitz_workloads(self):
        workload = workloads.momentum(12, 0.8, weight_decay=0.1)
        b, c = circulant_factors(workload)
        np.testing.assert_allclose(b @ c, workload.to_dense(), atol=1e-12)
        assert loss(workload, circulant_root(workload), Single(), "max") <= (
            np.linalg.norm(b, axis=1).max() * np.linalg.norm(c, axis=0).max() * (1 + 1e-12)
        )

    def test_others_are_refused(self):
        with pytest.raises(ValueError, match="must be Toeplitz"):
            circulant_root(workloads.scheduled(workloads.prefix_sum(3), [1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("strategy", "largest", "rms", "rows"),
    [
        (TreeAggregation(1023), 10.0, 7.0745, 10),
        (SmoothBinary(1023), 6.4807, 5.9862, 6),
        (Tree(1023), 7.6176, 5.3891, 10),
    ],
    ids=str,
)
def test_numbers_of_the_docs(strategy, largest, rms, rows):
    """docs/mechanisms.md; computed here first."""
    prefix = workloads.prefix_sum(1023)
    assert loss(prefix, strategy, Single(), "max") == pytest.approx(largest, abs=5.1e-5)
    assert loss(prefix, strategy, Single(), "rms") == pytest.approx(rms, abs=5.1e-5)
    assert NoiseStream(strategy, 1).filter.rows == rows


def test_streams_of_different_trees_are_told_apart():
    """A saved state of one must not continue another."""
    trees = [
        TreeAggregation(9),
        SmoothBinary(9),
        SmoothBinary(9, 7),
        RecursiveTree(9, Identity(2)),
        RecursiveTree(9, Identity(3)),
        RecursiveTree(9, BLT(2, [0.5], [0.9])),
        RecursiveTree(9, BLT(2, [0.5], [0.8])),
        RecursiveTree(9, ColumnNormalized(BLT(2, [0.5], [0.9]))),
        RecursiveTree(9, BandedToeplitz(2, [1.0, 0.5])),
        RecursiveTree(9, BandedToeplitz(2, [1.0, 0.6])),
    ]
    for options in ({}, {"grid": 1e-3}):
        digests = [NoiseStream(tree, 2, key=bytes(32), **options).identity["coefficients"] for tree in trees]
        assert len(set(digests)) == len(trees)


class TestStacks:
    def test_the_contract_notices_a_wrong_depth(self):
        class Wrong(SmoothBinary):
            def recurrence(self):
                return replace(super().recurrence(), depth=lambda s: s)

        with pytest.raises(ContractError, match=r"depth\(3\)=3 but 1 rows are on the stack"):
            check_recurrence(Wrong(9), np.random.default_rng(0))

    def test_factors_that_are_said_to_be_integers_are(self):
        recurrence = RecursiveTree(9, BLT(3, [0.3, 0.2], [0.9, 0.4])).recurrence()
        assert not recurrence.integral
        with pytest.raises(GuaranteeError, match="said to be integral"):
            rounded_filter(replace(recurrence, integral=True), 1.0).plan(1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TreeAggregation(0), "n=0 must be at least 1"),
        (lambda: TreeAggregation(4, 1), "branching=1 must be at least 2"),
        (lambda: SmoothBinary(0), "n=0 must be at least 1"),
        (lambda: SmoothBinary(6, 4), r"height=4 must be at least 5. Fewer than binomial\(5, 2\) leaves"),
        (lambda: RecursiveTree(0, Identity(2)), "n=0 must be at least 1"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_reports():
    assert str(TreeAggregation(5, 3)) == "TreeAggregation(n=5, branching=3)"
    assert str(SmoothBinary(5)) == "SmoothBinary(n=5, height=4)"
    assert str(RecursiveTree(5, Identity(2))) == "RecursiveTree(n=5, base=Identity(n=2))"


def test_more_steps_than_intervals_are_held_for_are_refused():
    with pytest.raises(ValueError, match="n=1000000000 must be at most 134217728"):
        loss(workloads.prefix_sum(10**9), SmoothBinary(10**9), kind="max")

"""Bad strategies, each refused at construction with the value, the rule and the remedy; and bad files."""

import base64

import numpy as np
import pytest

from anechoic import _serialize, lower_bounds, workloads
from anechoic.errors import UnsupportedError
from anechoic.participation import Single
from anechoic.strategies import (
    BLT,
    Banded,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    FullTree,
    Identity,
    Output,
    Restarted,
    Toeplitz,
    Tree,
    endless,
    from_factorization,
    make_endless,
)
from anechoic.strategies.blt_rational import rational_blt
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.workloads import prefix_sum
from tests.marks import in_turn

NAN, INF = float("nan"), float("inf")
BLOCK, PREFIX = BandedToeplitz(4, [1.0, 0.5]), prefix_sum(5)
TINY = BandedToeplitz(4, [2.7e-162, 2.7e-162])
RATES = workloads.momentum(3, 0.5, learning_rates=[1.0, 0.5, 0.2])
TURN = [[0.0, -1.0], [1.0, 0.0]]

BAD = [
    (Identity, (0,), "n=0 must be at least 1"),
    (Identity, (2.0,), "n=2.0 must be an integer >= 1"),
    (Identity, (True,), "n=True must be an integer"),
    (Toeplitz, (2, [0.0, 1.0]), r"coefficients\[0\]=0.0 must be > 0: it is the diagonal"),
    (Toeplitz, (2, [1.0, NAN]), r"coefficients\[1\]=nan is not finite: every entry"),
    (Toeplitz, (2, [INF, 1.0]), r"coefficients\[0\]=inf is not finite"),
    (Toeplitz, (2, []), r"coefficients has shape \(0,\); a non-empty 1-dim"),
    (Toeplitz, (2, np.eye(2)), r"coefficients has shape \(2, 2\)"),
    (Toeplitz, (2, ["a", "b"]), "cannot be read as an array of real numbers"),
    (Toeplitz, (2, [1.0, 1j]), "cannot be read as an array of real numbers"),
    (Toeplitz, (3, [1.0, 0.5]), "2 entries but n=3: give all n, or use BandedToeplitz"),
    (Toeplitz.square_root, (RATES,), "is not Toeplitz: leave learning rates out"),
    (Toeplitz.power, (prefix_sum(3), "half"), "exponent='half' must be a real number"),
    (Toeplitz.power, (RATES, 0.5), "leave learning rates out"),
    (Toeplitz.damped, (5, 1.0), "damping="),
    (Toeplitz.damped, (5, NAN), "damping="),
    (BandedToeplitz, (2, [1.0, 0.5, 0.2]), "bands=3 must be at most n=2: drop the coeff"),
    (BandedToeplitz, (2, [0.0]), r"coefficients\[0\]=0.0 must be > 0"),
    (BandedToeplitz, (4, np.array(["1.0", "0.5"])), "array of real numbers"),
    (BandedToeplitz.square_root, (PREFIX, 6), "bands=6 must be at most n=5"),
    (BandedToeplitz.square_root, (RATES, 2), "not Toeplitz"),
    (Banded, (2, [[1.0]]), "axis 0 must have n=2"),
    (Banded, (1, [[1.0, 0.0]]), "bands=2 must be at most n=1"),
    (Banded, (2, [[1.0, 0.5], [0.0, 0.0]]), r"columns\[1, 0\]=0.0 must be > 0"),
    (Banded, (2, [[1.0, 0.5], [1.0, 0.5]]), r"columns\[1, 1\]=0.5 must be 0: row 2 lies under"),
    (Banded.from_dense, ([[1.0, 0.0]],), "must be square"),
    (Banded.from_dense, ([[1.0, 1.0], [0.0, 1.0]],), "above its diagonal"),
    (BandedInverse, (5, []), "non-empty"),
    (BandedInverse, (5, [0.0, 1.0]), "must be > 0"),
    (BandedInverse, (2, [1.0, -0.5, 0.1]), "3 entries but n=2"),
    (BandedInverse.one_parameter, (5, 1.0), "decay=1.0"),
    (BandedInverse.one_parameter, (5, -0.1), "decay=-0.1"),
    (BandedInverse.fractional, (PREFIX, 1.0, 2), "power=1.0"),
    (BandedInverse.fractional, (PREFIX, 0.0, 2), "power=0.0"),
    (BandedInverse.fractional, (PREFIX, 0.5, 6), "bands=6 must be at most n=5"),
    (BandedInverse.square_root, (5, 2), "must be a Workload"),
    (BandedInverse.square_root, (RATES, 2), "not Toeplitz"),
    (BLT, (4, [0.5], [1.0]), r"decay=1.0 must lie in \[0, 1\): a buffer that "),
    (BLT, (4, [0.5], [-0.1]), r"decay=-0.1 must lie in \[0, 1\)"),
    (BLT, (4, [0.5], [NAN]), r"decay\[0\]=nan is not finite"),
    (BLT, (4, [0.5, 0.1], [0.5]), "decay has 1 entries; 2 are needed"),
    (BLT, (4, [0.5, 0.1], [0.5, 0.5]), "equal entries: merge them by adding their scales"),
    (BLT, (4, [], []), "scale has shape"),
    (BLT.from_poles, (5, [0.9, 0.5], [0.7]), "1 entries; 2 are needed"),
    (BLT.from_poles, (5, [0.9, 0.5], [0.7, 0.5]), "pairwise distinct"),
    (BLT.from_poles, (5, [0.9, 1.0], [0.7, 0.5]), r"decay=1.0 must lie in \[0, 1\)"),
    (BLT(5, [0.9], [0.5]).inverse, (), r"distinct ones in \[0, 1\)"),
    (BLT(5, [1.9], [0.5]).inverse, (), r"distinct ones in \[0, 1\)"),
    (BLT(5, [0.9, -0.8], [0.9, 0.85]).inverse, (), "complex decays"),
    (rational_blt, (10, 0), "buffers=0"),
    (endless.rational, (4, 0), "accurate_to=0"),
    (endless.series, ([-1.0, 0.5],), r"coefficients\[0\]=-1.0"),
    (endless.series, (np.append(1.0, -np.ones(99) / 99),), "not proven to have no zero"),
    (endless.damped, (0.0,), "Without damping C is not square-summable"),
    (make_endless, (Identity(3),), "does not say how C goes on"),
    (make_endless(BLOCK).at, (0,), "n=0 must be at least 1"),
    (ConstantRecurrent, (5, [1.0], [[1.0]], [1.0]), "spectral radius 1.0"),
    (ConstantRecurrent, (5, [1.0, 0.0], TURN, [1.0, 0.0]), "spectral radius 1.0"),
    (ConstantRecurrent, (5, [1.0], [[0.5, 0.1]], [1.0]), r"shape \(1, 2\)"),
    (ConstantRecurrent, (5, [1.0], [[0.5]], [1.0, 2.0]), "input has 2 entries; 1 are needed"),
    (ConstantRecurrent, (5, [1.0], [[0.5]], [1.0], 0.0), "first=0.0 must be a finite number > 0"),
    (ConstantRecurrent, (5, [1e200], [[0.5]], [1e200]), "overflow"),
    (ConstantRecurrent.from_rational, (5, [1.0], [0.0, 1.0]), "denominator"),
    (ConstantRecurrent.from_rational, (5, [-1.0], [1.0, -0.5]), "first=-1.0"),
    (ConstantRecurrent(5, [1.7], [[0.5]], [1.0]).inverse, (), r"spectral radius 1\.2.*below 1"),
    (Dense, (np.ones((2, 3)),), r"shape \(2, 3\); it must be square"),
    (Dense, ([1.0],), "non-empty 2-dimensional array"),
    (Dense, ([[1.0, 0.1], [0.0, 1.0]],), "above its diagonal: C must be lower-triangular; take"),
    (Dense, ([[1.0, 0.0], [0.0, 0.0]],), r"matrix\[1, 1\]=0.0 must be > 0 on the diagonal"),
    (Dense, (np.eye(2), 3), "n=3 differs from the matrix's 2 rows"),
    (from_factorization, (np.eye(3), np.eye(2)), r"B has shape \(3, 3\) and C \(2, 2\)"),
    (from_factorization, (np.ones((3, 2)), np.ones((2, 3))), "r >= n"),
    (from_factorization, (np.eye(2), np.ones((2, 2))), "has an entry 1.0 above its diagonal"),
    (from_factorization, (np.eye(2), [[1.0, 0.0], [1.0, 0.0]]), r"\(B C\)\[1, 1\]=0.0 must not be 0"),
    (Output, (np.eye(2),), "must be a Workload, such as"),
    (Output, (prefix_sum(2), 3), "n=3 differs from the workload's 2 steps"),
    (ColumnScaled, (np.eye(2), [1.0, 1.0]), "must be a Strategy"),
    (ColumnScaled, (BLOCK, [1.0, -1.0, 1.0, 1.0]), r"scales\[1\]=-1.0 must be > 0"),
    (ColumnScaled, (BLOCK, [1.0]), "scales has 1 entries; 4 are needed"),
    (ColumnScaled, (BLOCK, np.ones(4), 5), "n=5 differs from the base strategy's 4 steps"),
    (ColumnScaled, (TINY, np.full(4, 1e120)), "column norms of base reach from"),
    (ColumnScaled, (BandedToeplitz(4, [1.0]), np.full(4, 1e150)), "scales reach from"),
    (ColumnNormalized, ("x",), "must be|needed"),
    (Restarted, (4, 2), "base=4 must be a Strategy"),
    (Restarted, (BLOCK, 0), "times=0 must be at least 1"),
    (Restarted, (BLOCK, 2, 9), "n=9 does not end in block 2 of 4 steps"),
    (Restarted, (BLOCK, 2, 4), "n=4 does not end in block 2 of 4 steps"),
    (Restarted, (Restarted(BLOCK, 2, 6), 2), "every 4 steps, which do not divide its 6"),
    (Tree, (4, 1), "branching=1 must be at least 2"),
    (Tree(4).multiply, (np.zeros(5),), "n=4"),
    (Tree(4).correlate, (np.zeros(4),), "n=7"),
    (FullTree, (4, 2, 3), "horizon=3 must be at least 4. The tree has at least n=4 steps"),
    (lower_bounds.lower_bound, (Single(), prefix_sum(4), "rms"), "must be|needed"),
    *(
        (Toeplitz.from_generating_function, (r, 20), words)
        for r, words in [
            (lambda x: 1 / (1 - 2 * x), "not analytic in the open unit disc"),
            (lambda x: 1 / (1 + 4 * x**2), "not analytic in the open unit disc"),
            (lambda x: 1 - 0.5j * x, "not real on the real line"),
            (lambda x: x - 1, r"r\(0\)=-1.0 must be > 0"),
            (lambda x: np.full_like(x, np.nan), "not finite"),
            ([], "non-empty"),
            ([-1.0], r"r\(0\)=-1.0 must be > 0"),
            ("abc", "cannot be read"),
        ]
    ),
    (Toeplitz.from_generating_function, ([1.0, -2.0], 2000), "grow beyond all numbers"),
]


@in_turn(("make", "given", "words"), BAD)
def test_refused_with_value_rule_and_remedy(make, given, words):
    with pytest.raises(ValueError, match=words):
        make(*given)


def test_what_a_caller_keeps_cannot_change_a_strategy():
    c, matrix, scales = np.array([1.0, 0.5]), np.eye(2), np.ones(2)
    made = [BandedToeplitz(2, c), Dense(matrix), ColumnScaled(Identity(2), scales), BLT(2, c * 0.5, c * 0.5)]
    before = [strategy.to_dense() for strategy in made]
    c[:], matrix[:], scales[:] = 9.0, 9.0, 9.0
    for strategy, dense in zip(made, before, strict=True):
        assert (strategy.to_dense() == dense).all()
        with pytest.raises(AttributeError):
            strategy.n = 3
    with pytest.raises(ValueError, match="read-only"):
        made[0].band[0] = 2.0


def test_only_toeplitz_strategies_have_coefficients():
    for strategy in (Dense(np.eye(2)), ColumnNormalized(BLOCK), Restarted(BLOCK, 2)):
        with pytest.raises(TypeError, match=r"is not Toeplitz: it has no coefficients. Use to_dense"):
            strategy.coefficients


def test_only_square_strategies_have_an_inverse():
    for wrapped in (ColumnNormalized(Tree(4)), Restarted(Tree(4), 2)):
        with pytest.raises(UnsupportedError, match=r"Tree\(n=4.* for \d steps and no inverse: use correlate"):
            wrapped.solve(np.zeros(wrapped.rows))
    np.testing.assert_array_equal(ColumnNormalized(Tree(1)).solve(np.ones(1)), 1.0)


def encoded(**changed):
    return _serialize.encode(BandedToeplitz(3, [1.0, 0.5])) | changed


def text(array):
    return base64.b64encode(np.asarray(array, dtype="<f8").tobytes()).decode()


BAD_FILES = [
    (encoded(type="Backdoor"), "type='Backdoor' is unknown to this version"),
    ({"n": 3}, "type=None is unknown"),
    (encoded(type=["BLT"]), "is unknown"),
    (encoded(extra=1), "BandedToeplitz has no field 'extra'"),
    ({"type": "BandedToeplitz", "n": 3}, "BandedToeplitz cannot be built from .*band"),
    (encoded(band={"float64": "AAAA", "shape": [1]}), "an array is damaged"),
    (encoded(band={"float64": "!!", "shape": [1]}), "an array is damaged"),
    (encoded(band={"float64": text([1.0])}), "an array is damaged: 'shape'"),
    (encoded(band={"float64": text([1.0]), "shape": [2]}), "an array is damaged"),
    (encoded(band={"float64": text([1.0]), "shape": ["a"]}), "an array is damaged"),
    (encoded(band={"float64": text([NAN]), "shape": [1]}), "is not finite"),
    (encoded(n=0), "n=0 must be at least 1"),
    (encoded(n=1), "bands=2 must be at most n=1"),
]


@in_turn(("data", "words"), BAD_FILES)
def test_a_file_passes_the_checks_of_a_caller(data, words):
    with pytest.raises(ValueError, match=words):
        _serialize.decode(data)


def test_what_is_not_registered_is_not_written():
    with pytest.raises(TypeError, match="object cannot be written to JSON: register its class first"):
        _serialize.encode(object())


def test_more_coefficients_than_memory_are_refused():
    for make in (lambda: Toeplitz.damped(10**9, 0.1), lambda: Toeplitz.square_root(prefix_sum(10**9))):
        with pytest.raises(UnsupportedError, match="1000000000 coefficients are more"):
            make()

"""Bad strategies, each refused at construction with the value, the rule and the remedy; and bad files."""

import base64

import numpy as np
import pytest

from anechoic import _serialize, lower_bounds, optimize, workloads
from anechoic.errors import UnsupportedError
from anechoic.participation import Single
from anechoic.strategies import (
    BLT,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    Identity,
    Output,
    Restarted,
    Toeplitz,
)
from anechoic.strategies.scaled import ColumnScaled
from anechoic.strategies.tree_aggregation import TreeAggregation
from anechoic.workloads import prefix_sum

NAN, INF = float("nan"), float("inf")
BLOCK = BandedToeplitz(4, [1.0, 0.5])

BAD = {
    "identity: n = 0": (lambda: Identity(0), "n=0 must be at least 1"),
    "identity: n < 0": (lambda: Identity(-2), "n=-2 must be at least 1"),
    "identity: n not whole": (lambda: Identity(2.0), "n=2.0 must be an integer >= 1"),
    "identity: n a bool": (lambda: Identity(True), "n=True must be an integer"),
    "toeplitz: n = 0": (lambda: Toeplitz(0, [1.0]), "n=0 must be at least 1"),
    "toeplitz: c0 = 0": (
        lambda: Toeplitz(2, [0.0, 1.0]),
        r"coefficients\[0\]=0.0 must be > 0: it is the diagonal",
    ),
    "toeplitz: c0 < 0": (lambda: Toeplitz(2, [-1.0, 1.0]), r"coefficients\[0\]=-1.0 must be > 0"),
    "toeplitz: nan": (lambda: Toeplitz(2, [1.0, NAN]), r"coefficients\[1\]=nan is not finite: every entry"),
    "toeplitz: inf": (lambda: Toeplitz(2, [INF, 1.0]), r"coefficients\[0\]=inf is not finite"),
    "toeplitz: empty": (lambda: Toeplitz(2, []), r"coefficients has shape \(0,\); a non-empty 1-dim"),
    "toeplitz: matrix": (lambda: Toeplitz(2, np.eye(2)), r"coefficients has shape \(2, 2\)"),
    "toeplitz: words": (lambda: Toeplitz(2, ["a", "b"]), "cannot be read as an array of real numbers"),
    "toeplitz: complex": (lambda: Toeplitz(2, [1.0, 1j]), "cannot be read as an array of real numbers"),
    "toeplitz: too few": (
        lambda: Toeplitz(3, [1.0, 0.5]),
        "2 entries but n=3: give all n, or use BandedToeplitz",
    ),
    "toeplitz: too many": (lambda: Toeplitz(1, [1.0, 0.5]), "2 entries but n=1"),
    "toeplitz: root with rates": (
        lambda: Toeplitz.square_root(workloads.momentum(2, 0.5, learning_rates=[1.0, 0.5])),
        "is not Toeplitz: leave learning rates out",
    ),
    "banded: bands > n": (
        lambda: BandedToeplitz(2, [1.0, 0.5, 0.2]),
        "bands=3 must be at most n=2: drop the coeff",
    ),
    "banded: c0 = 0": (lambda: BandedToeplitz(2, [0.0]), r"coefficients\[0\]=0.0 must be > 0"),
    "banded: nan": (lambda: BandedToeplitz(2, [NAN]), r"coefficients\[0\]=nan is not finite"),
    "banded: n = 0": (lambda: BandedToeplitz(0, [1.0]), "n=0 must be at least 1"),
    "blt: n = 0": (lambda: BLT(0, [0.5], [0.5]), "n=0 must be at least 1"),
    "blt: decay = 1": (
        lambda: BLT(4, [0.5], [1.0]),
        r"decay=1.0 must lie in \[0, 1\): a buffer that ",
    ),
    "blt: decay > 1": (lambda: BLT(4, [0.5, 0.1], [0.5, 1.5]), r"decay=1.5 must lie in \[0, 1\)"),
    "blt: decay < 0": (lambda: BLT(4, [0.5], [-0.1]), r"decay=-0.1 must lie in \[0, 1\)"),
    "blt: decay nan": (lambda: BLT(4, [0.5], [NAN]), r"decay\[0\]=nan is not finite"),
    "blt: scale inf": (lambda: BLT(4, [INF], [0.5]), r"scale\[0\]=inf is not finite"),
    "blt: lengths": (lambda: BLT(4, [0.5, 0.1], [0.5]), "decay has 1 entries; 2 are needed"),
    "blt: equal decays": (
        lambda: BLT(4, [0.5, 0.1], [0.5, 0.5]),
        "equal entries: merge them by adding their scales",
    ),
    "blt: empty": (lambda: BLT(4, [], []), "scale has shape"),
    "dense: not square": (lambda: Dense(np.ones((2, 3))), r"shape \(2, 3\); it must be square"),
    "dense: not a matrix": (lambda: Dense([1.0]), "non-empty 2-dimensional array"),
    "dense: upper": (
        lambda: Dense([[1.0, 0.1], [0.0, 1.0]]),
        "above its diagonal: C must be lower-triangular; take",
    ),
    "dense: diagonal": (
        lambda: Dense([[1.0, 0.0], [0.0, 0.0]]),
        r"matrix\[1, 1\]=0.0 must be > 0 on the diagonal",
    ),
    "dense: nan": (lambda: Dense([[NAN]]), r"matrix\[0, 0\]=nan is not finite"),
    "dense: empty": (lambda: Dense(np.zeros((0, 0))), "non-empty"),
    "dense: n": (lambda: Dense(np.eye(2), n=3), "n=3 differs from the matrix's 2 rows"),
    "output: array": (lambda: Output(np.eye(2)), "must be a Workload, such as"),
    "output: n": (lambda: Output(workloads.prefix_sum(2), n=3), "n=3 differs from the workload's 2 steps"),
    "scaled: not a strategy": (lambda: ColumnScaled(np.eye(2), [1.0, 1.0]), "must be a Strategy"),
    "scaled: zero": (lambda: ColumnScaled(BLOCK, [1.0, 1.0, 0.0, 1.0]), r"scales\[2\]=0.0 must be > 0"),
    "scaled: negative": (lambda: ColumnScaled(BLOCK, [1.0, -1.0, 1.0, 1.0]), r"scales\[1\]=-1.0 must be > 0"),
    "scaled: nan": (lambda: ColumnScaled(BLOCK, [1.0, NAN, 1.0, 1.0]), r"scales\[1\]=nan is not finite"),
    "scaled: length": (lambda: ColumnScaled(BLOCK, [1.0]), "scales has 1 entries; 4 are needed"),
    "scaled: n": (
        lambda: ColumnScaled(BLOCK, np.ones(4), n=5),
        "n=5 differs from the base strategy's 4 steps",
    ),
    "restarted: not a strategy": (lambda: Restarted(4, 2), "base=4 must be a Strategy"),
    "restarted: times = 0": (lambda: Restarted(BLOCK, 0), "times=0 must be at least 1"),
    "restarted: too many steps": (lambda: Restarted(BLOCK, 2, 9), "n=9 does not end in block 2 of 4 steps"),
    "restarted: too few steps": (lambda: Restarted(BLOCK, 2, 4), "n=4 does not end in block 2 of 4 steps"),
    "restarted: odd blocks inside": (
        lambda: Restarted(Restarted(BLOCK, 2, 6), 2),
        "which do not divide its 6",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_with_value_rule_and_remedy(name):
    make, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        make()


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


def encoded(**changed):
    return _serialize.encode(BandedToeplitz(3, [1.0, 0.5])) | changed


def text(array):
    return base64.b64encode(np.asarray(array, dtype="<f8").tobytes()).decode()


BAD_FILES = {
    "unknown type": (encoded(type="Backdoor"), "type='Backdoor' is unknown to this version"),
    "no type": ({"n": 3}, "type=None is unknown"),
    "a type that is no name": (encoded(type=["BLT"]), "is unknown"),
    "unknown field": (encoded(extra=1), "BandedToeplitz has no field 'extra'"),
    "missing field": ({"type": "BandedToeplitz", "n": 3}, "BandedToeplitz cannot be built from .*band"),
    "truncated array": (encoded(band={"float64": "AAAA", "shape": [1]}), "an array is damaged"),
    "not base64": (encoded(band={"float64": "!!", "shape": [1]}), "an array is damaged"),
    "no shape": (encoded(band={"float64": text([1.0])}), "an array is damaged: 'shape'"),
    "other shape": (encoded(band={"float64": text([1.0]), "shape": [2]}), "an array is damaged"),
    "shape of words": (encoded(band={"float64": text([1.0]), "shape": ["a"]}), "an array is damaged"),
    "nan": (encoded(band={"float64": text([NAN]), "shape": [1]}), "is not finite"),
    "a number that breaks a rule": (encoded(n=0), "n=0 must be at least 1"),
    "too many bands": (encoded(n=1), "bands=2 must be at most n=1"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_passes_the_checks_of_a_caller(name):
    data, words = BAD_FILES[name]
    with pytest.raises(ValueError, match=words):
        _serialize.decode(data)


def test_what_is_not_registered_is_not_written():
    with pytest.raises(TypeError, match="object cannot be written to JSON: register its class first"):
        _serialize.encode(object())


def test_products_that_leave_the_range_of_numbers_and_come_back_are_refused():
    tiny = BandedToeplitz(4, [2.7e-162, 2.7e-162])
    with pytest.raises(ValueError, match="column norms of base reach from"):
        ColumnScaled(tiny, np.full(4, 1e120))
    with pytest.raises(ValueError, match="scales reach from"):
        ColumnScaled(BandedToeplitz(4, [1.0]), np.full(4, 1e150))


def test_restarts_that_cannot_stream_are_refused_at_construction():
    inner = Restarted(BandedToeplitz(3, [1.0, 0.5]), 2, 5)
    with pytest.raises(ValueError, match="every 3 steps, which do not divide its 5"):
        Restarted(inner, 2)


@pytest.mark.parametrize("value", [np.array([1.0, 1j]), np.array(["1.0", "0.5"]), ["1.0", "0.5"]])
def test_complex_numbers_and_text_are_no_coefficients(value):
    with pytest.raises(ValueError, match="array of real numbers"):
        BandedToeplitz(4, value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ColumnNormalized("x"),
        lambda: BandedToeplitz.square_root(32, 3),
        lambda: Toeplitz.square_root(32),
        lambda: optimize.damped("x"),
        lambda: optimize.restarted(workloads.prefix_sum(4), None),
        lambda: lower_bounds.lower_bound(Single(), workloads.prefix_sum(4), "rms"),
    ],
)
def test_arguments_of_another_kind_are_named(call):
    with pytest.raises(ValueError, match="must be|needed"):
        call()


def test_more_coefficients_than_memory_are_refused():
    """Strategies with a closed form are made; the arrays that they would need are asked for later."""
    for make in (lambda: Toeplitz.damped(10**9, 0.1), lambda: Toeplitz.square_root(prefix_sum(10**9))):
        with pytest.raises(UnsupportedError, match="1000000000 coefficients are more"):
            make()
    tree = TreeAggregation(10**9)
    assert tree.largest_column_norm() == pytest.approx(30**0.5)
    for ask in (lambda: tree.starts, lambda: tree.depths, tree.prefix_errors_squared):
        with pytest.raises(UnsupportedError, match="n=1000000000 must be at most"):
            ask()

"""Every strategy against the shipped contract, and the contract against strategies that break it."""

from dataclasses import replace

import numpy as np
import pytest

from anechoic import _serialize, testing
from anechoic.noise.recurrence import Autoregressive
from anechoic.participation import FullBatch, MinSep, Single
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import BandedToeplitz, Dense, FullTree, Identity, Tree
from anechoic.strategies.base import Structure
from anechoic.testing._compare import ContractError, check_written
from anechoic.testing.guarantee import check_decoder, check_error, check_sensitivity, supremum
from anechoic.testing.noise import check_stream
from tests.contracts import check_strategy
from tests.marks import in_turn
from tests.zoo import STRATEGIES, dense, every


@pytest.mark.parametrize("name", every(also=("banded-fft",)))
@pytest.mark.few(4)
def test_every_strategy_keeps_the_contract(name):
    check_strategy(STRATEGIES[name])


# The contract fails where it should: each entry breaks one rule of an otherwise sound strategy.


def broken(**replaced):
    return type("Broken", (Dense,), replaced)(dense(6, bands=3).to_dense())


def returning(value):
    return lambda self, *args, **kwargs: value


def flags(**changed):
    sound = {"bands": 3, "gram_bands": 3}
    return property(returning(Structure(**(sound | changed))))


def halved(method):
    return lambda self, *args: 0.5 * getattr(Dense, method)(self, *args)


def kept(self):
    return self.__dict__.setdefault("_d", np.array(self.matrix))


def narrow(self):
    row = lambda t: np.array(self.matrix)[t, max(0, t - 1) : t + 1][::-1]  # noqa: E731
    return Autoregressive(6, window=2, row=row)


BROKEN = [
    ("multiply", halved("multiply"), "multiply"),
    ("solve", halved("solve"), "solve"),
    ("to_dense", returning(np.eye(5)), "shape"),
    ("to_dense", returning(np.ones((6, 6))), "above the diagonal"),
    ("to_dense", returning(np.zeros((6, 6))), "diagonal of C"),
    ("to_dense", returning(np.full((6, 6), np.nan)), "not finite"),
    ("to_dense", kept, "own storage"),
    ("structure", flags(bands=2, gram_bands=2), "bands=2"),
    ("structure", flags(gram_bands=2), "gram_bands=2"),
    ("structure", flags(gram_bands=4), "<="),
    ("structure", flags(nonnegative=True), "nonnegative but"),
    ("column_norms_squared", halved("column_norms_squared"), "column_norms_squared"),
    ("largest_column_norm", halved("largest_column_norm"), "largest_column_norm"),
    ("comb_norm_squared", halved("comb_norm_squared"), "comb_norm_squared"),
    ("truncate", lambda self, steps: Dense(2 * np.array(self.matrix)[:steps, :steps]), "truncate"),
    ("truncate", lambda self, steps: Dense(np.array(self.matrix)), "truncate"),
    ("recurrence", narrow, "recurrence"),
    ("recurrence", lambda self: Autoregressive(6, window=3, row=lambda t: np.ones(1)), "entries"),
]


@in_turn(("name", "replaced", "words"), BROKEN)
def test_the_contract_notices(name, replaced, words):
    with pytest.raises(ContractError, match=words):
        check_strategy(broken(**{name: replaced}), serialized=False)


def test_the_contract_notices_flags_of_a_toeplitz_strategy():
    def lying(**changed):
        band = [1.0, 0.2, 0.4]
        sound = {"bands": 3, "gram_bands": 3, "toeplitz": True, "nonnegative": True}
        replaced = {
            "structure": property(returning(Structure(**(sound | changed)))),
            "truncate": lambda self, steps: BandedToeplitz(7, band).truncate(steps),
        }
        return type("Lying", (BandedToeplitz,), replaced)(7, band)

    check_strategy(lying(), serialized=False)
    with pytest.raises(ContractError, match="rise"):
        check_strategy(lying(nonincreasing=True), serialized=False)
    with pytest.raises(ContractError, match="nonincreasing without"):
        check_strategy(lying(nonincreasing=True, toeplitz=False), serialized=False)


# A rectangular strategy, broken.

RECTANGULAR = {
    "left-inverse": (
        {"correlate": lambda self, z: 1.001 * Tree.correlate(self, z)},
        r"correlate.to_dense... = identity: off by",
    ),
    "few-rows": ({"rows": 5, "to_dense": returning(np.ones((5, 6)))}, "fewer than its 6 columns"),
    "bands": ({"structure": property(returning(Structure(3, 3, nonnegative=True)))}, "bands=3"),
    "covariance": (
        {"recurrence": lambda self: replace(Tree.recurrence(self), row=lambda s: 1.001 * self._row(s))},
        "covariance of recurrence",
    ),
    "truncate": ({"truncate": lambda self, steps: FullTree(steps)}, "leading block of L L"),
    "norms": (
        {"column_norms_squared": lambda self: Tree.column_norms_squared(self) - 1.0},
        "column_norms_squared",
    ),
    "toeplitz": (
        {"structure": property(returning(Structure(6, 6, toeplitz=True, nonnegative=True)))},
        "toeplitz but C is not square",
    ),
}


@pytest.mark.parametrize("name", RECTANGULAR)
def test_the_contract_notices_in_a_tree(name):
    replaced, words = RECTANGULAR[name]
    with pytest.raises(ContractError, match=words):
        check_strategy(type("Broken", (Tree,), replaced)(6), serialized=False)


# What only the checks of the guarantee can notice.


def test_the_contract_notices_a_sensitivity_that_is_too_low():
    lying = type("Lying", (Dense,), {"structure": flags(bands=6, gram_bands=6, nonnegative=True)})
    with pytest.raises(
        ContractError, match=r"sensitivity = .* under FullBatch.* is below .*, which is attained"
    ):
        check_sensitivity(lying(dense(6).to_dense()))


def test_the_contract_notices_a_sensitivity_that_is_not_exact(monkeypatch):
    guess = Sensitivity(9.0, True, "a guess")
    monkeypatch.setattr("anechoic.testing.guarantee.sensitivity", lambda strategy, schema: guess)
    with pytest.raises(ContractError, match="is called exact, but the supremum is"):
        check_sensitivity(Identity(4))


def test_the_contract_notices_a_wrong_error():
    lying = type("Lying", (Dense,), {"structure": flags(toeplitz=True)})
    with pytest.raises(ContractError, match=r"error for PrefixSum, per step: off by"):
        check_error(lying(dense(6, bands=3).to_dense()))


def test_the_contract_notices_a_wrong_decoder():
    with pytest.raises(ContractError, match=r"B C = A for PrefixSum"):
        check_decoder(broken(solve=halved("solve")))


def test_the_contract_notices_a_wrong_stream(monkeypatch):
    from anechoic.noise.filters.states import NestedFilter

    monkeypatch.setattr(NestedFilter, "used", lambda self, t: 0)  # a restored stream forgets its past
    for tree in (Tree(6), FullTree(6)):
        with pytest.raises(ContractError, match="rows of a stream"):
            check_stream(tree)


@pytest.mark.parametrize(
    ("strategy", "participation", "truth"),
    [
        # best signs 2.0008, supremum over dimensions 2.1220
        (Dense([[0.0547, 0, 0], [-0.865, 0.8667, 0], [-0.4998, -0.4998, 1.0005]]), FullBatch(), 2.1220),
        (Identity(12), MinSep(3), 2.0),
        (Tree(8), Single(), 2.0),
    ],
    ids=str,
)
def test_supremum(strategy, participation, truth):
    assert supremum(strategy, participation)[0] == pytest.approx(truth, abs=5e-5)


class TestTheContractAsAClass(testing.StrategyContract):
    def strategies(self):
        return [Tree(13, 3), STRATEGIES["banded-mixed"], STRATEGIES["restarted(full-tree)"], Identity(1)]


def test_the_contract_notices_accepted_nonsense():
    class Lax(Identity):
        def truncate(self, steps):
            return Identity(max(1, steps))

    with pytest.raises(ContractError, match="truncate.0. is not refused"):
        check_strategy(Lax(3), serialized=False)


def test_the_contract_notices_a_lossy_file():
    @_serialize.serializable
    class Lossy(BandedToeplitz):
        def __init__(self, n, band):
            super().__init__(n, np.round(band, 2))

    try:
        strategy = Lossy(5, [1.0, 0.25])
        check_strategy(strategy)
        object.__setattr__(strategy, "band", np.array([1.0, 0.123456]))
        with pytest.raises(ContractError, match="JSON changed a number"):
            check_written(strategy)
    finally:
        del _serialize._REGISTRY["Lossy"]

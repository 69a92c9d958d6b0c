"""Every strategy against the shipped contract, and the contract against strategies that break it."""

import numpy as np
import pytest

from anechoic import _serialize, testing
from anechoic.strategies import Autoregressive, BandedToeplitz, Dense, Identity, Structure
from anechoic.testing import ContractError, check_strategy
from tests.zoo import dense, zoo

ZOO = zoo()


@pytest.mark.parametrize("name", ZOO)
def test_every_strategy_keeps_the_contract(name):
    check_strategy(ZOO[name])


def test_the_zoo_holds_every_registered_strategy():
    from anechoic.strategies import Strategy

    registered = {cls for cls in _serialize._REGISTRY.values() if issubclass(cls, Strategy)}
    assert {cls for cls in registered if cls.__module__.startswith("anechoic.")} <= {
        type(strategy) for strategy in ZOO.values()
    }


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


BROKEN = {
    "multiply": ({"multiply": halved("multiply")}, "multiply"),
    "solve": ({"solve": halved("solve")}, "solve"),
    "dense-shape": ({"to_dense": returning(np.eye(5))}, "shape"),
    "dense-upper": ({"to_dense": returning(np.ones((6, 6)))}, "above the diagonal"),
    "dense-diagonal": ({"to_dense": returning(np.zeros((6, 6)))}, "diagonal of C"),
    "dense-nan": ({"to_dense": returning(np.full((6, 6), np.nan))}, "not finite"),
    "dense-storage": (
        {"to_dense": lambda self: self.__dict__.setdefault("_d", np.array(self.matrix))},
        "own storage",
    ),
    "bands": ({"structure": flags(bands=2, gram_bands=2)}, "bands=2"),
    "gram-bands": ({"structure": flags(gram_bands=2)}, "gram_bands=2"),
    "gram-bands-order": ({"structure": flags(gram_bands=4)}, "<="),
    "nonnegative": ({"structure": flags(nonnegative=True)}, "nonnegative but"),
    "toeplitz": (
        {"structure": flags(toeplitz=True), "coefficients": property(returning(np.ones(6)))},
        "toeplitz",
    ),
    "norms": ({"column_norms_squared": halved("column_norms_squared")}, "column_norms_squared"),
    "largest": ({"largest_column_norm": halved("largest_column_norm")}, "largest_column_norm"),
    "comb": ({"comb_norm_squared": halved("comb_norm_squared")}, "comb_norm_squared"),
    "truncate": (
        {"truncate": lambda self, steps: Dense(2 * np.array(self.matrix)[:steps, :steps])},
        "truncate",
    ),
    "truncate-n": ({"truncate": lambda self, steps: Dense(np.array(self.matrix))}, "truncate"),
    "recurrence": (
        {
            "recurrence": lambda self: Autoregressive(
                6, window=2, row=lambda t: np.array(self.matrix)[t, max(0, t - 1) : t + 1][::-1]
            )
        },
        "recurrence",
    ),
    "recurrence-row": (
        {"recurrence": lambda self: Autoregressive(6, window=3, row=lambda t: np.ones(1))},
        "entries",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_contract_notices(name):
    replaced, words = BROKEN[name]
    with pytest.raises(ContractError, match=words):
        check_strategy(broken(**replaced), serialized=False)


def test_the_contract_notices_flags_of_a_toeplitz_strategy():
    def lying(**changed):
        band = [1.0, 0.2, 0.4]
        sound = {"bands": 3, "gram_bands": 3, "toeplitz": True, "nonnegative": True}
        return type(
            "Lying", (BandedToeplitz,), {"structure": property(returning(Structure(**(sound | changed))))}
        )(7, band)

    check_strategy(lying(), serialized=False)
    with pytest.raises(ContractError, match="rise"):
        check_strategy(lying(nonincreasing=True), serialized=False)
    with pytest.raises(ContractError, match="nonincreasing without"):
        check_strategy(lying(nonincreasing=True, toeplitz=False), serialized=False)


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
            testing.check_serialized(strategy)
    finally:
        del _serialize._REGISTRY["Lossy"]

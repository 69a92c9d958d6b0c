"""The contract of a strategy, for the strategies of this library and for yours.

    from anechoic.testing import StrategyContract, check_strategy

    def test_one():
        check_strategy(MyStrategy(n=9, …))

    class TestMine(StrategyContract):  # one test for each rule
        def strategies(self):
            return [MyStrategy(n=1, …), MyStrategy(n=9, …)]

Everything is compared with dense linear algebra, so use it at small n. What matters for the privacy
guarantee is checked against the numbers, not taken from the flags: `structure`, by which theorems are
chosen, `column_norms_squared` and `comb_norm_squared`, from which sensitivity is computed, `recurrence`, by
which the noise is made, and sensitivity itself, against the supremum over patterns and dimensions.
"""

from anechoic.testing._compare import ContractError
from anechoic.testing.contract import StrategyContract, check_strategy
from anechoic.testing.guarantee import check_decoder, check_error, check_sensitivity, supremum
from anechoic.testing.matrix import (
    check_algebra,
    check_dense,
    check_norms,
    check_refusals,
    check_serialized,
    check_structure,
    check_truncate,
)
from anechoic.testing.noise import check_recurrence, check_stream, replay

__all__ = [
    "ContractError",
    "StrategyContract",
    "check_algebra",
    "check_decoder",
    "check_dense",
    "check_error",
    "check_norms",
    "check_recurrence",
    "check_refusals",
    "check_sensitivity",
    "check_serialized",
    "check_stream",
    "check_strategy",
    "check_structure",
    "check_truncate",
    "replay",
    "supremum",
]

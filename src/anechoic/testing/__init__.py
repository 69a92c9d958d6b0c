"""Contracts of strategies, participations, workloads, sampling schemes and accountants: ours, and yours.

    from anechoic.testing import StrategyContract, check_strategy

    def test_one():
        check_strategy(MyStrategy(n=9, …))

    class TestMine(StrategyContract):  # one test for each rule
        def strategies(self):
            return [MyStrategy(n=1, …), MyStrategy(n=9, …)]

`check_participation`, `check_workload`, `check_sampling`, `check_accountant` and their classes are the same
for those.

Everything is compared with dense linear algebra, so use it at small n. What matters for the privacy
guarantee is checked against the numbers, not taken from the flags: `structure`, by which theorems are
chosen, `column_norms_squared` and `comb_norm_squared`, from which sensitivity is computed, `recurrence`, by
which the noise is made, and sensitivity itself, against the supremum over patterns and dimensions. The
sensitivity that a participation registers is held against the supremum over its own patterns. Batches are
held against what their scheme promises, and against those of other keys, and epsilon against what simulated
runs show.
"""

from anechoic.testing._compare import ContractError
from anechoic.testing.accountant import AccountantContract, check_accountant
from anechoic.testing.contract import StrategyContract, check_strategy
from anechoic.testing.draws import check_draws
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
from anechoic.testing.participation import ParticipationContract, check_participation
from anechoic.testing.sampling import SamplingContract, check_sampling
from anechoic.testing.workload import WorkloadContract, check_workload

__all__ = [
    "AccountantContract",
    "ContractError",
    "ParticipationContract",
    "SamplingContract",
    "StrategyContract",
    "WorkloadContract",
    "check_accountant",
    "check_algebra",
    "check_decoder",
    "check_dense",
    "check_draws",
    "check_error",
    "check_norms",
    "check_participation",
    "check_recurrence",
    "check_refusals",
    "check_sensitivity",
    "check_sampling",
    "check_serialized",
    "check_stream",
    "check_strategy",
    "check_structure",
    "check_truncate",
    "check_workload",
    "replay",
    "supremum",
]

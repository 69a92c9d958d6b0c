"""Contracts of strategies, participations, workloads, sampling schemes and accountants: ours, and yours.

    from anechoic.testing import StrategyContract

    class TestMine(StrategyContract):  # one test for each rule
        def strategies(self):
            return [MyStrategy(n=1, …), MyStrategy(n=9, …)]

The other contracts are inherited from in the same way.

Everything is compared with dense linear algebra, so use it at small n. What matters for the privacy
guarantee is checked against the numbers, not taken from the flags: `structure`, by which theorems are
chosen, `column_norms_squared` and `comb_norm_squared`, from which sensitivity is computed, `recurrence`, by
which the noise is made, and sensitivity itself, against the supremum over patterns and dimensions. The
sensitivity that a participation registers is held against the supremum over its own patterns. Batches are
held against what their scheme promises, and against those of other keys, and epsilon against what simulated
runs show.
"""

from anechoic.testing.accountant import AccountantContract
from anechoic.testing.participation import ParticipationContract
from anechoic.testing.sampling import SamplingContract
from anechoic.testing.strategy import StrategyContract
from anechoic.testing.workload import WorkloadContract

__all__ = [
    "AccountantContract",
    "ParticipationContract",
    "SamplingContract",
    "StrategyContract",
    "WorkloadContract",
]

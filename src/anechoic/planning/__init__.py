"""plan(): from a training setting to a ranked table of mechanisms and a chosen one.

The rules are those of the monograph's Section 4.4: design for plain prefix sums whatever the optimiser
(unless another workload is asked for); sample where batches may be sampled, take a fixed order where they may
not, and the promised participation where somebody else forms batches; banded Toeplitz in data centres and BLT
for federated and very long runs; rank by the predicted error of prefix sums. Where batches are sampled the
number of bands is tuned by that error (`planning.bands`).
"""

from anechoic.planning.amplified import TOLERANCE
from anechoic.planning.choice import FEDERATED_TOLERANCE
from anechoic.planning.compare import STRATEGIES, UNAMPLIFIED, plan
from anechoic.planning.designs import BANDED_UP_TO, NORMALIZE_UP_TO
from anechoic.planning.records import PlanRow
from anechoic.planning.result import Plan

__all__ = [
    "BANDED_UP_TO",
    "FEDERATED_TOLERANCE",
    "NORMALIZE_UP_TO",
    "STRATEGIES",
    "TOLERANCE",
    "UNAMPLIFIED",
    "Plan",
    "PlanRow",
    "plan",
]

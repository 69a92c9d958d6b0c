"""Workloads A: the weighted prefix sums of gradients that a mechanism is designed for.

Every workload is lower-triangular, n x n, with positive diagonal. Most are of the form A = T D with T
Toeplitz and D a diagonal of learning rates (monograph, Sections 1.2 and 3.2).
"""

from anechoic.workloads.general import from_dense, restart_differences
from anechoic.workloads.optimizers import momentum, nesterov, scheduled
from anechoic.workloads.sums import exponential_decay, from_coefficients, prefix_sum, sliding_window

__all__ = [
    "exponential_decay",
    "from_coefficients",
    "from_dense",
    "momentum",
    "nesterov",
    "prefix_sum",
    "restart_differences",
    "scheduled",
    "sliding_window",
]

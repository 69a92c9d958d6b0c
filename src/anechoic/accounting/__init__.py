"""Accounting: from noise to guarantee and back, always rounded towards privacy.

One accountant for each amplified sampling scheme, chosen by the scheme (`accountant_of`).
"""

from anechoic.accounting.accountant import Accountant, Accounting, SampledAccountant, accountant_of
from anechoic.accounting.balls_in_bins.accountant import BallsInBinsAccountant
from anechoic.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from anechoic.accounting.min_sep.accountant import MinSepAccountant
from anechoic.accounting.monte_carlo.verified import Verified
from anechoic.accounting.poisson.accountant import PoissonAccountant
from anechoic.accounting.poisson.epsilon import poisson_epsilon, poisson_noise_multiplier
from anechoic.accounting.poisson.overlapping import OverlappingAccountant
from anechoic.accounting.poisson.unlike import compose_sampled
from anechoic.accounting.random_allocation.accountant import RandomAllocationAccountant
from anechoic.accounting.random_allocation.epsilon import (
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)

__all__ = [
    "Accountant",
    "Accounting",
    "BallsInBinsAccountant",
    "MinSepAccountant",
    "OverlappingAccountant",
    "PoissonAccountant",
    "RandomAllocationAccountant",
    "SampledAccountant",
    "Verified",
    "accountant_of",
    "compose_sampled",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "poisson_epsilon",
    "poisson_noise_multiplier",
    "random_allocation_epsilon",
    "random_allocation_noise_multiplier",
]

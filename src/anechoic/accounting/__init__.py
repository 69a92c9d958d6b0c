"""Accounting: from noise to guarantee and back, always rounded towards privacy."""

from anechoic.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from anechoic.accounting.poisson import poisson_epsilon, poisson_noise_multiplier
from anechoic.accounting.random_allocation import (
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from anechoic.accounting.verified import Verified

__all__ = [
    "Verified",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "poisson_epsilon",
    "poisson_noise_multiplier",
    "random_allocation_epsilon",
    "random_allocation_noise_multiplier",
]

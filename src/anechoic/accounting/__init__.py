"""Accounting: from noise to guarantee and back, always rounded towards privacy."""

from anechoic.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from anechoic.accounting.poisson import poisson_epsilon, poisson_noise_multiplier

__all__ = [
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "poisson_epsilon",
    "poisson_noise_multiplier",
]

"""Accounting: from noise to guarantee and back, always rounded towards privacy.

One accountant for each amplified sampling scheme, chosen by the scheme (`accountant_of`).
"""

import anechoic.accounting.balls_in_bins.accountant
import anechoic.accounting.min_sep.accountant
import anechoic.accounting.poisson.accountant
import anechoic.accounting.random_allocation.accountant  # noqa: F401 - each registers its accountant
from anechoic.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from anechoic.accounting.monte_carlo.verified import Verified
from anechoic.accounting.poisson.epsilon import poisson_epsilon
from anechoic.accounting.poisson.search import poisson_noise_multiplier
from anechoic.accounting.terms import epsilon_of

__all__ = [
    "Verified",
    "epsilon_of",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "poisson_epsilon",
    "poisson_noise_multiplier",
]

"""One accountant for each amplified sampling scheme, chosen by the scheme (`accountant_of`)."""

from anechoic.accounting.accountants.balls_in_bins import BallsInBinsAccountant
from anechoic.accounting.accountants.base import Accountant, Accounting, SampledAccountant, accountant_of
from anechoic.accounting.accountants.min_sep_sampling import MinSepAccountant
from anechoic.accounting.accountants.poisson import PoissonAccountant
from anechoic.accounting.accountants.random_allocation import RandomAllocationAccountant

__all__ = [
    "Accountant",
    "Accounting",
    "BallsInBinsAccountant",
    "MinSepAccountant",
    "PoissonAccountant",
    "RandomAllocationAccountant",
    "SampledAccountant",
    "accountant_of",
]

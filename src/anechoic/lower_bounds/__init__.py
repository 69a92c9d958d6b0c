"""What no mechanism can beat: lower bounds of the loss, each with its theorem and the class it covers."""

from anechoic.lower_bounds.dispatch import lower_bound
from anechoic.lower_bounds.prefix_sums import (
    logarithmic_lower_bound,
    logarithmic_upper_bound,
    mathias_lower_bound,
    mathias_upper_bound,
    prefix_sum_lower_bound,
)
from anechoic.lower_bounds.result import Bound

__all__ = [
    "Bound",
    "logarithmic_lower_bound",
    "logarithmic_upper_bound",
    "lower_bound",
    "mathias_lower_bound",
    "mathias_upper_bound",
    "prefix_sum_lower_bound",
]

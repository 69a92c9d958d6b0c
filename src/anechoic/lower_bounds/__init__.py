"""Lower bounds of the loss of any mechanism, each with its theorem and the class it covers."""

from anechoic.lower_bounds.dispatch import lower_bound
from anechoic.lower_bounds.prefix_sums import prefix_sum_lower_bound

__all__ = ["lower_bound", "prefix_sum_lower_bound"]

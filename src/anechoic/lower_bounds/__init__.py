"""What no mechanism can beat: lower bounds of the loss, each with its theorem and the class it covers."""

from anechoic._moved import keep_old_names
from anechoic.lower_bounds.dispatch import lower_bound
from anechoic.lower_bounds.prefix_sums import prefix_sum_lower_bound

__all__ = ["lower_bound", "prefix_sum_lower_bound"]

keep_old_names(__name__)

"""What is known of learning with correlated noise: rates and bounds, as functions."""

from anechoic.theory.learning import (
    convex_risk,
    damped_toeplitz_risk,
    effective_dimension,
    independent_noise_risk,
    realizable_convex_risk,
    smallest_toeplitz_risk,
)

__all__ = [
    "convex_risk",
    "damped_toeplitz_risk",
    "effective_dimension",
    "independent_noise_risk",
    "realizable_convex_risk",
    "smallest_toeplitz_risk",
]

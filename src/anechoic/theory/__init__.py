"""What correlated noise does to learning: exact suboptimality, optimal noise, rates and bounds.

A learning problem (`LinearRegression`, `StronglyConvex`) has modes; noise meets them by frequency. The room
reads strategies, noise and mechanisms, and nothing reads it. Further bounds and orders stand in its modules.
"""

from anechoic.theory.ftrl import PrivateFTRL, last_iterate_excess, last_iterate_rho
from anechoic.theory.lq_noise import LqMechanism
from anechoic.theory.mirror import Ball, Simplex, l1_step, mirror_step
from anechoic.theory.optimal import banded_inverse_noise, blt_noise, optimal_noise
from anechoic.theory.problems import LinearRegression
from anechoic.theory.regression import finite_time_bound, regression_bounds
from anechoic.theory.strongly_convex import (
    StronglyConvex,
    optimized_strongly_convex_bound,
    strongly_convex_bound,
)
from anechoic.theory.suboptimality import asymptotic_suboptimality, trajectory

__all__ = [
    "Ball",
    "LinearRegression",
    "LqMechanism",
    "PrivateFTRL",
    "Simplex",
    "StronglyConvex",
    "asymptotic_suboptimality",
    "banded_inverse_noise",
    "blt_noise",
    "finite_time_bound",
    "l1_step",
    "last_iterate_excess",
    "last_iterate_rho",
    "mirror_step",
    "optimal_noise",
    "optimized_strongly_convex_bound",
    "regression_bounds",
    "strongly_convex_bound",
    "trajectory",
]

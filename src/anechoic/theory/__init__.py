"""What correlated noise does to learning: exact suboptimality, optimal noise, rates and bounds.

A learning problem (`LinearRegression`, `MeanEstimation`) has modes; noise meets them by frequency. The room
reads strategies, noise and mechanisms, and nothing reads it.
"""

from anechoic.theory.ftrl import (
    FTRLRun,
    PrivateFTRL,
    anytime_excess,
    average_excess,
    contraction_rho,
    last_iterate_excess,
    last_iterate_rho,
    population_risk_orders,
)
from anechoic.theory.gradient_descent import (
    RestartTerms,
    anti_pgd_bound,
    convex_bound,
    gradient_norms,
    named_factorizations,
    nonconvex_bound,
    pgd_bound,
    restart_terms,
)
from anechoic.theory.learning import (
    convex_risk,
    damped_toeplitz_risk,
    effective_dimension,
    independent_noise_risk,
    realizable_convex_risk,
    smallest_toeplitz_risk,
)
from anechoic.theory.lq_noise import ExponentialPower, LqMechanism, gaussian_clip_norm, lq_epsilon
from anechoic.theory.mirror import (
    AllSpace,
    Ball,
    Box,
    Domain,
    Entropy,
    Euclidean,
    PNorm,
    Simplex,
    l1_step,
    mirror_step,
    optimality_gap,
)
from anechoic.theory.optimal import (
    OptimizedNoise,
    anti_pgd_noise,
    asymptotic_loss,
    banded_inverse_noise,
    banded_noise,
    blt_noise,
    damped_noise,
    independent_noise,
    optimal_noise,
)
from anechoic.theory.problems import LearningProblem, LinearRegression, MeanEstimation
from anechoic.theory.regression import (
    RegressionBounds,
    TheoremD13,
    clipping_probability,
    finite_time_bound,
    finite_time_rates,
    half_exponential_decay,
    regression_bounds,
    theorem_d13,
)
from anechoic.theory.spectra import Spectrum, spectrum
from anechoic.theory.strongly_convex import (
    OptimizedBound,
    StronglyConvex,
    StronglyConvexBound,
    optimized_strongly_convex_bound,
    strongly_convex_bound,
)
from anechoic.theory.suboptimality import Suboptimality, asymptotic_suboptimality, trajectory

__all__ = [
    # problems
    "LearningProblem",
    "LinearRegression",
    "MeanEstimation",
    "StronglyConvex",
    # exact
    "Spectrum",
    "Suboptimality",
    "asymptotic_loss",
    "asymptotic_suboptimality",
    "spectrum",
    "trajectory",
    # the best noise
    "OptimizedNoise",
    "anti_pgd_noise",
    "banded_inverse_noise",
    "banded_noise",
    "blt_noise",
    "damped_noise",
    "independent_noise",
    "optimal_noise",
    # bounds
    "OptimizedBound",
    "RegressionBounds",
    "StronglyConvexBound",
    "TheoremD13",
    "clipping_probability",
    "finite_time_bound",
    "half_exponential_decay",
    "optimized_strongly_convex_bound",
    "regression_bounds",
    "strongly_convex_bound",
    "theorem_d13",
    # gradient descent with any factorisation
    "RestartTerms",
    "anti_pgd_bound",
    "convex_bound",
    "gradient_norms",
    "named_factorizations",
    "nonconvex_bound",
    "pgd_bound",
    "restart_terms",
    # private convex optimisation
    "AllSpace",
    "Ball",
    "Box",
    "Domain",
    "Entropy",
    "Euclidean",
    "ExponentialPower",
    "FTRLRun",
    "LqMechanism",
    "PNorm",
    "PrivateFTRL",
    "Simplex",
    "anytime_excess",
    "average_excess",
    "contraction_rho",
    "gaussian_clip_norm",
    "l1_step",
    "last_iterate_excess",
    "last_iterate_rho",
    "lq_epsilon",
    "mirror_step",
    "optimality_gap",
    "population_risk_orders",
    # orders
    "finite_time_rates",
    "convex_risk",
    "damped_toeplitz_risk",
    "effective_dimension",
    "independent_noise_risk",
    "realizable_convex_risk",
    "smallest_toeplitz_risk",
]

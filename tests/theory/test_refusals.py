"""What the room refuses: one table of calls, and the words of what is said."""

import math

import numpy as np
import pytest

import anechoic as an
from anechoic import calibrate_endless, theory, workloads
from anechoic.participation import MinSep
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, Identity, Tree, endless, make_endless
from anechoic.strategies.endless_mixture_root import MixtureRoot
from anechoic.theory import gradient_descent as descent
from anechoic.theory import learning
from anechoic.theory.ftrl import contraction_rho
from anechoic.theory.lq_noise import ExponentialPower, gaussian_clip_norm, lq_epsilon
from anechoic.theory.mirror import AllSpace, Euclidean, PNorm
from anechoic.theory.optimal import banded_noise
from anechoic.theory.participation import conjecture_4_7
from anechoic.theory.problems import MeanEstimation
from anechoic.theory.spectra import spectrum
from tests.marks import in_turn
from tests.theory.noises import NOISES
from tests.theory.test_regression import D13, FINITE, VALUES, theorem_d13

PROBLEM, MODES = theory.LinearRegression([1.0], 0.1), theory.LinearRegression([1.0, 0.4, 0.4, 0.05], 0.3)
CUBIC, DAMPED = ExponentialPower(3.0, 1.0), NOISES["damped"]


def ftrl(gradient=None, grid_bits=None, steps=None, **options):
    order = an.sampling.External(an.participation.Single(), 1, steps=4)
    made = an.calibrate(Identity(4), sampling=order, noise_multiplier=0.5, delta=1e-6, grid_bits=grid_bits)
    run = theory.PrivateFTRL(**{"mechanism": made, "rate": 1.0, **options}).run
    return run(lambda t, w: gradient, dimension=2, steps=steps)


def last_iterate(**changed):
    given = {"steps": 5, "position": 0, "smoothness": 1.0, "rate": 1.0, "lipschitz": 1.0, "noise_std": 1.0}
    return theory.last_iterate_rho(**given | changed)


def regression(bound, given, **problem):
    return bound(theory.LinearRegression(VALUES, **{"learning_rate": 0.1, **problem}), DAMPED, **given)


def bounds(name, **changed):
    start = "start_gap" if name == "nonconvex_bound" else "distance"
    given = {"smoothness": 1.0, "period": 4, start: 1.0, "sigma": 1.0}
    return getattr(descent, name)(Identity(4), **given | changed)


def limit(noise, **how):
    return theory.asymptotic_suboptimality(PROBLEM, noise, **how)


def released(batch_size=1):
    return calibrate_endless(DAMPED, batch_size=batch_size, noise_multiplier=1.0, delta=1e-6)


CALLS = [
    # problems
    (lambda: theory.LinearRegression([1.0, 0.0], 0.1), r"eigenvalues\[1\]=0.0 must be > 0"),
    (lambda: theory.LinearRegression([1.0], 1.0), "learning_rate=1.0 must be below 1 "),
    (lambda: theory.LinearRegression([1.0] * 9, 0.5), "= 4.5 must be below 1"),
    (lambda: theory.LinearRegression([1.0], 2.0, 0.0, math.inf), "must be below 2 "),
    (lambda: theory.LinearRegression([1.0], 0.1, -1.0), "residual_std=-1.0"),
    (lambda: theory.LinearRegression([1.0], 0.1, "a"), "residual_std='a'"),
    (lambda: theory.LinearRegression([1.0], 0.1, 1.0, 0.5), "batch_size=0.5"),
    (lambda: theory.LinearRegression([1.0], 0.1, 1.0, None), "batch_size=None"),
    (lambda: theory.LinearRegression([1.0, 1e-16], 0.1), r"eigenvalues\[1\] times .* is 1e-17.*Leave out"),
    (lambda: theory.LinearRegression([1.0, 1e-300], 0.1), "eigenvalues.1. times"),
    (lambda: MeanEstimation(2.0), "learning_rate=2.0 must be below 2"),
    (lambda: MeanEstimation(0.5, dimension=10**19), "at most 16,777,216"),
    (lambda: theory.StronglyConvex(0.5, 1.0), "condition=0.5"),
    (lambda: theory.StronglyConvex("x", 1.0), "condition='x'"),
    (lambda: theory.StronglyConvex(1e7, 1e-3), "eta mu = 1e-10"),
    (lambda: theory.StronglyConvex(2.0, 1.5), "must be at most 2 / "),
    (lambda: theory.StronglyConvex(2.0, 1.0, dimension=0), "dimension=0"),
    (lambda: theory.StronglyConvex(2.0, 1.0, gradient_std=True), "gradient_std=True"),
    (lambda: theory.StronglyConvex(2.0, 1.0, gradient_std=-1.0), "gradient_std=-1.0"),
    (lambda: theory.strongly_convex_bound(theory.StronglyConvex(2.0, 1.0), DAMPED, rho=0.0), "rho=0"),
    # suboptimality
    (lambda: limit(Identity(3), rho=1.0), "no spectrum"),
    (lambda: limit(DAMPED), "rho=None"),
    (lambda: limit(DAMPED, rho=0.0), "rho=0.0 must be a finite"),
    (lambda: limit(released(), rho=1.0), "rho=1.0 beside a mechanism"),
    (lambda: limit(released(7)), "batch_size=1 of the problem is not the 7"),
    (lambda: theory.trajectory(PROBLEM, DAMPED, rho=1.0), "steps=None"),
    (lambda: theory.trajectory(PROBLEM, NOISES["BLT"], steps=2**31, rho=1.0), "asymptotic"),
    (lambda: theory.trajectory(PROBLEM, Identity(3), steps=4, rho=1.0), "steps=4 must lie"),
    (lambda: theory.trajectory(PROBLEM, "noise", rho=1.0), "no strategy or mechanism"),
    (
        lambda: theory.trajectory(PROBLEM, Identity(3), rho=1.0, displacement=[1.0, 2.0]),
        "displacement has 2 entries",
    ),
    (lambda: theory.optimal_noise(MODES).suboptimality(-1.0), "rho=-1.0"),
    # spectra and classes
    (lambda: spectrum(make_endless(BandedToeplitz(2, [1.0, 1.5]))), "rows of C\\^-1 Z grow"),
    (lambda: spectrum(make_endless(BandedToeplitz(2, [1.0, -1.0]))), "rows of C\\^-1 Z grow"),
    (lambda: spectrum(make_endless(BandedToeplitz(70, [1.0] + [3.0] * 69))), "rows of C\\^-1 Z grow"),
    (lambda: spectrum(make_endless(BLT(1, [2.5], [0.9]))), "decay of modulus 1.6 >= 1"),
    (lambda: spectrum(make_endless(BandedInverse(2, [1.0, -2.0]))), "zero in the closed unit disc"),
    (lambda: spectrum(endless.damped(0.0)), "Without damping"),
    (lambda: spectrum(Identity(5)), "no spectrum"),
    (lambda: spectrum([1.0, -0.5]), "no spectrum"),
    (lambda: theory.blt_noise(MODES, buffers=21), "buffers=21 must be at most 20"),
    (lambda: banded_noise(MODES, bands=0), "bands=0 must be at least 1"),
    (lambda: banded_noise(MODES, bands=300), "bands=300 must be at most 256"),
    (lambda: MixtureRoot([1.0], [1.0]), "strictly between -1 and 1"),
    (lambda: MixtureRoot([1.0, 1.0], [0.5, 0.5]), "distinct"),
    (lambda: MixtureRoot([1.0, 0.0], [0.5, 0.6]), r"weight\[1\]=0.0 must be > 0"),
    # bounds of regression
    (lambda: regression(theory.regression_bounds, {"rho": 1.0, "kurtosis": 0.5}), "kurtosis=0.5"),
    (lambda: regression(theory.regression_bounds, {"rho": 1.0, "fourth_moment": 1.0}), r"below tr\(H\)"),
    (lambda: regression(theory.regression_bounds, {"rho": 1.0, "fourth_moment": 11.0}), "below 1 / fourth"),
    (lambda: regression(theory.regression_bounds, {"rho": 1.0, "fourth_moment": np.nan}), "moment=nan"),
    (lambda: regression(theory.regression_bounds, {"rho": 1.0}, batch_size=2), "batch_size=2"),
    (lambda: regression(theory.finite_time_bound, FINITE, learning_rate=0.5), "must be below 1 / "),
    (lambda: regression(theorem_d13, D13), "at most the smallest eigenvalue"),
    # orders of learning
    (lambda: learning.convex_risk(0, 1, 1.0), "n=0 must be at least 1"),
    (lambda: learning.convex_risk(1, 0, 1.0), "dimension=0 must be at least 1"),
    (lambda: learning.realizable_convex_risk(1, 1, 0.0), "epsilon=0.0 must be a finite number > 0"),
    (lambda: learning.effective_dimension([1.0, 0.0]), r"eigenvalues\[1\]=0.0 must be > 0"),
    (lambda: learning.effective_dimension([]), "non-empty"),
    (lambda: learning.independent_noise_risk([1.0, 4.0], 0.25, 1.0), "must be below 1 / max"),
    (lambda: learning.independent_noise_risk([1.0], 0.0, 1.0), "learning_rate=0.0 must be"),
    (lambda: learning.smallest_toeplitz_risk([1.0], 0.1, -1.0), "mu=-1.0 must be"),
    (lambda: learning.damped_toeplitz_risk([1.0, 0.5], 0.1, 1.0, 0.06), "damping=0.06 must be at most"),
    (lambda: learning.damped_toeplitz_risk([1.0], 0.1, 1.0, 0.0), "damping=0.0 must lie strictly"),
    # paper 001
    (lambda: ExponentialPower(1.5, 1.0), "q=1.5 must be a finite number >= 2."),
    (lambda: ExponentialPower(3.0, 0.0), "scale=0.0"),
    (lambda: CUBIC.divergence(1.0, 1.0), "order=1.0 must be"),
    (lambda: CUBIC.divergence(2.0, -1.0), "shift=-1.0"),
    (lambda: gaussian_clip_norm(1.0, 1.5, 3), "q=1.5 must be a finite number >= 2"),
    (lambda: lq_epsilon(Identity(4), CUBIC, norm=1, dimension=2, delta=0.1, orders=()), "must be a sequence"),
    (lambda: lq_epsilon(Tree(4), CUBIC, norm=1, dimension=2, delta=0.1), "not square"),
    (lambda: PNorm(1.0), r"p=1.0 must lie in \(1, 2\]"),
    (lambda: PNorm(2.5), r"p=2.5 must lie in \(1, 2\]"),
    (lambda: theory.Ball(0.0), "radius=0.0"),
    (lambda: theory.Ball(1.0, 1.0), "p=1.0 must be a finite number > 1"),
    (lambda: theory.Simplex(-1.0), "radius=-1.0"),
    (lambda: theory.mirror_step([1.0], 0.0, Euclidean(), AllSpace()), "rate=0.0"),
    (lambda: theory.mirror_step([np.nan], 1.0, Euclidean(), AllSpace()), "not finite"),
    (lambda: ftrl(rate=0.0), "rate=0.0"),
    (lambda: ftrl([0.0, 0.0], rate=lambda t: 1.0 + t), "must not rise"),
    (lambda: ftrl(lipschitz=-1.0), "lipschitz=-1.0"),
    (lambda: ftrl([1.0, 1.0], lipschitz=1.0), "norm 1.41421, more than lipschitz=1"),
    (lambda: ftrl(mechanism=None), "mechanism=None is no Mechanism"),
    (lambda: ftrl(np.ones(3)), "have shape"),
    (lambda: ftrl([np.nan, 1]), "not finite"),
    (lambda: ftrl(steps=9), "steps=9 exceeds"),
    (lambda: ftrl(grid_bits=20), "grid_bits=20"),
    (lambda: last_iterate(rate=2.1), "must be at most 2 / smoothness"),
    (lambda: last_iterate(position=5), "position=5 must be below steps=5"),
    (lambda: contraction_rho(steps=5, fade=1.5, sensitivity=1.0, noise_std=1.0), "fade=1.5 must lie"),
    # paper 004
    (lambda: bounds("nonconvex_bound", period=3), "at least 4"),
    (lambda: bounds("nonconvex_bound", smoothness=0.0), "smoothness=0.0"),
    (lambda: bounds("nonconvex_bound", start_gap=-5.0), "start_gap=-5.0"),
    (lambda: bounds("nonconvex_bound", start_gap=np.nan), "start_gap=nan"),
    (lambda: bounds("convex_bound", distance=np.nan), "distance=nan"),
    (lambda: bounds("convex_bound", sigma=-1), "sigma=-1"),
    (lambda: descent.restart_terms(Identity(4), 0), "period=0"),
    (
        lambda: descent.anti_pgd_bound(steps=9, smoothness=1.0, rate=0.4, distance=1.0, sigma=1.0),
        "rate=0.4 must be at most 0.25",
    ),
    (lambda: descent.named_factorizations(1), "n=1 must be at least 2"),
    (lambda: conjecture_4_7(workloads.prefix_sum(20), MinSep(5)), "16 steps"),
]


@in_turn(("call", "words"), CALLS)
def test_refused_with_value_and_rule(call, words):
    with pytest.raises(ValueError, match=words):
        call()

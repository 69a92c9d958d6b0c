"""What users may write by mistake: every function of the room ends soon, with a value or with our error."""

import math
import resource
import time
import warnings

import numpy as np
import pytest

from anechoic import theory
from anechoic.errors import UnsupportedError
from anechoic.strategies import Identity, Toeplitz, endless
from anechoic.theory.ftrl import contraction_rho, population_risk_orders
from anechoic.theory.gradient_descent import convex_bound, named_factorizations, nonconvex_bound, pgd_bound
from anechoic.theory.learning import damped_toeplitz_risk
from anechoic.theory.lq_noise import ExponentialPower, lq_epsilon
from anechoic.theory.mirror import AllSpace, Entropy, Euclidean, PNorm, optimality_gap
from anechoic.theory.optimal import anti_pgd_noise, banded_noise, damped_noise
from anechoic.theory.problems import MeanEstimation
from anechoic.theory.regression import finite_time_rates, half_exponential_decay
from anechoic.theory.spectra import spectrum
from tests.theory.noises import NOISES

NUMBERS = [0.0, -1.0, 1e-300, 1e300, 1e-9, 0.1, 0.5, 1.0, 1.5, 3.0, 40.0, math.nan, math.inf, -math.inf]
COUNTS = [0, -1, 1, 2, 3, 7, 40, 2.5, None, True, math.nan]
JUNK = [None, "x", True, [], [1.0, "a"], 1j]


def number(rng):
    return JUNK[rng.integers(len(JUNK))] if rng.random() < 0.04 else NUMBERS[rng.integers(len(NUMBERS))]


def count(rng):
    return COUNTS[rng.integers(len(COUNTS))] if rng.random() < 0.5 else int(rng.integers(1, 30))


def vector(rng):
    if rng.random() < 0.1:
        return JUNK[rng.integers(len(JUNK))]
    size = rng.integers(1, 6)
    if rng.random() < 0.7:
        return (10 ** rng.uniform(-4, 0, size)).tolist()
    return [NUMBERS[i] for i in rng.integers(len(NUMBERS), size=size)]


def noise(rng):
    return list(NOISES.values())[rng.integers(len(NOISES))]


def finite(rng):
    kinds = (Identity, named_factorizations, lambda n: Toeplitz.damped(n, 0.1))
    made = kinds[rng.integers(3)](int(rng.integers(2, 9)))
    return made["Anti-PGD"] if isinstance(made, dict) else made


def problem(rng):
    rate = float(10 ** rng.uniform(-4, 0.2)) if rng.random() < 0.8 else number(rng)
    if rng.random() < 0.2:
        return MeanEstimation(rate)
    batch = [1, math.inf, 4, number(rng)][rng.integers(4)]
    return theory.LinearRegression(vector(rng), rate, batch_size=batch)


def small(rng):
    return theory.LinearRegression(vector(rng), 0.01)


def convex(rng):
    if rng.random() < 0.5:
        return theory.StronglyConvex(float(10 ** rng.uniform(0, 6)), float(10 ** rng.uniform(-6, 0)))
    return theory.StronglyConvex(number(rng), number(rng), number(rng), count(rng), number(rng))


def domain(rng):
    made = [
        AllSpace,
        lambda: theory.Ball(number(rng), number(rng)),
        lambda: theory.Simplex(number(rng)),
    ]
    return made[rng.integers(len(made))]()


def potential(rng):
    return [Euclidean(), Entropy(), PNorm(1.3), PNorm(1.05)][rng.integers(4)]


def step(rng):
    y, rate, where, base = vector(rng), number(rng), domain(rng), potential(rng)
    found = theory.mirror_step(y, rate, base, where)
    return found, optimality_gap(found, y, rate, base, where)


def named(function, **kinds):
    return lambda rng: function(**{name: kind(rng) for name, kind in kinds.items()})


CALLS = {
    "asymptotic": lambda g: theory.asymptotic_suboptimality(problem(g), noise(g), rho=number(g)),
    "trajectory": lambda g: theory.trajectory(problem(g), noise(g), steps=count(g), rho=number(g)),
    "optimal": lambda g: theory.optimal_noise(problem(g)),
    "damped": lambda g: damped_noise(problem(g)),
    "Anti-PGD": lambda g: anti_pgd_noise(problem(g)),
    "BLT": lambda g: theory.blt_noise(problem(g), buffers=count(g)),
    "banded": lambda g: banded_noise(problem(g), bands=count(g)),
    "inverse": lambda g: theory.banded_inverse_noise(problem(g), bands=count(g)),
    "workload": lambda g: problem(g).workload(count(g)),
    "exposure": lambda g: spectrum(noise(g)).exposure(vector(g)),
    "endless": lambda g: spectrum(endless.damped(number(g))).power(vector(g)),
    "convex": lambda g: theory.strongly_convex_bound(
        convex(g), noise(g), rho=number(g), causal=g.random() < 0.5
    ),
    "moments": lambda g: theory.regression_bounds(
        theory.LinearRegression(vector(g), 0.01), noise(g), rho=number(g), kurtosis=number(g)
    ),
    "mirror": step,
    "l1": lambda g: theory.l1_step(vector(g), number(g), number(g)),
    "lq": lambda g: ExponentialPower(number(g), number(g)).divergence(number(g), number(g)),
    "lq epsilon": lambda g: lq_epsilon(
        finite(g),
        ExponentialPower(number(g), number(g)),
        norm=number(g),
        dimension=count(g),
        delta=number(g),
        orders=(1.5, number(g)),
    ),
    "nonconvex": lambda g: nonconvex_bound(
        finite(g), smoothness=number(g), period=count(g), start_gap=number(g), sigma=number(g)
    ),
    "convex run": lambda g: convex_bound(
        finite(g), smoothness=number(g), period=count(g), distance=number(g), sigma=number(g)
    ),
    "PGD": named(pgd_bound, steps=count, smoothness=number, rate=number, distance=number, sigma=number),
    "last": named(
        theory.last_iterate_excess, steps=count, gradient_bound=number, distance=number, rate=number
    ),
    "orders": named(population_risk_orders, n=count, dimension=count, epsilon=number),
    "rates": named(
        finite_time_rates,
        eigenvalues=vector,
        steps=count,
        rho=number,
        distance=number,
        residual_std=number,
    ),
    "decay": named(half_exponential_decay, noise=noise, steps=count, decay_rate=number),
    "iteration": named(
        theory.last_iterate_rho,
        steps=count,
        position=count,
        smoothness=number,
        rate=number,
        lipschitz=number,
        noise_std=number,
    ),
    "contraction": named(contraction_rho, steps=count, fade=number, sensitivity=number, noise_std=number),
    "risk": named(damped_toeplitz_risk, eigenvalues=vector, learning_rate=number, mu=number, damping=number),
}


def ours(error):
    kind = type(error)
    if isinstance(error, UnsupportedError):
        return True
    return kind in (ValueError, ArithmeticError) and len(str(error)) > 20


def fuzz(name, calls, seed):
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(calls):
            state, started = rng.bit_generator.state, time.process_time()
            try:
                CALLS[name](rng)
            except Exception as error:
                assert ours(error), (name, state["state"], repr(error))
            assert time.process_time() - started < 10, (name, state["state"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # KiB


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_no_input_hangs_or_ends_in_an_error_that_is_not_ours(name):
    fuzz(name, 400, seed=11)

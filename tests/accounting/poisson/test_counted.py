"""Gaussians by the number of participations: never below the truth, and where they are needed."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from anechoic.accounting.poisson.counted import MOST, Counted, counted_of
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import Poisson
from anechoic.strategies import BLT, BandedToeplitz
from tests.marks import each_once

N = 6


@pytest.mark.parametrize(("std", "rate"), each_once([0.7, 2.0], [0.02, 0.3]))
@pytest.mark.slow
def test_never_below_the_mixture_over_all_patterns(rate, std):
    strategy = BandedToeplitz(N, [1.0, 0.8, 0.5, 0.2])
    counted = counted_of(strategy, 1, rate)
    patterns = np.array(list(product([0.0, 1.0], repeat=N))).T
    means = strategy.to_dense() @ patterns
    chance = np.log(rate) * patterns.sum(axis=0) + np.log1p(-rate) * (N - patterns.sum(axis=0))
    rng, count = np.random.default_rng(0), 100_000
    noise = std * rng.standard_normal((count, N))
    for direction in ("remove", "add"):
        drawn = rng.choice(len(chance), size=count, p=np.exp(chance))
        y = noise + (means[:, drawn].T if direction == "remove" else 0.0)
        losses = logsumexp(
            chance + (y @ means) / std**2 - np.square(means).sum(axis=0) / (2 * std**2), axis=1
        )
        for epsilon in (0.0, 0.2, 1.0, 3.0):
            sign = epsilon - losses if direction == "remove" else epsilon + losses
            values = -np.expm1(np.minimum(sign, 0.0))
            assert counted.delta(epsilon, std) >= values.mean() - 4 * values.std() / math.sqrt(count)


@pytest.mark.slow
def test_one_step_is_the_sampled_gaussian_exactly():
    """Against dp-accounting's closed form of subsampling: q H_{1 + (e^epsilon - 1) / q}."""
    from anechoic.accounting.poisson.epsilon import poisson_epsilon

    counted = Counted(0.1, np.array([0.1]), 0.0, np.array([1.0]))
    for delta in (1e-3, 1e-6):
        found = counted.epsilon(delta, 0.8, 50.0)
        assert found == pytest.approx(poisson_epsilon(delta, 0.8, 0.1, 1), rel=1e-3)


def test_few_participations_in_overlapping_bands():
    """2.75 without this bound; about .1 is near the truth."""
    strategy = BLT(200, [0.1, 0.05], [0.99, 0.9])
    counted = counted_of(strategy, 1, 0.004)
    assert counted.epsilon(0.01, 3.0, 2.75) < 1.0
    assert counted_of(strategy, 1, 0.5) is None


@pytest.mark.slow
def test_the_accountant_takes_the_least():
    strategy = BLT(200, [0.1, 0.05], [0.99, 0.9])
    assert Mechanism(strategy, Poisson(1000, 4, 200), 3.0, delta=0.01).epsilon() < 1.0


def test_what_is_not_looked_at_counts_in_full():
    strategy = BandedToeplitz(400, [1.0, 0.5])
    counted = counted_of(strategy, 1, 0.01)
    assert len(counted.weights) == MOST
    assert counted.delta(100.0, 1e3) == pytest.approx(counted.more, rel=1e-9)
    assert counted.weights.sum() + counted.more == pytest.approx(counted.taken, rel=1e-9)


@pytest.mark.slow
def test_calibration_uses_it():
    strategy, sampling = BLT(60, [0.1, 0.05], [0.99, 0.9]), Poisson(1000, 4, 60)
    mechanism = calibrate(strategy, sampling=sampling, epsilon=0.5, delta=0.02)
    assert 0.45 < mechanism.epsilon() <= 0.5
    counted = counted_of(strategy, 1, 0.004)
    assert counted.less_noise(0.5, 0.02, 100.0) >= mechanism.noise_std * (1 - 1e-9)
    assert counted.less_noise(0.5, 0.02, 1e-3) == 1e-3

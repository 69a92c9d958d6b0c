"""Overlapping bands under Poisson sampling beside the exact mixture of all patterns of participation."""

import itertools
import math

import numpy as np
import pytest

import anechoic as an
from anechoic.sampling import Poisson

STEPS, DELTA = 10, 1e-5


def mixture_delta(matrix, rate, std, epsilon, samples=20_000, seed=0):
    """(estimate, standard error) of the hockey stick of the mixture over N(0, std^2), by importance sampling.

    Patterns are drawn at several rates, so that rare ones with many participations are seen, and the noise
    is moved along the mean of all participations, so that its tail is.
    """
    rng, steps = np.random.default_rng(seed), matrix.shape[1]
    x = np.array(list(itertools.product([0.0, 1.0], repeat=steps)))
    count = x.sum(axis=1)

    def law(p):
        return np.exp(count * math.log(p) + (steps - count) * math.log1p(-p))

    true, drawn = law(rate), np.mean([law(p) for p in (rate, min(0.5, 3 * rate), 0.5, 0.8)], axis=0)
    along = matrix.sum(axis=1) / np.linalg.norm(matrix.sum(axis=1))
    means = np.concatenate([x @ matrix.T + shift * std * along for shift in (0, 1, 2.5, 4)])
    true = np.append(true, np.zeros(3 * len(x)))
    drawn = np.tile(drawn / 4, 4)
    halves = np.square(means).sum(axis=1) / (2 * std**2)
    y = means[rng.choice(len(means), samples, p=drawn)] + std * rng.standard_normal((samples, steps))
    values = []
    for part in np.array_split(y, 40):
        logs = part @ means.T / std**2 - halves
        top = logs.max(axis=1, keepdims=True)
        loss, other = (np.log(np.exp(logs - top) @ weights) + top[:, 0] for weights in (true, drawn))
        values.append(np.exp(loss - other) * -np.expm1(np.minimum(epsilon - loss, 0.0)))
    values = np.concatenate(values)
    return values.mean(), values.std() / math.sqrt(samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bands", "rate", "epsilon", "most"),
    [
        (10, 0.01, 2.0, 1.2),
        (10, 0.01, 8.0, 1.2),
        (4, 0.05, 2.0, 1.2),
        (10, 0.2, 2.0, 1.1),
        (4, 0.5, 0.5, 1.1),
    ],
)
def test_noise_is_above_that_of_the_exact_mixture_and_how_far(bands, rate, epsilon, most):
    """At the noise of `calibrate` the truth is safe; at that noise over `most` it is not."""
    workload = an.workloads.prefix_sum(STEPS)
    strategy = an.optimize.banded_toeplitz(workload, bands=bands).strategy
    sampling = Poisson(1_000_000, round(1_000_000 * rate), STEPS)
    std = an.calibrate(strategy, sampling=sampling, epsilon=epsilon, delta=DELTA).noise_std
    matrix = strategy.to_dense()
    value, error = mixture_delta(matrix, rate, std, epsilon)
    assert value - 4 * error <= DELTA
    value, error = mixture_delta(matrix, rate, std / most, epsilon)
    assert value - 4 * error > DELTA

"""Amplified accounting against references: python benchmarks/accounting.py

    python benchmarks/accounting.py --plain 100000000    # a reference by plain sampling (about half an hour)

Balls in bins at (epsilon = 1, delta = 1e-5, n = 3900, 390 bins, C[i, j] = 0.9^(i - j)): the noise by a point
estimate, verified, and without sampling error, each over a reference. The reference is the mean of point
estimates at other seeds, by importance sampling; or, with --plain, the noise at which plain samples of the
privacy loss have the wanted delta.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import logsumexp

from anechoic import calibrate
from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import BallsInBins
from anechoic.strategies import Toeplitz

N, BINS, EPSILON, DELTA = 3900, 390, 1.0, 1e-5
CHUNK = 50_000


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, wall seconds, processor seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def plain_delta(gram: np.ndarray, std: float, samples: int) -> tuple[float, float]:
    """delta(EPSILON) in the remove direction from plain samples, and its standard error."""
    factor = np.linalg.cholesky(gram + 1e-12 * gram.max() * np.eye(len(gram)))
    own, rng, total, squares = np.diag(gram) / (2 * std**2), np.random.default_rng(2024), 0.0, 0.0
    for start in range(0, samples, CHUNK):
        count = min(CHUNK, samples - start)
        drawn = rng.standard_normal((count, len(gram))) @ factor.T / std
        drawn += gram[rng.integers(len(gram), size=count)] / std**2
        loss = logsumexp(drawn - own, axis=1) - np.log(len(gram))
        values = np.maximum(0.0, -np.expm1(np.minimum(EPSILON - loss, 0.0)))
        total, squares = total + values.sum(), squares + np.square(values).sum()
    mean = total / samples
    return mean, np.sqrt((squares / samples - mean**2) / samples)


def reference(mixture: Mixture, gram: np.ndarray, plain: int) -> tuple[float, float, str]:
    """Noise std, its standard error, and how it was found."""
    found = [mixture.noise_std(EPSILON, DELTA, seed=seed) for seed in range(101, 113)]
    mean, error = float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found)))
    if not plain:
        return mean, error, f"mean of {len(found)} importance-sampled estimates"
    delta, spread = plain_delta(gram, mean, plain)
    # delta falls about as the slope below says near the estimate; one Newton step in log std
    step = 1.01
    slope = np.log(plain_delta(gram, mean * step, plain // 10)[0] / delta) / np.log(step)
    std = mean * (DELTA / delta) ** (1 / slope)
    return std, abs(std * spread / delta / slope), f"{plain:,} plain samples"


def balls_in_bins(plain: int) -> None:
    """The setting of arXiv 2410.06266 and 2601.22334 with one decay."""
    strategy, sampling = Toeplitz(N, 0.9 ** np.arange(N)), BallsInBins(100 * BINS, BINS, N)
    gram = bins_gram(strategy, BINS)
    mixture = Mixture(gram)
    std, error, how = reference(mixture, gram, plain)

    def calibrated(accounting: Any) -> Mechanism:
        return calibrate(strategy, sampling=sampling, epsilon=EPSILON, delta=DELTA, accounting=accounting)

    print(f"balls in bins, n = {N}, {BINS} bins, epsilon = {EPSILON}, delta = {DELTA}, decay .9")
    print(f"  reference noise std {std:.4f} +- {error:.4f} ({how})")
    for name, work in (
        ("point estimate", lambda: mixture.noise_std(EPSILON, DELTA)),
        ("verified", lambda: calibrated("verified").noise_std),
        ("without sampling error", lambda: calibrated("deterministic").noise_std),
    ):
        found, wall, cpu = timed(work)
        print(
            f"  {name:<24}{found:.4f}  {found / std - 1:+.2%}  {wall:6.1f} s, {cpu:.1f} s of processor time"
        )
    bound = Mechanism(strategy, sampling, 7.435, delta=DELTA).epsilon()
    point = point_epsilon(mixture, 7.435)
    print(f"  at noise std 7.435: epsilon {bound:.4f} without sampling error, {point:.4f} by point estimate")


def point_epsilon(mixture: Mixture, std: float) -> float:
    """Epsilon at which the estimated noise is `std`, by bisection."""
    low, high = 0.1, 10.0
    for _ in range(16):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if mixture.noise_std(middle, DELTA) <= std else (middle, high)
    return high


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", type=int, default=0, help="samples of a plain reference; 0 for none")
    options = parser.parse_args()
    balls_in_bins(options.plain)


if __name__ == "__main__":
    main()

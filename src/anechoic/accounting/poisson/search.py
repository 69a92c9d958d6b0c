"""A fast estimate of the noise that (cyclic) Poisson sampling needs: to rank many candidates, not to state.

The estimate inverts the transform of the privacy loss. For L = log(dP/dQ) of one release under P and
M(z) = E e^(z L), T composed releases have

    delta(epsilon) = (1 / 2 pi i) integral of M(z)^T e^(-z epsilon) / (z (z + 1)) dz

along any vertical line with Re z > 0; through the saddle point the integrand falls off like a Gaussian and
some fifty points of the trapezoidal rule are exact to many digits (Alghamdi et al. 2023, arXiv 2210.00597).
Only the direction "remove" is taken, which is the larger one wherever both were computed. What is deployed is
`poisson_noise_multiplier`'s business, which returns what `poisson_epsilon` has confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft

from anechoic._validate import Array, fraction, one_of, positive_float, positive_int
from anechoic.accounting.gaussian import UNSAMPLED_FROM
from anechoic.accounting.poisson.epsilon import (
    ADJACENCIES,
    least_noise_from,
    noise_guess,
    sampling_rate,
    taking_part,
    unsampled_noise,
)

#: The trapezoidal rule ends where the integrand has fallen to this part of its top.
_NEGLIGIBLE = 1e-9
#: Points of the integral, and products of points and losses, beyond which a grid is faster.
_MOST_POINTS = 190
_MOST_PRODUCTS = 60_000
_GRID = 2**14
_MOST_HELD = 2**17  # points of the noise of one release, beyond which nothing is estimated
_WINDOW = 10.0  # standard deviations of the tilted law on each side of the grid
_REACH = 11.0  # standard deviations of the tilted law that are kept
_TOLERANCE = 1e-6  # relative, of the noise multiplier


@lru_cache(maxsize=1 << 16)
def poisson_noise_multiplier_estimate(
    epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """The least noise multiplier, to about 1e-4 (relative), without any guarantee: for rankings.

    Args:
        epsilon: > 0.
        delta: in (0, 1).
        rate: sampling probability in (0, 1].
        compositions: >= 1.
        adjacency: "zero_out", "replace_one" or "add_or_remove".
    """
    epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
    compositions, rate = positive_int("compositions", compositions), sampling_rate(rate)
    one_of("adjacency", adjacency, ADJACENCIES)
    unsampled = unsampled_noise(epsilon, delta, compositions, adjacency=adjacency)
    if rate == 1.0 or epsilon >= UNSAMPLED_FROM:
        return unsampled
    guess = noise_guess(epsilon, delta, rate, compositions, adjacency=adjacency)
    if taking_part(rate, compositions) <= delta:
        return guess  # none is needed
    found = _crossing(guess, epsilon, delta, rate, compositions, adjacency)
    if found is not None:
        return min(found, unsampled)
    return least_noise_from(guess, epsilon, delta, rate, compositions, adjacency=adjacency)


def poisson_noise_multiplier(
    epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """Return a noise multiplier at which `poisson_epsilon` <= epsilon, within 1e-4 (relative) of the least.

    The least is that of the exact composition; where the loss of one release would need more than 2^16 points
    (large losses at a tiny rate), or epsilon is below 1e-5, the excess may be larger. It begins at the
    estimate, so that one or two evaluations of `poisson_epsilon` do.

    Args:
        epsilon: > 0.
        delta: in (0, 1).
        rate: sampling probability in (0, 1].
        compositions: releases, >= 1.
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: if an argument is out of range, or delta at least the probability of taking part at all.
    """
    one_of("adjacency", adjacency, ADJACENCIES)  # a list has no hash
    return _noise_multiplier(epsilon, delta, rate, compositions, adjacency)


@lru_cache(maxsize=4096)
def _noise_multiplier(epsilon: float, delta: float, rate: float, compositions: int, adjacency: str) -> float:
    sigma = poisson_noise_multiplier_estimate(epsilon, delta, rate, compositions, adjacency=adjacency)
    # grids are pessimistic
    return least_noise_from(sigma * (1 + 2e-5), epsilon, delta, rate, compositions, adjacency=adjacency)


def _crossing(
    guess: float, epsilon: float, delta: float, rate: float, compositions: int, adjacency: str
) -> float | None:
    """Where log delta crosses its target, by secants in log sigma held in a bracket; None without shape."""
    low, high = -math.inf, math.inf
    points: list[tuple[float, float]] = []
    x = math.log(guess)
    for _ in range(60):
        value = _log_delta(epsilon, math.exp(x), rate, compositions, adjacency)
        if value is None:
            return None
        excess = value - math.log(delta)
        low, high = (x, high) if excess > 0 else (low, x)
        points.append((x, excess))
        step = 0.1 if excess > 0 else -0.1
        if len(points) > 1:
            (x0, f0), (x1, f1) = points[-2:]
            if f1 != f0:
                step = -f1 * (x1 - x0) / (f1 - f0)
        if abs(step) < _TOLERANCE:
            return math.exp(x + step)
        step = max(-0.5, min(0.5, step))
        x += step
        if not low < x < high:
            x = 0.5 * (low + high)
            if high - low < _TOLERANCE:
                return math.exp(x)
    return None


def _log_delta(epsilon: float, sigma: float, rate: float, compositions: int, adjacency: str) -> float | None:
    """log delta(epsilon) of the direction "remove"; None where it is 0 to double precision."""
    law = _Release(sigma, rate, adjacency)
    saddle = _saddle(law, epsilon, compositions)
    if saddle is None:
        return None
    top = compositions * law.log_moment(saddle) - saddle * epsilon
    found = _by_integral(law, saddle, epsilon, compositions)
    if found is None:
        found = _by_grid(law, saddle, epsilon, compositions)
    return top + math.log(found) if found > 0 else None


def _by_integral(law: _Release, saddle: float, epsilon: float, compositions: int) -> float | None:
    """delta e^(z epsilon) / M(z)^T by the trapezoidal rule through the saddle z; None where it is slow."""
    x, losses, logs = law.tilted(saddle)
    mean = float(np.exp(logs) @ losses)
    variance = compositions * float(np.exp(logs) @ np.square(losses - mean))
    spread = math.sqrt(variance + saddle**-2 + (1 + saddle) ** -2)
    step = math.pi / (_REACH * spread)
    total, start, size = 0.0, 0, 64
    while start < _MOST_POINTS:
        t = step * np.arange(start, start + size)
        while t[-1] * float(np.abs(np.diff(losses)).max()) > 2.0:  # such frequencies are not resolved
            if size * len(x) > _MOST_PRODUCTS:
                return None
            law = law.refined()
            x, losses, logs = law.tilted(saddle)
        # M(z) / M(saddle): the weights are those of the tilted law; powers of one turn
        turns = np.exp(1j * np.outer([t[0], step], losses))[np.minimum(np.arange(size), 1)]
        ratio = np.cumprod(turns, axis=0) @ np.exp(logs)
        z = saddle + 1j * t
        with np.errstate(divide="ignore"):
            values = np.exp(compositions * np.log(ratio) - 1j * t * epsilon) / (z * (z + 1))
        total += float(values.real.sum()) - (0.5 * float(values[0].real) if start == 0 else 0.0)
        if float(np.abs(values[-8:]).max()) < _NEGLIGIBLE / (saddle * (saddle + 1)):
            return total * step / math.pi
        start, size = start + size, 2 * size
    return None


def _by_grid(law: _Release, saddle: float, epsilon: float, compositions: int) -> float:
    """The same from the tilted law on a grid, composed by FFT: for runs in which few releases matter."""
    mean, variance = law.moments(saddle)
    width = 2 * _WINDOW * math.sqrt(compositions * variance) / _GRID
    x, losses, logs = law.tilted(saddle)
    while float(np.abs(np.diff(losses)).max()) > width and len(x) < 4 * _GRID:
        law = law.refined()
        x, losses, logs = law.tilted(saddle)
    places = (losses - mean) / width
    nearest = np.rint(places).astype(np.int64)
    weights, off = np.exp(logs), places - nearest
    # split among three neighbours, the outer two with shares of any sign, so that mean and variance are kept
    masses = np.zeros(_GRID)
    for shift, share in ((-1, off * (off - 1) / 2), (0, 1 - off * off), (1, off * (off + 1) / 2)):
        masses += np.bincount((nearest + shift) % _GRID, weights * share, _GRID)
    composed = fft.irfft(fft.rfft(masses) ** compositions, _GRID)
    k = np.arange(_GRID)
    above = compositions * mean + width * np.where(k < _GRID // 2, k, k - _GRID) - epsilon
    kept = above > 0
    return float(composed[kept] @ (np.exp(-saddle * above[kept]) * -np.expm1(-above[kept])))


def _saddle(law: _Release, epsilon: float, compositions: int) -> float | None:
    """The real z > 0 at which M^T e^(-z epsilon) / (z (z + 1)) is least, by bisection in log z."""

    def slope(z: float) -> float:
        return compositions * law.moments(z)[0] - epsilon - 1 / z - 1 / (1 + z)

    low, high = 1e-6, 1.0
    if not law.fits(high):
        return None
    while slope(high) < 0:
        low, high = high, 2 * high
        if high > 1e6 or not law.fits(high):
            return None
    while high > low * 1.02:  # anywhere near it will do
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return math.sqrt(low * high)


@dataclass(frozen=True)
class _Release:
    """One sampled release: P = (1 - q) N(0, s^2) + q N(1, s^2), against N(0, s^2) or P mirrored."""

    sigma: float
    rate: float
    adjacency: str
    finer: float = 1.0

    def refined(self) -> _Release:
        return _Release(self.sigma, self.rate, self.adjacency, 2 * self.finer)

    @property
    def _step(self) -> float:
        # singularities of the loss are pi s^2 away from the real line: the trapezoidal rule is then exact
        return min(self.sigma / 6, self.sigma**2 / 2) / self.finer

    def fits(self, z: float) -> bool:
        """Whether the points for this z can be held."""
        return 2 * (z + 1) + 18 * self.sigma < _MOST_HELD * self._step

    def _grid(self, z: float) -> tuple[Array, Array, Array]:
        """Points x, log P dx, and the loss; z shifts what counts to the right, by at most z + 1."""
        s, q, step = self.sigma, self.rate, self._step
        reach = 9 * s
        lowest = -reach - (z + 1 if self.adjacency == "replace_one" else 0.0)
        x = np.arange(lowest, z + 1 + reach + step, step)
        shifted = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * s * s))
        log_p = shifted - x * x / (2 * s * s) + math.log(step / (s * math.sqrt(2 * math.pi)))
        loss = shifted
        if self.adjacency == "replace_one":
            loss = shifted - np.logaddexp(math.log1p(-q), math.log(q) - (2 * x + 1) / (2 * s * s))
        return x, log_p, loss

    def tilted(self, z: float) -> tuple[Array, Array, Array]:
        """Points that count under the law tilted by e^(z L), their losses and log probabilities."""
        x, log_p, loss = self._grid(z)
        logs = log_p + z * loss
        top = float(logs.max())
        logs = logs - (top + math.log(float(np.exp(logs - top).sum())))
        kept = logs > -45.0
        return x[kept], loss[kept], logs[kept]

    def log_moment(self, z: float) -> float:
        """log E e^(z L)."""
        _, log_p, loss = self._grid(z)
        logs = log_p + z * loss
        top = float(logs.max())
        return top + math.log(float(np.exp(logs - top).sum()))

    def moments(self, z: float) -> tuple[float, float]:
        """Mean and variance of L under the tilted law."""
        _, loss, logs = self.tilted(z)
        weights = np.exp(logs)
        mean = float(weights @ loss)
        return mean, float(weights @ np.square(loss - mean))

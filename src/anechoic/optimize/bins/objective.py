"""The noise std of a Toeplitz strategy under balls in bins, on fixed randomness, with its gradient.

With a first column c >= 0 the mean m_k of bin k is S shifted by k, for S_t = sum_j c_{t - j b}, and the run
is the mixture of `accounting.balls_in_bins.mixture`. In units of the noise, with u_k = <m_k, y>, g_k =
|m_k|^2 / 2 and
L = log (1/b) sum_k exp(u_k - g_k),

    remove: delta = E_Q[(e^L - e^epsilon)_+],        add: delta = E_Q[(1 - e^(epsilon + L))_+].

Samples y = z + t m_i (remove) or z - t mean(m) (add) make both frequent; they are weighted by dQ/dR as in
`accounting.loss_distributions.importance_sampling`. Bins i, tilts t and z are drawn once while c moves,
so that the average is a function of c / s with an exact gradient, and so is the s at which it crosses delta:
ds/dc = -(d delta / dc) / (d delta / ds), where d delta / d log s = -<c, d delta / dc>.

Moving y with the means matters: with y fixed a minimiser fits the samples, not delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from anechoic._validate import Array
from anechoic.accounting.loss_distributions.importance_sampling import DIRECTIONS

_TILTS = {
    "remove": (1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0, 22.0),
    "add": (0.0, 0.5, 1.0, 2.0, 3.5, 6.0, 9.0, 14.0, 21.0),
}
_FEWEST = 30  # values above 0 from which a tilt is judged,
_LEAST = 1e-60  # and their sum
_CHUNK = 2**21  # numbers drawn at a time
_FFT_FROM = 96  # coefficients from which correlations go through the FFT
_TOLERANCE = 1e-9  # of log delta
_STEP = 0.3  # of log s, at most
_ITERATIONS = 60


class BinsNoise:
    """The least noise std for (epsilon, delta) on fixed randomness, as a function of c.

    Args:
        steps: n.
        bins: b.
        taps: entries of c.
        epsilon, delta: the goal.
        samples: of each direction.
        seed: of the samples.
    """

    def __init__(
        self, steps: int, bins: int, taps: int, epsilon: float, delta: float, *, samples: int, seed: int
    ) -> None:
        self.n, self.bins, self.taps = steps, bins, taps
        self.epsilon, self.goal = epsilon, delta
        self._folded = [
            self._drawn(samples, np.random.default_rng((seed, place))) for place in range(len(DIRECTIONS))
        ]
        self._tilts = {"remove": 1.0, "add": 0.0}
        self._log_ratio = 0.0

    def longest(self, column: Array) -> float:
        """Largest |m_k|: what an example adds where its bin is known."""
        return math.sqrt(float(self._means(column).gram.diagonal().max()))

    def aim(self, column: Array, std: float) -> None:
        """Begin at `std`, with the tilts whose values vary least there."""
        self._log_ratio = math.log(std / self.longest(column))
        for direction, folded in zip(DIRECTIONS, self._folded, strict=True):
            means = self._means(column / std)
            least = math.inf
            for tilt in _TILTS[direction]:
                values = self._profile(direction, folded, column / std, means, tilt).values
                total = float(values.sum())
                if total > _LEAST and np.count_nonzero(values) >= _FEWEST:
                    spread = float(np.square(values).sum()) / total**2
                    if spread < least:
                        self._tilts[direction], least = tilt, spread

    def noise_std(self, column: Array) -> tuple[float, Array] | None:
        """s with delta(c / s) = delta by Newton's method on logarithms, and the gradient of log s by c.

        None for a c so far from the one aimed at that no sample counts.
        """
        length = math.log(self.longest(column))
        x = self._log_ratio + length  # s is about in proportion to the means
        low, high = -math.inf, math.inf
        for _ in range(_ITERATIONS):
            value, gradient = self.delta(column * math.exp(-x))
            slope = -float(gradient @ column) * math.exp(-x)  # by log s
            if not (value > _LEAST and slope < 0.0):
                return None
            excess = math.log(value / self.goal)
            low, high = (x, high) if excess > 0 else (low, x)
            if abs(excess) < _TOLERANCE:
                break
            step = max(-_STEP, min(_STEP, -excess * value / slope))
            bounded = math.isfinite(low) and math.isfinite(high)
            x = 0.5 * (low + high) if bounded and not low < x + step < high else x + step
        self._log_ratio = x - length
        return math.exp(x), -gradient * math.exp(-x) / slope

    def delta(self, column: Array) -> tuple[float, Array]:
        """delta(epsilon) of the worse direction at noise std 1, and its gradient by c."""
        means = self._means(column)
        profiles = [
            self._profile(direction, folded, column, means, self._tilts[direction])
            for direction, folded in zip(DIRECTIONS, self._folded, strict=True)
        ]
        place = max((0, 1), key=lambda i: float(profiles[i].values.mean()))
        worst, folded = profiles[place], self._folded[place]
        count = len(folded)
        gradient = self._correlation(folded, worst.by_u)
        gradient += self._gram_pullback(means, self._gram_weights(worst, place))
        return float(worst.values.mean()), gradient / count

    # -- the profile ---------------------------------------------------------------------------

    def _profile(self, direction: str, folded: Array, column: Array, means: _Means, tilt: float) -> _Profile:
        """Values of the samples, and their derivatives by u and by g."""
        u, own = self._correlated(folded, column), means.gram.diagonal() / 2
        if direction == "remove":
            u += tilt * means.gram[np.arange(len(u)) % self.bins]
            logs, tilted = _soft(tilt * u - tilt**2 * own)
        else:
            u -= tilt * means.gram.mean(axis=0)
            logs = -tilt * u.mean(axis=1) - tilt**2 * float(means.gram.mean()) / 2
        loss, shares = _soft(u - own)
        if direction == "remove":
            values = np.exp(loss - logs) * -np.expm1(np.minimum(self.epsilon - loss, 0.0))
            slopes = np.where(loss > self.epsilon, np.exp(loss - logs), 0.0)[:, None] * shares
            away = (tilt * values)[:, None] * tilted
            return _Profile(values, slopes - away, tilt * away.sum(axis=0) - slopes.sum(axis=0), tilt)
        values = np.exp(-logs) * -np.expm1(np.minimum(self.epsilon + loss, 0.0))
        slopes = np.where(loss < -self.epsilon, np.exp(self.epsilon + loss - logs), 0.0)[:, None] * shares
        by_u = (tilt / self.bins * values)[:, None] - slopes
        return _Profile(values, by_u, slopes.sum(axis=0), tilt)

    def _gram_weights(self, profile: _Profile, place: int) -> Array:
        """Derivative of the sum of the values by each entry of the Gram matrix, z fixed; shape (b, b)."""
        b, tilt = self.bins, profile.tilt
        weights = np.diag(profile.by_own / 2)
        if DIRECTIONS[place] == "remove":
            for i in range(b):
                weights[i] += tilt * profile.by_u[i::b].sum(axis=0)
            return weights
        weights -= tilt * profile.by_u.sum(axis=0) / b
        return weights + tilt**2 * float(profile.values.sum()) / (2 * b * b)

    # -- the means -----------------------------------------------------------------------------

    def _means(self, column: Array) -> _Means:
        """S and the Gram matrix: <m_i, m_k> = sum of S_t S_{t + k - i} over t < n - k, for i <= k."""
        rows = -(-self.n // self.bins)
        grid = np.zeros(rows * self.bins)
        grid[: len(column)] = column
        s = np.cumsum(grid.reshape(rows, self.bins), axis=0).reshape(-1)[: self.n]
        gram = np.zeros((self.bins, self.bins))
        last = min(self.bins, self.n)
        for lag in range(last):
            sums = np.cumsum(s[: self.n - lag] * s[lag:])
            k = np.arange(lag, last)
            gram[k - lag, k] = gram[k, k - lag] = sums[self.n - k - 1]
        return _Means(s, gram)

    def _gram_pullback(self, means: _Means, weights: Array) -> Array:
        """d/dc of sum_ik weights_ik G_ik, shape (taps,)."""
        s, by_sum = means.sums, np.zeros(self.n)
        last = min(self.bins, self.n)
        both = weights + weights.T
        for lag in range(last):
            k = np.arange(lag, last)
            ends = np.zeros(self.n - lag)
            ends[self.n - k - 1] = both[k - lag, k] if lag else weights[k, k]
            products = np.cumsum(ends[::-1])[::-1]
            by_sum[: self.n - lag] += products * s[lag:]
            by_sum[lag:] += products * s[: self.n - lag]
        rows = -(-self.n // self.bins)
        grid = np.pad(by_sum, (0, rows * self.bins - self.n)).reshape(rows, self.bins)
        return np.asarray(np.cumsum(grid[::-1], axis=0)[::-1].reshape(-1)[: self.taps])

    # -- samples -------------------------------------------------------------------------------

    def _drawn(self, samples: int, rng: np.random.Generator) -> Array:
        """sum_j z[:, a + j b] for a < taps + b - 1 and standard normal z, shape (samples, taps + b - 1)."""
        width, rows = self.taps + self.bins - 1, -(-self.n // self.bins)
        result = np.zeros((samples, width))
        size = max(1, _CHUNK // self.n)
        for start in range(0, samples, size):
            count = min(size, samples - start)
            grid = np.zeros((count, rows * self.bins))
            grid[:, : self.n] = rng.standard_normal((count, self.n))
            blocks = grid.reshape(count, rows, self.bins)[:, ::-1]
            np.cumsum(blocks, axis=1, out=blocks)
            kept = grid[:, : self.n][:, :width]
            result[start : start + count, : kept.shape[1]] = kept
        return result

    def _correlated(self, folded: Array, column: Array) -> Array:
        """<m_k, z> = sum_t c_t folded[:, k + t] for k < b."""
        if self.taps < _FFT_FROM:
            result = np.zeros((len(folded), self.bins))
            for t in range(self.taps):
                result += column[t] * folded[:, t : t + self.bins]
            return result
        size = fft.next_fast_len(folded.shape[1], real=True)
        product = fft.rfft(folded, size) * np.conj(fft.rfft(column, size))
        return np.asarray(fft.irfft(product, size)[:, : self.bins])

    def _correlation(self, folded: Array, weights: Array) -> Array:
        """sum over samples and k of weights[:, k] folded[:, k + t], for t < taps."""
        if self.taps < _FFT_FROM:
            return np.array([np.vdot(weights, folded[:, t : t + self.bins]) for t in range(self.taps)])
        size = fft.next_fast_len(folded.shape[1], real=True)
        product = np.sum(fft.rfft(folded, size) * np.conj(fft.rfft(weights, size)), axis=0)
        return np.asarray(fft.irfft(product, size)[: self.taps])


@dataclass(frozen=True)
class _Means:
    sums: Array  # S, shape (n,)
    gram: Array  # shape (b, b)


@dataclass(frozen=True)
class _Profile:
    values: Array  # shape (samples,)
    by_u: Array  # their derivatives, shape (samples, b)
    by_own: Array  # of their sum by g, shape (b,)
    tilt: float


def _soft(x: Array) -> tuple[Array, Array]:
    """log of the mean of exp over the last axis, and its derivative."""
    top = x.max(axis=1, keepdims=True)
    powers = np.exp(x - top)
    total = powers.sum(axis=1, keepdims=True)
    return np.asarray((top + np.log(total / x.shape[1]))[:, 0]), powers / total

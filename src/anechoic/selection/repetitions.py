"""Laws of the secret random number of runs, which pays for the choice.

Papernot and Steinke (arXiv 2110.03620): geometric and logarithmic, two of the truncated negative binomial
laws, and Poisson.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property

import numpy as np

from anechoic._validate import Array, one_of, positive_float
from anechoic.keys import derive

_SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
_DIGITS = 60  # of probabilities, from which a number of runs is drawn by 256 bits
_MOST = 1e6  # runs in the mean
_LEAST_STOP = 1e-15  # probability that a run is the last one


@dataclass(frozen=True)
class Repetitions:
    """The law of K, by its mean and shape, as dp-accounting names them.

    Args:
        mean: E[K], at most 10^6; above 1, and for Poisson above 0.
        shape: 1 is geometric, 0 logarithmic, `math.inf` Poisson, whose K may be 0.

    Raises:
        ValueError: for a number out of range.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if self.shape not in _SHAPES.values():
            raise ValueError(f"shape={self.shape} must be 1 (geometric), 0 (logarithmic) or inf (Poisson).")
        mean = positive_float("mean", self.mean)
        if not mean <= _MOST:
            raise ValueError(f"mean={mean:g} runs are more than {_MOST:g}: give the expected number of runs.")
        if self.shape != math.inf and not mean > 1.0 + 1e-6:
            raise ValueError(
                f"mean={mean:g} must be above 1, since there is always one run: give the expected number of"
                " runs, or repetitions='poisson', which may make none."
            )
        object.__setattr__(self, "mean", mean)

    @classmethod
    def named(cls, name: str, mean: float) -> Repetitions:
        """By the name of the law.

        Raises:
            ValueError: for another name, or a number out of range.
        """
        return cls(mean, _SHAPES[one_of("repetitions", name, tuple(_SHAPES))])

    @cached_property
    def stop(self) -> float:
        """gamma in (0, 1): of the geometric law, the probability that a run is the last one."""
        low, high = math.log(_LEAST_STOP), -1e-12  # of log gamma: the mean falls
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._mean_at(middle) > self.mean else (low, middle)
        return math.exp(high)

    def _mean_at(self, log_stop: float) -> float:
        rest = -math.expm1(log_stop)
        if self.shape == 0.0:
            return rest / math.exp(log_stop) / -log_stop
        return self.shape * rest / math.exp(log_stop) / -math.expm1(self.shape * log_stop)

    def log_slope(self, left: Array) -> tuple[Array, Array]:
        """log f' and its derivative at 1 - `left`, for f(t) = E[t^K]."""
        if self.shape == math.inf:
            return math.log(self.mean) - self.mean * left, np.full(np.shape(left), self.mean)
        rest, power = 1.0 - self.stop, self.shape + 1.0
        level = math.log(self._mean_at(math.log(self.stop))) - power * np.log1p(rest * left / self.stop)
        return level, power * rest / (self.stop + rest * left)

    def absent(self, probability: float) -> float:
        """f(1 - probability): that no run is one of those that are drawn with this `probability`."""
        if self.shape == math.inf:
            return math.exp(-self.mean * probability)
        log_kept = math.log(self.stop + (1.0 - self.stop) * probability)
        if self.shape == 0.0:
            return log_kept / math.log(self.stop)
        return math.expm1(-self.shape * log_kept) / math.expm1(-self.shape * math.log(self.stop))

    def draw(self, key: bytes) -> int:
        """Draw K as a function of a key of 32 bytes, from probabilities of 60 digits."""
        bits = int.from_bytes(derive(key, "repetitions", size=32), "little")
        with localcontext() as context:
            context.prec = _DIGITS
            uniform = (2 * Decimal(bits) + 1) / Decimal(2) ** 257
            count, mass = self._first()
            rest, shape = 1 - Decimal(0.0 if self.shape == math.inf else self.stop), Decimal(0)
            if self.shape != math.inf:
                shape = Decimal(self.shape)
            total = mass
            while uniform > total and not (count > self.mean and mass < Decimal(10) ** -_DIGITS):
                grows = Decimal(self.mean) if self.shape == math.inf else rest * (count + shape)
                count, mass = count + 1, mass * grows / (count + 1)
                total += mass
        return count

    def _first(self) -> tuple[int, Decimal]:
        """The least K, and its probability."""
        if self.shape == math.inf:
            return 0, (-Decimal(self.mean)).exp()
        stop, shape = Decimal(self.stop), Decimal(self.shape)
        if not shape:
            return 1, (1 - stop) / -stop.ln()
        return 1, shape * (1 - stop) / ((-shape * stop.ln()).exp() - 1)

    def __str__(self) -> str:
        name = {1.0: "geometric", 0.0: "logarithmic", math.inf: "Poisson"}[self.shape]
        return f"{name}, {self.mean:g} in the mean"

"""Delta of a mixture of shifted Gaussians by importance sampling, with a bound that may enter a guarantee.

P = sum_i w_i N(m_i, s^2 I) against Q = N(0, s^2 I), w a probability over patterns of participation. With
x_i = <m_i, y> / s^2, a_i = |m_i|^2 / (2 s^2) and L = log dP/dQ = log sum_i w_i exp(x_i - a_i),

    removing an example:  delta = E_P[(1 - exp(epsilon - L))_+]
    adding one:           delta = E_Q[(1 - exp(epsilon + L))_+]

Both are sampled from another law R and weighted, which makes rare events frequent:

* remove: R = sum_i w_i N(t m_i, s^2 I), t >= 1. By the inequality of power means dR/dQ >= (dP/dQ)^t
  exp(-t (t - 1) g / 2) with g = max_i |m_i|^2 / s^2, so that each value
  (dP/dQ - e^epsilon)_+ / (dR/dQ) is at most exp(t (t-1) g / 2 - (t-1) epsilon) (1/t) (1 - 1/t)^(t-1).
* add: R = N(-t m, s^2 I), t >= 0, m = sum_i w_i m_i. By Jensen's inequality
  dR/dQ >= (dP/dQ)^-t exp(-t A - t^2 |m|^2 / (2 s^2)) with A = sum_i w_i a_i, so that each value
  (1 - e^epsilon dP/dQ)_+ / (dR/dQ) is at most
  exp(t A + t^2 |m|^2 / (2 s^2) - t epsilon) (1 / (1 + t)) (t / (1 + t))^t.

Divided by its proven range a value lies in [0, 1], and the mean has a confidence bound
(`accounting.monte_carlo.confidence`). The range and the values fall in epsilon.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anechoic._validate import Array, fraction, positive_float, positive_int
from anechoic.accounting.gaussian import gaussian_mu
from anechoic.accounting.monte_carlo.confidence import LARGEST_BET, upper_mean_of
from anechoic.accounting.search import smallest

DIRECTIONS = ("remove", "add")
CHUNK = 2**20  # numbers in one block of samples
POINT = 40_000  # samples of a point estimate
LEAST = 20_000  # samples of a direction, at least, in a verification
ROUNDING = 1e-9  # relative excess of a bound over what was computed in double precision

_MARGIN = 0.95  # of delta is aimed at by a noise std that is to be verified
_TILTS = np.geomspace(1e-3, 60.0, 400)
_AMOUNTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # tilts that a point estimate tries
_RANGE = 1.4  # times the least range is allowed where a larger tilt lowers the variance


class DeltaEstimate(NamedTuple):
    """Of delta, in the worse direction: the mean, without guarantee, and a bound that may fail."""

    delta: float
    upper: float


@dataclass(frozen=True)
class Tilt:
    """How a direction is sampled for epsilons >= `epsilon`: R of parameter `amount`, values <= `range`."""

    direction: str
    epsilon: float
    amount: float
    range: float


class TiltedPair(ABC):
    """The pair (P, Q); s, the noise std, is given with each question.

    Attributes:
        largest: max_i |m_i|^2, or a bound on it.
        average: sum_i w_i |m_i|^2.
        shared: |sum_i w_i m_i|^2.
        numbers: that one sample takes.
        cycle: samples after which a pattern that is taken in turn comes again; 1 where it is drawn.
    """

    largest: float
    average: float
    shared: float
    numbers: int
    cycle: int = 1

    @abstractmethod
    def draw(self, rng: np.random.Generator, start: int, count: int) -> Any:
        """The randomness of samples start … start + count - 1, for any noise and tilt."""

    @abstractmethod
    def part(self, drawn: Any, count: int) -> Any:
        """The first `count` samples of what was drawn."""

    @abstractmethod
    def pairs(self, drawn: Any, std: float, tilt: Tilt) -> tuple[Array, Array]:
        """(L, log dR/dQ) of those samples from R whose value at tilt.epsilon is positive."""

    def tilt(self, epsilon: float, std: float, direction: str) -> Tilt:
        """The law to sample from: about the least proven range, and of those the largest tilt."""
        t = _TILTS
        if direction == "remove":
            t = 1.0 + t
            logs = t * (t - 1) * self.largest / (2 * std**2)
            logs += -(t - 1) * epsilon - np.log(t) + (t - 1) * np.log1p(-1 / t)
        else:
            logs = (t * self.average + t**2 * self.shared) / (2 * std**2)
            logs += -t * epsilon - np.log1p(t) + t * np.log(t / (1 + t))
        least = float(logs.min())
        if least >= 0.0:
            return Tilt(direction, epsilon, 1.0 if direction == "remove" else 0.0, 1.0)
        place = int(np.flatnonzero(logs <= min(least + math.log(_RANGE), 0.0))[-1])
        # any number above the range is one too: this one stays clear of what a float64 cannot hold
        return Tilt(direction, epsilon, float(t[place]), math.exp(max(float(logs[place]), -500.0)))

    def epsilons(
        self, deltas: Sequence[float], std: float, *, samples: int, failure: float, seed: int = 0
    ) -> list[float]:
        """For each delta about the least epsilon whose bound is at most that; inf where none is shown.

        All hold at once with probability at least 1 - failure: each takes its part of `failure`. One set of
        samples serves them all, tilted for the smallest epsilon. The bound falls in epsilon on all samples at
        once, so that searching does not weaken it: it fails only if it does at the true epsilon. Samples of
        their own decide where the search begins.

        Args:
            samples: of the direction that needs more, >= 1.
            failure: in (0, 1).
            seed: fixed before anything was computed with it: a noise std that was found with these samples
                needs others.
        """
        failure = fraction("failure", failure) / len(deltas)
        start = 0.98 * self._point_epsilon(0.95 * max(deltas), std, seed)
        profile, found = self._profile(start, std, samples, seed), []
        for delta in deltas:
            if profile.at(math.inf, failure).upper > delta:
                found.append(math.inf)
                continue
            low, high = start, max(1.1 * start, start + 0.05)
            while profile.at(high, failure).upper > delta:
                high *= 1.5

            def shown(epsilon: float, delta: float = delta) -> bool:
                return profile.at(epsilon, failure).upper <= delta

            found.append(smallest(shown, low, high, 1e-4))
        return found

    def plausible(self, epsilon: float, delta: float, std: float, *, samples: int, seed: int) -> bool:
        """Whether `samples` samples leave it possible that the pair has (epsilon, delta): a cheap check."""
        for direction, count, block in self._drawn(samples, seed):
            tilt = self._tilted_for_a_look(block, epsilon, std, self.tilt(epsilon, std, direction))
            values = _values(*self.pairs(block, std, tilt), epsilon, direction)
            mean, square = float(values.sum()) / count, float(np.square(values).sum()) / count
            if mean - 6.0 * math.sqrt(square / count) > delta:
                return False
        return True

    def noise_std(self, epsilon: float, delta: float, *, samples: int = POINT, seed: int = 1) -> float:
        """A point estimate of the least s with delta(epsilon) <= delta: the same samples at every s.

        It carries no guarantee; `epsilons` with another seed has one.

        Args:
            epsilon: > 0.
            delta: in (0, 1).
            samples: of each direction.
        """
        epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
        drawn = self._drawn(samples, seed)
        return self._crossing(lambda std: self._point(drawn, epsilon, std), epsilon, delta, delta)

    def noise_std_to_verify(
        self, epsilon: float, delta: float, *, samples: int, failure: float, seed: int = 1
    ) -> float:
        """A noise std at which samples of another seed should show (epsilon, delta)."""
        drawn = self._drawn(POINT, seed)
        goal = math.log(2.0 / failure)

        def expected(std: float) -> float:
            uppers = []
            for direction, count, block in drawn:
                tilt = self.tilt(epsilon, std, direction)
                found = self._tilted_for_a_look(block, epsilon, std, tilt)
                losses, weights = self.pairs(block, std, found)
                values = _values(losses, weights, epsilon, direction)
                mean = float(values.sum()) / count
                # E_R v^2 of the law that is sampled then, from values of the one that was drawn
                own = weights if found == tilt else (losses if direction == "remove" else 0.0 * losses)
                second = float(values @ _values(losses, own, epsilon, direction)) / count
                bet = min(LARGEST_BET, tilt.range * math.sqrt(2 * goal / samples / max(second, 1e-300)))
                uppers.append(mean + goal * tilt.range / (samples * bet) + bet * second / tilt.range / 2)
            return max(uppers)

        return self._crossing(expected, epsilon, delta, delta * _MARGIN)

    def _crossing(
        self, delta_at: Callable[[float], float], epsilon: float, delta: float, aim: float
    ) -> float:
        """The noise std where a falling function crosses `aim`, at most the one that no sampling needs.

        Raises:
            ValueError: if it crosses nowhere: delta is about the probability of taking part at all.
        """
        high = math.sqrt(self.largest) / gaussian_mu(epsilon, delta)
        if delta_at(high) > aim:  # so few samples show less than is known
            return high
        least, low = 1e-9 * high, high / 2
        while delta_at(low) <= aim:
            if low < least:
                raise ValueError(
                    f"delta={delta} is at least about the probability of taking part at all: any noise would"
                    " do, and the guarantee would say nothing. Choose a smaller delta."
                )
            low, high = low / 2, low
        while high > low * (1 + 1e-4):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if delta_at(middle) <= aim else (middle, high)
        return high

    def _drawn(self, samples: int, seed: int) -> list[tuple[str, int, Any]]:
        count = min(positive_int("samples", samples), max(2000, 2**25 // self.numbers))
        return [
            (direction, count, self.draw(_generator(seed, place), 0, count))
            for place, direction in enumerate(DIRECTIONS)
        ]

    def _point(self, drawn: list[tuple[str, int, Any]], epsilon: float, std: float) -> float:
        """A point estimate of delta, the larger of the two directions."""
        means = []
        for direction, count, block in drawn:
            tilt = self._tilted_for_a_look(block, epsilon, std, self.tilt(epsilon, std, direction))
            losses, weights = self.pairs(block, std, tilt)
            means.append(float(_values(losses, weights, epsilon, direction).sum()) / count)
        return max(means)

    def _tilted_for_a_look(self, block: Any, epsilon: float, std: float, tilt: Tilt) -> Tilt:
        """`tilt`, or where its range is not proven to be below 1 the one whose values vary least.

        An estimate needs no range.
        """
        if tilt.range < 1.0:
            return tilt
        part, best, least = self.part(block, 500), tilt, math.inf
        for amount in _AMOUNTS:
            tried = Tilt(tilt.direction, epsilon, amount + (tilt.direction == "remove"), math.inf)
            values = _values(*self.pairs(part, std, tried), epsilon, tilt.direction)
            if len(values) >= 50 and values.max() > 0.0:
                values /= values.max()  # squares of tiny numbers would vanish
                varies = float(np.square(values).sum()) / float(values.sum()) ** 2
                best, least = (tried, varies) if varies < least else (best, least)
        return best

    def _point_epsilon(self, delta: float, std: float, seed: int) -> float:
        drawn = self._drawn(POINT, seed)
        low, high = 0.0, 1.0
        while self._point(drawn, high, std) > delta:
            low, high = high, 2 * high
        for _ in range(12):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._point(drawn, middle, std) <= delta else (middle, high)
        return high

    def _profile(self, epsilon: float, std: float, samples: int, seed: int) -> _Profile:
        std, samples = positive_float("std", std), positive_int("samples", samples)
        tilts = [self.tilt(epsilon, std, direction) for direction in DIRECTIONS]
        widest, parts = max(tilt.range for tilt in tilts), []
        for place, tilt in enumerate(tilts):
            # the direction with the smaller range needs fewer samples for the same bound
            count = min(samples, max(LEAST, math.ceil(samples * tilt.range / widest)))
            count = -(-count // self.cycle) * self.cycle  # every pattern equally often: the average is right
            pilot = self.pairs(self.draw(_generator(seed, 2 + place), 0, 2000), std, tilt)
            second = float(np.square(_values(*pilot, epsilon, tilt.direction) / tilt.range).sum()) / 2000
            blocks = self._blocks(_generator(seed, 4 + place), count)
            losses, weights = _joined(self.pairs(block, std, tilt) for block in blocks)
            parts.append(_Part(tilt, losses, weights, count, second))
        return _Profile(tuple(parts))

    def _blocks(self, rng: np.random.Generator, samples: int) -> Iterator[Any]:
        size = max(1, CHUNK // self.numbers)
        for start in range(0, samples, size):
            yield self.draw(rng, start, min(size, samples - start))


@dataclass(frozen=True)
class _Part:
    """The samples of one direction."""

    tilt: Tilt
    losses: Array
    weights: Array
    samples: int
    second_moment: float  # a guess at that of the values over the range

    def at(self, epsilon: float, failure: float) -> tuple[float, float]:
        """(sample mean, upper bound) of delta at an epsilon >= tilt.epsilon."""
        values = _values(self.losses, self.weights, epsilon, self.tilt.direction)
        scaled = np.minimum(values[values > 0] / self.tilt.range, 1.0)  # 1 is exceeded by rounding alone
        upper = self.tilt.range * upper_mean_of(scaled, self.samples, failure, self.second_moment)
        return float(values.sum()) / self.samples, min(1.0, upper * (1 + ROUNDING))


@dataclass(frozen=True)
class _Profile:
    """The samples of both directions."""

    parts: tuple[_Part, ...]

    def at(self, epsilon: float, failure: float) -> DeltaEstimate:
        """delta at an epsilon from that of the tilts on."""
        found = [DeltaEstimate(*part.at(epsilon, failure / len(self.parts))) for part in self.parts]
        return max(found, key=lambda estimate: estimate.upper)


def _joined(pairs: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    losses, weights = zip(*pairs, strict=True)
    return np.concatenate(losses), np.concatenate(weights)


def _values(losses: Array, weights: Array, epsilon: float, direction: str) -> Array:
    """(dP/dQ - e^epsilon)_+ / (dR/dQ), or (1 - e^epsilon dP/dQ)_+ / (dR/dQ)."""
    if direction == "remove":
        return np.asarray(np.exp(losses - weights) * -np.expm1(np.minimum(epsilon - losses, 0.0)))
    return np.asarray(np.exp(-weights) * -np.expm1(np.minimum(epsilon + losses, 0.0)))


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, purpose))))

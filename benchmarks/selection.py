"""What the choice of a setting costs: python benchmarks/selection.py

A table of epsilons at delta = 1e-6, of Gaussian runs: of one run, and of the best of a secret number of runs
by `anechoic.select`, by the Renyi bound of Papernot and Steinke (arXiv 2110.03620, as dp-accounting evaluates
it), and by counting as many runs as the mean (which holds without a secret). Before them a lower bound: an
attack that computes delta exactly for an explicit order of outcomes. It takes about a minute and a half.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.special import ndtr

import anechoic
from anechoic.mechanism.mechanism import Mechanism
from anechoic.selection.repetitions import Repetitions
from anechoic.selection.selection import Selection

DELTA = 1e-6
LAWS = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
ORDERS = np.concatenate([1 + np.arange(1, 100) / 10, np.geomspace(11, 1e5, 150)])
#: Places and weights of Gauss's rule on [0, 1].
GAUSS = tuple((0.5 + 0.5 * x, 0.5 * w) for x, w in zip(*np.polynomial.legendre.leggauss(4), strict=True))
THRESHOLDS = np.linspace(0.5, 7.0, 20)


def one_run(epsilon: float) -> Mechanism:
    sampling = anechoic.sampling.External(anechoic.participation.Single(), batch_size=1, steps=4)
    return anechoic.calibrate(
        anechoic.strategies.Identity(4), sampling=sampling, epsilon=epsilon, delta=DELTA
    )


def by_moments(mu: float, law: Repetitions) -> float:
    accountant = RdpAccountant(orders=ORDERS)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1 / mu), law.mean, law.shape))
    return float(accountant.get_epsilon(DELTA))


def attacked(mu: float, law: Repetitions, known: float) -> float:
    """An epsilon below which the best run is not (epsilon, DELTA)-DP, by bisection below `known`."""
    low, high = 0.0, known
    for _ in range(9):
        middle = 0.5 * (low + high)
        told = max(delta_of_order(middle, mu, law, threshold) for threshold in THRESHOLDS)
        low, high = (middle, high) if told > DELTA else (low, middle)
    return low


def delta_of_order(epsilon: float, mu: float, law: Repetitions, threshold: float) -> float:
    """delta(epsilon) of the best run where scores order the outcomes of N(mu, 1) against N(0, 1) so.

    Outcomes below the threshold are ranked in falling order; each cell above it has the rank among them at
    which it tells most.
    """
    z = np.linspace(-8, 8, 4001)
    gain, cost = slope(law, ndtr(z + mu)), math.exp(epsilon) * slope(law, ndtr(z))
    tail = np.append(np.linspace(threshold, threshold + 4, 300), threshold + 40)
    middle = 0.5 * (tail[:-1] + np.minimum(tail[1:], tail[:-1] + 0.01))
    ratio = np.exp(mu * middle - mu * mu / 2)
    place = z[np.argmax(gain[:, None] * ratio - cost[:, None], axis=0)]
    bulk = np.concatenate([[-40.0], np.linspace(-9, threshold, 800)])
    order = np.argsort(np.concatenate([-0.5 * (bulk[:-1] + bulk[1:]), place]), kind="stable")
    low = np.concatenate([bulk[:-1], tail[:-1]])[order]
    high = np.concatenate([bulk[1:], tail[1:]])[order]
    ahead, behind = (law_of_best(law, low - shift, high - shift) for shift in (mu, 0.0))
    return float(np.maximum(ahead - math.exp(epsilon) * behind, 0.0).sum())


def slope(law: Repetitions, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(law.log_slope(1 - ranks)[0])


def law_of_best(law: Repetitions, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mass of each cell for the best run, of cells in the order of ranks.

    That is the integral of f' over its ranks, by Gauss's rule: a difference of f would lose all digits of
    what is multiplied by e^epsilon afterwards.
    """
    mass = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    above = np.cumsum(mass[::-1])[::-1] - mass  # 1 - rank where a cell ends
    return sum(
        (weight * mass * np.exp(law.log_slope(above + place * mass)[0]) for place, weight in GAUSS),
        np.zeros_like(mass),
    )


def main() -> None:
    head = ("one run", "law", "runs", "attack", "select", "Renyi bound", "all runs")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for epsilon in (0.1, 1.0, 8.0):
        one = one_run(epsilon)
        for mean in (3, 10, 100):
            every = anechoic.compose(one, times=mean).epsilon(DELTA)
            for name, shape in LAWS.items():
                law = Repetitions(mean, shape)
                found = Selection(one, law, None, DELTA).epsilon()
                low = attacked(one.gdp(), law, found)
                others = by_moments(one.gdp(), law)
                figures = (f"{value:.4g}" for value in (low, found, others, every))
                print(f"| {epsilon:g} | {name} | {mean} | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    main()

"""How much an audit sees of a sampler: the power of `draw_test` against samplers that forget how to draw.

Every fault below draws each unit at each step with about the right probability; what is wrong is dependence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import numpy as np

from anechoic._validate import fraction, positive_int
from anechoic.audit.draws import draw_test
from anechoic.audit.hazards import Mask
from anechoic.audit.ratios import draw_participation
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    MinSepSampling,
    Poisson,
    RandomAllocation,
    Sampling,
)

#: A faulty sampler: participation of so many units, and where it was possible.
Fault = Callable[[int, np.random.Generator], tuple[Mask, Mask]]


@singledispatch
def sampler_faults(sampling: Sampling) -> dict[str, Fault]:
    """Faulty samplers of a scheme, by name; none for a scheme that draws nothing."""
    return {}


@sampler_faults.register(Poisson)
@sampler_faults.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson) -> dict[str, Fault]:
    q = sampling.rate

    def one_coin(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        return np.asarray(possible & (rng.random(count) < q)), possible

    def half_never(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        chosen = rng.permutation(count) < count // 2
        return np.asarray(possible & chosen & (rng.random(possible.shape) < min(1.0, 2 * q))), possible

    def equal_epochs(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, count, rng)
        length = _period(sampling)
        return np.asarray(part[np.arange(len(part)) % length] & possible), possible

    def fixed_sizes(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, count, rng)
        for t in range(len(part)):
            inside = np.flatnonzero(possible[t])
            part[t] = False
            part[t, rng.permutation(inside)[: round(q * len(inside))]] = True
        return part, possible

    if not 0.0 < q < 1.0:
        return {}
    return {
        "one coin per unit": one_coin,
        "half never drawn": half_never,
        "coins shared by pairs": _by_pairs(sampling),
        "equal epochs": equal_epochs,
        "fixed sizes": fixed_sizes,
    }


@sampler_faults.register
def _(sampling: RandomAllocation) -> dict[str, Fault]:
    def equal_epochs(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, count, rng)
        return np.asarray(part[np.arange(len(part)) % sampling.period]), possible

    if sampling.period == 1:
        return {}
    return {"coins shared by pairs": _by_pairs(sampling), "equal epochs": equal_epochs}


@sampler_faults.register
def _(sampling: BallsInBins) -> dict[str, Fault]:
    def fixed_sizes(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        bins = rng.permutation(count) % sampling.bins
        return np.asarray(np.arange(sampling.steps)[:, None] % sampling.bins == bins), possible

    return {"fixed sizes": fixed_sizes} if sampling.bins > 1 else {}


@sampler_faults.register
def _(sampling: MinSepSampling) -> dict[str, Fault]:
    def periodic(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        period = max(sampling.separation, round(sampling.separation - 1 + 1 / sampling.rate))
        offsets = rng.integers(period, size=count)
        return np.asarray(np.arange(sampling.steps)[:, None] % period == offsets), possible

    if sampling.rate >= 1.0:
        return {}
    return {"periodic": periodic, "coins shared by pairs": _by_pairs(sampling)}


def sampling_power(
    sampling: Sampling, canaries: int, *, failure: float, repeats: int = 40, seed: int = 0
) -> dict[str, float]:
    """Fraction of simulated runs in which `draw_test` has a p-value below `failure`, for each fault.

    Args:
        sampling: an amplified scheme.
        canaries: m >= 2.
        failure: level of the test.
        repeats: simulated runs of each fault.
        seed: of the simulation.
    """
    rng = np.random.default_rng(seed)
    count, failure = positive_int("canaries", canaries, minimum=2), fraction("failure", failure)
    repeats = positive_int("repeats", repeats)
    return {
        name: sum(draw_test(sampling, *fault(count, rng)).p_value < failure for _ in range(repeats)) / repeats
        for name, fault in sampler_faults(sampling).items()
    }


def _by_pairs(sampling: Sampling) -> Fault:
    def draw(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, -(-count // 2), rng)
        order = rng.permutation(2 * part.shape[1])[:count] // 2
        return np.asarray(part[:, order]), np.asarray(possible[:, order])

    return draw


def _period(sampling: Poisson | CyclicPoisson) -> int:
    """Steps of an epoch: about the examples over the batch size, a multiple of the groups."""
    epoch = max(1, round(sampling.examples / sampling.batch_size))
    return max(1, -(-epoch // sampling.groups)) * sampling.groups

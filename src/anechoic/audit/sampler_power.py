"""How much an audit sees of a sampler: the power of `draw_test` against samplers that forget how to draw.

Every fault below draws each unit at each step with about the right probability; what is wrong is dependence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import numpy as np

from anechoic._validate import fraction, positive_int
from anechoic.audit.draws import draw_test
from anechoic.audit.hazards import Mask, draw_participation
from anechoic.sampling.base import Sampling

#: A faulty sampler: participation of so many units, and where it was possible.
Fault = Callable[[int, np.random.Generator], tuple[Mask, Mask]]


@singledispatch
def sampler_faults(sampling: Sampling) -> dict[str, Fault]:
    """Faulty samplers of a scheme, by name; none for a scheme that draws nothing."""
    return {}


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


def by_pairs(sampling: Sampling) -> Fault:
    """Two units that draw as one."""

    def draw(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, -(-count // 2), rng)
        order = rng.permutation(2 * part.shape[1])[:count] // 2
        return np.asarray(part[:, order]), np.asarray(possible[:, order])

    return draw

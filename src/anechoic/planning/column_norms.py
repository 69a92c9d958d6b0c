"""Norms of the columns of C under several participations, shared out among the steps.

For independent noise of step t over s_t the objective is sum_t q_t / s_t^2, where q_t is the weighted sum of
squares of column t of A. Under a sensitivity of sum s_t^2 <= 1 over the steps of one unit it is least at
s_t^2 proportional to the root of q_t. Momentum, and correlation over few steps, hardly change that, so that
q_t is taken as rate_t^2 times the weight of step t and all later ones. Where noise is cancelled over many
steps, norms that change less between them are better.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from anechoic._validate import Array
from anechoic.participation import Cyclic, FullBatch, MinSep
from anechoic.participation.base import Participation
from anechoic.planning.objective import PlanObjective

#: Powers of the best squared norms for independent noise that are tried.
POWERS = (1.0, 0.5)


def norms_over_passes(objective: PlanObjective, schema: Participation, power: float = 1.0) -> Array | None:
    """Norms of the columns, shape (n,), of sensitivity 1 where columns that one unit touches are orthogonal.

    Their squares are about those that are best for independent noise, to a power in [0, 1].

    None where a unit takes part once, so that all columns are equally long, and for other schemas than
    Cyclic, FullBatch and MinSep.
    """
    n, rates = objective.workload.n, objective.workload.rates
    if schema.max_participations_in(n) == 1:
        return None
    lengths = np.sqrt(np.cumsum(objective.weights[::-1])[::-1])
    sizes = (lengths if rates is None else lengths * rates) ** power
    shared = shared_out(schema, sizes)
    return None if shared is None else np.sqrt(shared)


@singledispatch
def shared_out(schema: Participation, sizes: Array) -> Array | None:
    """Squared norms about proportional to `sizes`, shape (n,), whose largest sum over a pattern is 1."""
    return None


@shared_out.register(Cyclic)
@shared_out.register(FullBatch)
def _(schema: Cyclic | FullBatch, sizes: Array) -> Array:
    n = len(sizes)
    period = schema.contained_period(n)
    cycles = np.pad(sizes, (0, -n % period)).reshape(-1, period)
    return np.asarray((cycles / cycles.sum(axis=0)).reshape(-1)[:n])


@shared_out.register
def _(schema: MinSep, sizes: Array) -> Array:
    # two participations are never in one block, and the first blocks are the worst where norms do not rise
    n, count = len(sizes), schema.max_participations_in(len(sizes))
    starts = np.arange(0, n, schema.separation)[:count]
    last = np.append(starts[1:], n)
    means = np.minimum.accumulate(np.add.reduceat(sizes, starts) / (last - starts))
    return np.asarray((means / means.sum())[np.minimum(np.arange(n) // schema.separation, count - 1)])

"""Workloads, schemas and columns that the tests of the banded optimiser share."""

import numpy as np

from anechoic import workloads
from anechoic.algebra import banded as algebra
from anechoic.participation import Cyclic, MinSep, Single

WORKLOADS = {
    "prefix": lambda n: workloads.prefix_sum(n),
    "momentum": lambda n: workloads.momentum(n, 0.9, weight_decay=0.1),
    "rates": lambda n: workloads.momentum(n, 0.5, learning_rates=np.linspace(1.0, 0.2, n)),
    "nesterov": lambda n: workloads.nesterov(
        n, 0.9, weight_decay=0.1, learning_rates=np.linspace(1.0, 0.2, n)
    ),
    "window": lambda n: workloads.sliding_window(n, 5),
    "restarts": lambda n: workloads.restart_differences(workloads.prefix_sum(n), period=7),
}
SCHEMAS = [Single(), Cyclic(6), Cyclic(5), MinSep(5), MinSep(6, 2), MinSep(5, 1)]


def free_columns(n, bands, seed=0):
    rng = np.random.default_rng([seed, n, bands])
    columns = 0.5 * rng.standard_normal((n, bands)) / np.sqrt(bands)
    columns[:, 0] = 1.0 + rng.random(n)
    return algebra.inside(columns)


def unit(columns):
    return columns / np.linalg.norm(columns, axis=1, keepdims=True)

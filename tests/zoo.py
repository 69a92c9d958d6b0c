"""Strategies of every kind and awkward size, shared by the tests."""

import numpy as np

from anechoic import workloads
from anechoic.strategies import (
    BLT,
    BandedToeplitz,
    ColumnNormalized,
    ColumnScaled,
    Dense,
    Identity,
    Output,
    Restarted,
    Toeplitz,
)


def dense(n, *, bands=None, signs="mixed", seed=0):
    """A random lower-triangular strategy whose diagonal keeps it well conditioned."""
    rng = np.random.default_rng([seed, n])
    matrix = np.tril(rng.standard_normal((n, n)) / np.sqrt(n))
    if bands is not None:
        matrix = np.triu(matrix, 1 - bands)
    if signs == "positive":
        matrix = np.abs(matrix)
    np.fill_diagonal(matrix, 1.0 + rng.random(n))
    return Dense(matrix)


def falling(n, *, bands=None):
    """Coefficients 1 > c_1 > …, well conditioned."""
    return 0.9 / (1.0 + np.arange(n if bands is None else bands)) ** 0.8


def waving(n):
    """Coefficients of mixed signs."""
    t = np.arange(n)
    return np.where(t == 0, 1.0, 0.6 * np.cos(2.1 * t) * 0.9**t)


def zoo():
    """name -> strategy: every type, wrappers around wrappers, n = 1, odd n, bands 1 and n, cut restarts."""
    prefix, momentum = workloads.prefix_sum, workloads.momentum
    rates = np.linspace(1.0, 0.2, 7)
    found = {
        "identity-1": Identity(1),
        "identity-7": Identity(7),
        "output-prefix": Output(prefix(9)),
        "output-prefix-1": Output(prefix(1)),
        "output-momentum": Output(momentum(9, 0.9, weight_decay=0.1)),
        "output-decay": Output(momentum(9, 0.0, weight_decay=0.3)),
        "output-rates": Output(momentum(7, 0.5, learning_rates=rates)),
        "dense-1": dense(1),
        "dense-9": dense(9),
        "dense-positive": dense(8, signs="positive"),
        "dense-diagonal": dense(5, bands=1),
        "dense-banded": dense(11, bands=3),
        "toeplitz-1": Toeplitz(1, [0.7]),
        "toeplitz-root": Toeplitz.square_root(prefix(13)),
        "toeplitz-root-momentum": Toeplitz.square_root(momentum(13, 0.8, weight_decay=0.05)),
        "toeplitz-mixed": Toeplitz(13, waving(13)),
        "toeplitz-zeros": Toeplitz(6, [1.0, 0.5, 0.0, 0.25, 0.0, 0.0]),
        "toeplitz-rising": Toeplitz(6, [1.0, 0.2, 0.4, 0.1, 0.3, 0.0]),
        "toeplitz-fft": Toeplitz.square_root(prefix(301)),
        "banded-1": BandedToeplitz(7, [2.0]),
        "banded-all": BandedToeplitz(7, falling(7)),
        "banded-3": BandedToeplitz(11, [1.0, 0.5, 0.25]),
        "banded-mixed": BandedToeplitz(11, [1.0, -0.5, 0.25, -0.1]),
        "banded-trailing-zero": BandedToeplitz(11, [1.0, 0.5, 0.0]),
        "banded-fft": BandedToeplitz(401, falling(100)),
        "blt-1": BLT(1, [0.5], [0.5]),
        "blt-2": BLT(2, [0.3, 0.4], [0.9, 0.2]),
        "blt-13": BLT(13, [0.3, 0.2, 0.1], [0.99, 0.7, 0.0]),
        "blt-large-scale": BLT(9, [0.9, 0.8], [0.9, 0.5]),
        "blt-mixed": BLT(9, [0.9, -0.8], [0.9, 0.85]),
        "blt-negative": BLT(9, [-0.4], [0.5]),
    }
    found |= {
        "scaled-dense": ColumnScaled(found["dense-9"], np.linspace(0.5, 2.0, 9)),
        "normalized-root": ColumnNormalized(found["toeplitz-root"]),
        "normalized-banded": ColumnNormalized(found["banded-3"]),
        "normalized-blt": ColumnNormalized(found["blt-13"]),
        "scaled-twice": ColumnScaled(ColumnNormalized(found["banded-mixed"]), 1.0 + np.arange(11)),
        "scaled-output": ColumnScaled(found["output-rates"], np.linspace(2.0, 1.0, 7)),
        "restarted-once": Restarted(found["blt-13"], 1),
        "restarted": Restarted(found["toeplitz-rising"], 3),
        "restarted-cut": Restarted(found["banded-3"], 3, 25),
        "restarted-cut-to-one": Restarted(found["blt-13"], 3, 27),
        "restarted-singles": Restarted(Identity(1), 5),
        "restarted-dense": Restarted(found["dense-positive"], 2, 13),
        "restarted-output": Restarted(found["output-rates"], 2),
        "restarted-normalized": Restarted(ColumnNormalized(found["banded-3"]), 2, 20),
        "normalized-restarted": ColumnNormalized(Restarted(found["banded-all"], 3, 16)),
        "restarted-twice": Restarted(Restarted(BandedToeplitz(3, [1.0, 0.5]), 2), 2, 10),
    }
    return found

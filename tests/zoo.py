"""Strategies of every kind and awkward size, shared by the tests."""

import numpy as np

from anechoic import workloads
from anechoic.strategies import (
    BLT,
    Banded,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    ColumnScaled,
    ConstantRecurrent,
    Dense,
    FullTree,
    Identity,
    Output,
    RecursiveTree,
    Restarted,
    SmoothBinary,
    Toeplitz,
    Tree,
    TreeAggregation,
    rational_blt,
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


def turning(n):
    """A pair of complex decays, and with it coefficients of mixed signs."""
    return ConstantRecurrent(n, [0.5, 0.1], [[0.24, -0.87], [0.87, 0.24]], [1.0, 0.3])


def free(n, bands, *, signs="mixed", seed=0):
    """A banded strategy with free columns."""
    return Banded.from_dense(dense(n, bands=bands, signs=signs, seed=seed).to_dense())


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
        "toeplitz-damped": Toeplitz.damped(13, 0.1),
        "toeplitz-power": Toeplitz.power(momentum(11, 0.5), 0.8),
        "toeplitz-generated": Toeplitz.from_generating_function(lambda x: np.exp(-0.5 * x), 9),
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
        "blt-rational": rational_blt(13, 3),
    }
    found |= {
        "free-1": free(1, 1),
        "free-diagonal": free(5, 1),
        "free-3": free(11, 3),
        "free-positive": free(13, 4, signs="positive"),
        "free-all": free(8, 8),
        "free-normalized": ColumnNormalized(free(11, 4)),
        "free-restarted": Restarted(free(6, 3), 3, 16),
        "free-toeplitz": Banded.from_dense(BandedToeplitz(9, [1.0, 0.5, 0.25]).to_dense()),
        "recurrent-1": ConstantRecurrent(1, [0.5], [[0.5]], [1.0]),
        "recurrent-2": ConstantRecurrent(2, [0.5], [[-0.5]], [1.0]),
        "recurrent-turning": turning(11),
        "recurrent-inverse": turning(11).inverse(),
        "recurrent-defective": ConstantRecurrent(12, [0.2, 0.1], [[0.8, 1.0], [0.0, 0.8]], [0.3, 0.4], 2.0),
        "recurrent-falling": ConstantRecurrent.from_blt(found["blt-13"]),
        "recurrent-banded": ConstantRecurrent.from_rational(9, [1.0, 0.5, 0.25], [1.0]),
        "blt-inverse": BLT(13, [0.3, 0.2], [0.9, 0.5]).inverse(),
        "normalized-recurrent": ColumnNormalized(turning(9)),
        "restarted-recurrent": Restarted(turning(5), 3, 13),
    }
    found |= {
        "tree-1": Tree(1),
        "tree-2": Tree(2),
        "tree-13": Tree(13),
        "tree-16": Tree(16),
        "tree-wide": Tree(14, 3),
        "tree-flat": Tree(4, 5),
        "full-tree-1": FullTree(1),
        "full-tree-13": FullTree(13),
        "full-tree-16": FullTree(16),
        "full-tree-wide": FullTree(14, 3),
        "full-tree-cut": FullTree(11, 2, 16),
        "full-tree-cut-wide": FullTree(7, 3, 29),
        "normalized-tree": ColumnNormalized(Tree(9)),
        "normalized-full-tree": ColumnNormalized(FullTree(9, 3, 12)),
        "restarted-tree": Restarted(Tree(5), 3, 13),
        "restarted-full-tree": Restarted(FullTree(4), 3, 11),
        "restarted-scaled-tree": Restarted(ColumnScaled(Tree(3, 3), np.array([1.0, 2.0, 0.5])), 2),
        "normalized-restarted-tree": ColumnNormalized(Restarted(Tree(4), 2, 7)),
    }
    found |= {
        "aggregation-1": TreeAggregation(1),
        "aggregation-13": TreeAggregation(13),
        "aggregation-wide": TreeAggregation(14, 3),
        "normalized-aggregation": ColumnNormalized(TreeAggregation(8)),
        "restarted-aggregation": Restarted(TreeAggregation(5), 2, 9),
        "smooth-1": SmoothBinary(1),
        "smooth-13": SmoothBinary(13),
        "smooth-cut": SmoothBinary(9, 7),
        "normalized-smooth": ColumnNormalized(SmoothBinary(9)),
        "recursive-1": RecursiveTree(1, BLT(2, [0.5], [0.9])),
        "recursive-blt": RecursiveTree(13, BLT(2, [0.5], [0.9])),
        "recursive-wide": RecursiveTree(11, BLT(4, [0.3, 0.2], [0.9, 0.4])),
        "recursive-mixed": RecursiveTree(14, dense(3)),
        "recursive-scaled": RecursiveTree(10, ColumnNormalized(BLT(3, [0.3, 0.2], [0.9, 0.4]))),
        "recursive-turning": RecursiveTree(13, turning(4)),
        "recursive-inverse": RecursiveTree(9, BandedInverse.square_root(prefix(4), 2)),
        "restarted-recursive": Restarted(RecursiveTree(7, BLT(2, [0.5], [0.9])), 2, 12),
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
    found |= {
        "inverse-1": BandedInverse(1, [0.7]),
        "inverse-diagonal": BandedInverse(5, [2.0, 0.0]),
        "inverse-root": BandedInverse.square_root(prefix(13), 4),
        "inverse-root-all": BandedInverse.square_root(prefix(9), 9),
        "inverse-root-momentum": BandedInverse.square_root(momentum(13, 0.8, weight_decay=0.05), 5),
        "inverse-power": BandedInverse.fractional(prefix(13), 0.8, 3),
        "inverse-one": BandedInverse.one_parameter(11, 0.6),
        "inverse-one-scaled": BandedInverse(11, [2.0, -1.9]),
        "inverse-sum": BandedInverse(9, [1.0, -1.0]),
        "inverse-alternating": BandedInverse(9, [1.0, 0.5]),
        "inverse-rising": BandedInverse(9, [1.0, -0.2, -0.5, 0.1]),
        "inverse-mixed": BandedInverse(11, [1.0, -0.5, 0.4, 0.3]),
        "inverse-trailing-zero": BandedInverse(11, [1.0, -0.5, -0.1, 0.0]),
        "inverse-fft": BandedInverse.square_root(prefix(301), 80),
        "inverse-fades": BandedInverse(600, [1.0, -0.01, -0.02]),
        "normalized-inverse": ColumnNormalized(BandedInverse.square_root(prefix(13), 4)),
        "restarted-inverse": Restarted(BandedInverse.square_root(prefix(7), 3), 2, 12),
    }
    return found

"""The strategies that tests run over: every kind and awkward size, and one of each that code tells apart."""

import numpy as np

from anechoic import workloads
from anechoic.strategies import (
    BLT,
    Banded,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    FullTree,
    Identity,
    Output,
    Restarted,
    Toeplitz,
    Tree,
)
from anechoic.strategies.blt_rational import rational_blt
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.strategies.tree_aggregation import TreeAggregation
from tests.marks import mostly_slow


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


def _plain():
    """Every type: n = 1, odd n, bands 1 and n, mixed signs, zeros at the end and between."""
    prefix, momentum = workloads.prefix_sum, workloads.momentum
    rates = np.linspace(1.0, 0.2, 7)
    found = {
        "identity-1": Identity(1),
        "identity": Identity(7),
        "output": Output(prefix(9)),
        "output-1": Output(prefix(1)),
        "output-momentum": Output(momentum(9, 0.9, weight_decay=0.1)),
        "output-decay": Output(momentum(9, 0.0, weight_decay=0.3)),
        "output-rates": Output(momentum(7, 0.5, learning_rates=rates)),
        "toeplitz-1": Toeplitz(1, [0.7]),
        "toeplitz-root": Toeplitz.square_root(prefix(13)),
        "toeplitz-root-1": Toeplitz.square_root(prefix(1)),
        "toeplitz-root-momentum": Toeplitz.square_root(momentum(13, 0.8, weight_decay=0.05)),
        "toeplitz-mixed": Toeplitz(13, waving(13)),
        "toeplitz-zeros": Toeplitz(6, [1.0, 0.5, 0.0, 0.25, 0.0, 0.0]),
        "toeplitz-rising": Toeplitz(6, [1.0, 0.2, 0.4, 0.1, 0.3, 0.0]),
        "toeplitz-fft": Toeplitz.square_root(prefix(301)),
        "toeplitz-damped": Toeplitz.damped(13, 0.1),
        "toeplitz-power": Toeplitz.power(momentum(11, 0.5), 0.8),
        "toeplitz-generated": Toeplitz.from_generating_function(lambda x: np.exp(-0.5 * x), 9),
        "banded-one-step": BandedToeplitz(1, [2.0]),
        "banded-1": BandedToeplitz(7, [2.0]),
        "banded-2": BandedToeplitz(11, [0.8, 0.3]),
        "banded-all": BandedToeplitz(7, falling(7)),
        "banded-3": BandedToeplitz(11, [1.0, 0.5, 0.25]),
        "banded-mixed": BandedToeplitz(11, [1.0, -0.5, 0.25, -0.1]),
        "banded-inner-zero": BandedToeplitz(11, [1.0, 0.0, 0.5]),
        "banded-trailing-zero": BandedToeplitz(11, [1.0, 0.5, 0.0]),
        "banded-fft": BandedToeplitz(401, falling(100)),
        "blt-1": BLT(1, [0.5], [0.5]),
        "blt-2": BLT(2, [0.3, 0.4], [0.9, 0.2]),
        "blt-4": BLT(11, [0.2, 0.15, 0.1, -0.05], [0.99, 0.7, 0.3, 0.0]),
        "blt-13": BLT(13, [0.3, 0.2, 0.1], [0.99, 0.7, 0.0]),
        "blt-large-scale": BLT(9, [0.9, 0.8], [0.9, 0.5]),
        "blt-mixed": BLT(9, [0.9, -0.8], [0.9, 0.85]),
        "blt-negative": BLT(9, [-0.4], [0.5]),
        "blt-rational": rational_blt(13, 3),
        "blt-inverse": BLT(13, [0.3, 0.2], [0.9, 0.5]).inverse(),
    }
    found |= {
        "free-1": free(1, 1),
        "free-diagonal": free(5, 1),
        "free-3": free(11, 3),
        "free-positive": free(13, 4, signs="positive"),
        "free-all": free(8, 8),
        "free-toeplitz": Banded.from_dense(BandedToeplitz(9, [1.0, 0.5, 0.25]).to_dense()),
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
        "recurrent-1": ConstantRecurrent(1, [0.5], [[0.5]], [1.0]),
        "recurrent-2": ConstantRecurrent(2, [0.5], [[-0.5]], [1.0]),
        "recurrent": turning(11),
        "recurrent-inverse": turning(11).inverse(),
        "recurrent-defective": ConstantRecurrent(12, [0.2, 0.1], [[0.8, 1.0], [0.0, 0.8]], [0.3, 0.4], 2.0),
        "recurrent-falling": ConstantRecurrent.from_blt(found["blt-13"]),
        "recurrent-banded": ConstantRecurrent.from_rational(9, [1.0, 0.5, 0.25], [1.0]),
        "dense-1": dense(1),
        "dense": dense(9),
        "dense-positive": dense(8, signs="positive"),
        "dense-diagonal": dense(5, bands=1),
        "dense-banded": dense(11, bands=3),
    }
    return found | {
        "tree-1": Tree(1),
        "tree-2": Tree(2),
        "tree": Tree(13),
        "tree-16": Tree(16),
        "tree-wide": Tree(14, 3),
        "tree-flat": Tree(4, 5),
        "full-tree-1": FullTree(1),
        "full-tree": FullTree(13),
        "full-tree-16": FullTree(16),
        "full-tree-wide": FullTree(14, 3),
        "full-tree-cut": FullTree(11, 2, 16),
        "full-tree-cut-wide": FullTree(7, 3, 29),
        "aggregation-1": TreeAggregation(1),
        "aggregation": TreeAggregation(13),
        "aggregation-wide": TreeAggregation(14, 3),
    }


#: One of each filter: no window, some of it and all, by rows, by buffers, by a state, over trees.
_FILTERS = (
    "identity",
    "output-momentum",
    "inverse-root-all",
    "banded-1",
    "banded-2",
    "toeplitz-root",
    "blt-4",
    "recurrent",
    "tree",
)


def _wrapped(plain):
    """Scaled columns, and restarts that divide n or not: around each filter, and around each other."""
    found = {}
    for name in _FILTERS:
        strategy = plain[name]
        n = strategy.n
        found[f"normalised({name})"] = ColumnNormalized(strategy)
        found[f"restarted({name})"] = Restarted(strategy, 2)
        found[f"restarted-cut({name})"] = Restarted(strategy, 3, 2 * n + 1)
        found[f"restarted(normalised({name}))"] = Restarted(ColumnNormalized(strategy), 2, 2 * n - 2)
    for name in ("banded-3", "blt-4", "output-rates", "tree-2"):
        found[f"normalised(restarted({name}))"] = ColumnNormalized(
            Restarted(plain[name], 2, plain[name].n + 1)
        )
    for name in ("output", "full-tree-cut", "aggregation-wide", "free-3", "inverse-root", "blt-13"):
        found[f"normalised({name})"] = ColumnNormalized(plain[name])
    return found | {
        "normalised(dense)": ColumnNormalized(plain["dense"]),
        "scaled(dense)": ColumnScaled(plain["dense"], np.linspace(0.5, 2.0, 9)),
        "scaled(blt-4)": ColumnScaled(plain["blt-4"], np.linspace(0.3, 2.0, 11)),
        "scaled(output-rates)": ColumnScaled(plain["output-rates"], np.linspace(2.0, 1.0, 7)),
        "scaled(normalised(banded-mixed))": ColumnScaled(
            ColumnNormalized(plain["banded-mixed"]), 1.0 + np.arange(11)
        ),
        "restarted-once(blt-13)": Restarted(plain["blt-13"], 1),
        "restarted(toeplitz-rising)": Restarted(plain["toeplitz-rising"], 3),
        "restarted-to-one(blt-13)": Restarted(plain["blt-13"], 3, 27),
        "restarted-singles(identity-1)": Restarted(plain["identity-1"], 5),
        "restarted-singles(blt-1)": Restarted(plain["blt-1"], 4),
        "restarted(output)": Restarted(plain["output"], 2),
        "restarted(output-rates)": Restarted(plain["output-rates"], 2),
        "restarted(dense)": Restarted(plain["dense"], 2),
        "restarted(dense-positive)": Restarted(plain["dense-positive"], 2, 13),
        "restarted(normalised(dense))": Restarted(ColumnNormalized(plain["dense"]), 2, 15),
        "restarted(normalised(free-3))": Restarted(ColumnNormalized(plain["free-3"]), 2, 17),
        "restarted(free-all)": Restarted(plain["free-all"], 3, 20),
        "restarted(inverse-root)": Restarted(plain["inverse-root"], 2, 19),
        "restarted(full-tree)": Restarted(FullTree(4), 3, 11),
        "restarted(aggregation)": Restarted(TreeAggregation(5), 2, 9),
        "restarted(scaled(tree))": Restarted(ColumnScaled(Tree(3, 3), np.array([1.0, 2.0, 0.5])), 2),
        "restarted(restarted(banded))": Restarted(Restarted(BandedToeplitz(3, [1.0, 0.5]), 2), 2, 10),
    }


def _first(kind_of, strategies):
    """The first name of each kind, in order."""
    found = {}
    for name in sorted(strategies, key=lambda name: strategies[name].n == 2):  # two steps show little
        found.setdefault(kind_of(strategies[name]), name)
    return [name for name in strategies if name in set(found.values())]


def _filter(strategy):
    """What the noise filters can tell apart: recurrence, window, steps alike, gains, restarts, wrapper."""
    found = strategy.recurrence()
    window = getattr(found, "window", None)
    length = None if window is None else {1: "none", found.n: "all"}.get(window, "some")
    cut = None if found.period is None else bool(found.n % found.period)
    same = getattr(found, "stationary", True)
    outer = type(strategy).__name__ if isinstance(strategy, ColumnScaled | Restarted) else None
    return type(found).__name__, length, same, found.gains is not None, cut, outer, strategy.n == 1


def _structure(strategy):
    """What sensitivities and losses can tell apart: the type, also of wrapped ones, signs, order, bands."""
    known, inner, types = strategy.structure, strategy, [type(strategy).__name__]
    while isinstance(inner, ColumnScaled | Restarted):
        inner = inner.base
        types.append(type(inner).__name__ if isinstance(inner, ColumnScaled | Restarted) else "")
    bands = {1: "one", strategy.n: "all"}.get(known.bands, "some")
    return *types, strategy.n == 1, known.nonnegative, known.nonincreasing, bands, strategy.rows > strategy.n


#: name -> strategy
STRATEGIES = _plain()
STRATEGIES |= _wrapped(STRATEGIES)
#: Names that reach every branch of the filters, without all strategies that are alike.
ONE_OF_EACH = _first(_filter, STRATEGIES)
#: The same for what is computed from the matrix.
ONE_OF_EACH_STRUCTURE = _first(_structure, STRATEGIES)


def every(keep=lambda strategy: True, *, also=()):
    """Names as parameters: `ONE_OF_EACH_STRUCTURE` and `also` in every run, the rest in `make test-all`."""
    names, quick = [name for name in STRATEGIES if keep(STRATEGIES[name])], {*ONE_OF_EACH_STRUCTURE, *also}
    return mostly_slow(names, quick=[name for name in names if name in quick])

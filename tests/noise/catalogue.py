"""What the tests of this room run over: every strategy, both backends, helpers that collect rows."""

import numpy as np

from anechoic import strategies as s
from anechoic import workloads
from anechoic.noise import NoiseStream
from anechoic.testing import replay

KEY = bytes(range(32))
BACKENDS = ("numpy", "torch")


def _dense(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.tril(0.3 * rng.standard_normal((n, n)), -1) + np.diag(rng.uniform(0.5, 2.0, n))


def _plain():
    n = 11
    rates = np.linspace(0.2, 1.5, n)
    signed = np.array([1.0, -0.6, 0.3, 0.2])
    banded = _dense(n)
    banded[np.subtract.outer(np.arange(n), np.arange(n)) >= 3] = 0
    return {
        "identity": s.Identity(n),
        "output": s.Output(workloads.prefix_sum(n)),
        "output-momentum": s.Output(workloads.momentum(n, 0.9, weight_decay=0.05)),
        "output-momentum-rates": s.Output(workloads.momentum(n, 0.5, learning_rates=rates)),
        "toeplitz-root": s.Toeplitz.square_root(workloads.prefix_sum(n)),
        "toeplitz-root-momentum": s.Toeplitz.square_root(workloads.momentum(n, 0.7)),
        "toeplitz-damped": s.Toeplitz.damped(n, 0.2),
        "banded-1": s.BandedToeplitz(n, [1.7]),
        "banded-2": s.BandedToeplitz(n, [0.8, 0.3]),
        "banded-4-signed": s.BandedToeplitz(n, signed),
        "banded-trailing-zero": s.BandedToeplitz(n, [1.0, 0.5, 0.0]),
        "banded-inner-zero": s.BandedToeplitz(n, [1.0, 0.0, 0.5]),
        "banded-n": s.BandedToeplitz(n, np.linspace(1.0, 0.1, n)),
        "free-1": s.Banded.from_dense(np.diag(np.linspace(0.5, 3.0, n))),
        "free-3": s.Banded.from_dense(banded),
        "free-n": s.Banded.from_dense(_dense(n, seed=1)),
        "inverse-1": s.BandedInverse(n, [1.3]),
        "inverse-2": s.BandedInverse.one_parameter(n, 0.8),
        "inverse-4-signed": s.BandedInverse(n, [1.3, -0.6, 0.2, -0.1]),
        "inverse-n": s.BandedInverse.square_root(workloads.prefix_sum(n), n),
        "blt-1": s.BLT(n, [0.4], [0.9]),
        "blt-4": s.BLT(n, [0.2, 0.15, 0.1, -0.05], [0.99, 0.7, 0.3, 0.0]),
        "recurrent": s.ConstantRecurrent(n, [0.5, 0.1], [[0.24, -0.87], [0.87, 0.24]], [1.0, 0.3], 1.4),
        "recurrent-defective": s.ConstantRecurrent(n, [0.2, 0.1], [[0.8, 1.0], [0.0, 0.8]], [0.3, 0.4]),
        "tree": s.Tree(n),
        "tree-wide": s.Tree(n, 3),
        "full-tree": s.FullTree(n),
        "full-tree-wide": s.FullTree(n, 3, 27),
        "tree-aggregation": s.TreeAggregation(n),
        "smooth-binary": s.SmoothBinary(n),
        "recursive-blt": s.RecursiveTree(n, s.BLT(3, [0.3, 0.2], [0.9, 0.4])),
        "dense": s.Dense(_dense(n)),
        "dense-banded": s.Dense(banded),
        "dense-diagonal": s.Dense(np.diag(np.linspace(0.5, 3.0, n))),
    }


def _catalogue():
    plain = _plain()
    scales = np.linspace(0.3, 2.0, 11)
    found = dict(plain)
    for name, strategy in plain.items():
        found[f"normalised({name})"] = s.ColumnNormalized(strategy)
        found[f"restarted({name})"] = s.Restarted(strategy, 3)
        found[f"restarted-short({name})"] = s.Restarted(strategy, 3, 27)
        found[f"restarted(normalised({name}))"] = s.Restarted(s.ColumnNormalized(strategy), 2, 17)
    for name in ("banded-4-signed", "blt-4", "output-momentum-rates"):
        restarted = s.Restarted(plain[name], 2, 15)
        found[f"normalised(restarted({name}))"] = s.ColumnNormalized(restarted)
        found[f"restarted(restarted({name}))"] = s.Restarted(s.Restarted(plain[name], 2), 2, 40)
        found[f"scaled({name})"] = s.ColumnScaled(plain[name], scales)
        found[f"truncated({name})"] = plain[name].truncate(5)
    found["one-step"] = s.BandedToeplitz(1, [2.0])
    found["one-step-blt"] = s.BLT(1, [0.5], [0.5])
    found["one-step-root"] = s.Toeplitz.square_root(workloads.prefix_sum(1))
    found["one-step-blocks"] = s.Restarted(s.BLT(1, [0.5], [0.5]), 4)
    return found


STRATEGIES = _catalogue()


def _kind(strategy):
    """What a filter can tell apart: recurrence, window, gains, restarts, and the wrapper."""
    found = strategy.recurrence()
    window = getattr(found, "window", None)
    length = None if window is None else {1: "none", found.n: "all"}.get(window, "some")
    cut = None if found.period is None else bool(found.n % found.period)
    outer = type(strategy).__name__ if isinstance(strategy, s.ColumnScaled | s.Restarted) else None
    return type(found).__name__, length, found.gains is not None, cut, outer


# The first of each kind: what reaches every branch of the filters, without all strategies that are alike.
ONE_OF_EACH = list({_kind(strategy): name for name, strategy in reversed(STRATEGIES.items())}.values())[::-1]


def dtype_of(backend, precision):
    if backend == "numpy":
        return np.dtype(precision)
    import torch

    return getattr(torch, precision)


def make_stream(strategy, dimension, backend, *, precision="float64", key=KEY, **options):
    dtype = dtype_of(backend, precision)
    return NoiseStream(strategy, dimension, backend=backend, dtype=dtype, key=key, **options)


def emit(stream, state=None, count=None):
    """The next `count` rows as float64, shape (count, m), and the state after them."""
    state = stream.init() if state is None else state
    rows = []
    for _ in range(stream.n - state.step if count is None else count):
        row, state = stream.next(state)
        rows.append(np.asarray(row, dtype=np.float64))
    return np.array(rows).reshape(-1, stream.length), state


def noise_of(strategy, z):
    """What a stream makes of fresh rows z, shape (n, m), before its std."""
    return strategy.solve(z) if strategy.rows == strategy.n else replay(strategy.recurrence(), z)


def fresh_rows(stream):
    """Z as float64, shape (n, m)."""
    return np.array([np.asarray(stream.fresh(t), dtype=np.float64) for t in range(stream.n)])

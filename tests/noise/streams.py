"""What the tests of this room share: both backends, and helpers that make streams and collect rows."""

import numpy as np

from anechoic.noise import NoiseStream

KEY = bytes(range(32))
BACKENDS = ("numpy", "torch")


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


def fresh_rows(stream):
    """Z as float64, shape (n, m)."""
    return np.array([np.asarray(stream.fresh(t), dtype=np.float64) for t in range(stream.n)])

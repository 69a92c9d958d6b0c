"""Floats in tests: those of two computations agree up to rounding; bits agree only where bits are the point.

Two computations of one number may differ in the last digits on another processor (kernels of BLAS, vector
lengths, the place of an array in memory). `tests/test_floats.py` looks for `==` between them.
"""

import numpy as np


def same_bits(one, other):
    """Whether two numbers or arrays are equal bit for bit: stored numbers, releases, noise; no results."""
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()

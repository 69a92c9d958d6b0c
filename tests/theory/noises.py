"""Noise of every kind without horizon, for tests."""

from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, endless, make_endless
from anechoic.strategies.endless_mixture_root import MixtureRoot

NOISES = {
    "independent": make_endless(BandedInverse(1, [1.0])),
    "damped": endless.damped(0.03),
    "BLT": make_endless(BLT.from_poles(1, [0.99, 0.8, 0.3], [0.95, 0.6, 0.1])),
    "BLT of mixed signs": make_endless(BLT(1, [0.4, -0.1], [0.9, 0.2])),
    "rational": endless.rational(3, accurate_to=50),
    "banded": make_endless(BandedToeplitz(3, [1.0, 0.6, 0.3])),
    "banded inverse": make_endless(BandedInverse(4, [2.0, -1.0, -0.4, 0.1])),
    "Anti-PGD": make_endless(BandedInverse(2, [1.0, -0.9])),
    "mixture root": MixtureRoot([0.2, 0.3, 0.5], [0.5, 0.9, 0.99]),
}


def column(noise, n):
    """beta, the first column of C^-1, from the strategy of n steps."""
    first = [1.0] + [0.0] * (n - 1)
    return noise.at(n).solve(first)

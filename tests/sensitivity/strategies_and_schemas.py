"""Small strategies of every type and sign with every schema, drawn evenly by number.

Drawing each choice through Hypothesis would favour the simplest ones, and most cases would be trivial.
"""

import numpy as np
from hypothesis import strategies as st

from anechoic import workloads
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.strategies import (
    BLT,
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
from anechoic.strategies.column_scaled import ColumnScaled

SIGNS = ("nonnegative", "falling", "mixed", "nearly")


def coefficients(rng, count, signs):
    c = rng.standard_normal(count)
    if signs in ("nonnegative", "falling"):
        c = np.abs(c) * (rng.random(count) < 0.8)
    if signs == "falling":
        c = np.sort(c)[::-1]
    if signs == "nearly":  # one small negative entry: C^T C may still be non-negative
        c = np.abs(c)
        c[-1] *= -0.05
    c[0] = np.abs(c).max() if signs == "falling" else np.abs(c[0])
    c[0] += 0.1
    return c


def base_strategy(rng, n):
    signs = rng.choice(SIGNS)
    bands = int(rng.integers(1, n + 1))
    kinds = "identity output dense dense toeplitz toeplitz banded banded inverse inverse blt tree"
    match rng.choice(kinds.split()):
        case "identity":
            return Identity(n)
        case "output":
            rates = rng.random(n) + 0.1 if rng.random() < 0.5 else None
            return Output(workloads.momentum(n, 0.7, weight_decay=0.2, learning_rates=rates))
        case "dense":
            matrix = np.tril(rng.standard_normal((n, n)))
            if signs != "mixed":
                matrix = np.abs(matrix)
            if signs == "nearly":
                matrix[-1, 0] *= -0.05
            matrix = np.triu(matrix, 1 - bands)
            np.fill_diagonal(matrix, np.abs(matrix.diagonal()) + 0.1)
            return Dense(matrix)
        case "toeplitz":
            return Toeplitz(n, coefficients(rng, n, signs))
        case "banded":
            return BandedToeplitz(n, coefficients(rng, bands, signs))
        case "inverse":
            inverse = coefficients(rng, bands, signs)
            inverse[1:] *= -0.7 / max(0.7, np.abs(inverse[1:]).sum()) * inverse[0]
            return BandedInverse(n, inverse)
        case "tree":
            branching = int(rng.integers(2, 4))
            return (
                Tree(n, branching)
                if signs == "mixed"
                else FullTree(n, branching, n + int(rng.integers(0, 9)))
            )
        case _:
            scale = rng.standard_normal(2) * (0.4 if signs == "falling" else 1.0)
            scale = scale if signs == "mixed" else np.abs(scale)
            return BLT(n, scale, rng.permutation([0.95, 0.6]))


def strategy(rng, largest):
    n = int(rng.integers(2, largest + 1)) if rng.random() < 0.95 else 1
    kind = rng.choice(["plain", "plain", "scaled", "normalized", "restarted", "scaled restarts"])
    if "restart" not in kind:
        base = base_strategy(rng, n)
        if kind == "scaled":
            return ColumnScaled(base, rng.random(n) + 0.2)
        return ColumnNormalized(base) if kind == "normalized" else base
    length = int(rng.integers(1, n + 1))
    restarted = Restarted(base_strategy(rng, length), -(-n // length), n)
    return ColumnNormalized(restarted) if kind == "scaled restarts" else restarted


def schema(rng, n):
    b = int(rng.integers(1, n // 2 + 2)) if rng.random() < 0.9 else int(rng.integers(1, n + 3))
    match rng.choice(["single", *3 * ["cyclic"], *6 * ["min-sep"], *3 * ["epochs"], "full"]):
        case "single":
            return Single()
        case "cyclic":
            return Cyclic(b)
        case "min-sep":
            return MinSep(b, None if rng.random() < 0.4 else int(rng.integers(1, n + 2)))
        case "epochs":
            return OncePerEpoch(b)
        case _:
            return FullBatch()


def cases(largest=8):
    """(strategy, schema) with 1 <= n <= largest."""

    def case(number):
        rng = np.random.default_rng(number)
        drawn = strategy(rng, largest)
        return drawn, schema(rng, drawn.n)

    return st.integers(0, 2**48).map(case)

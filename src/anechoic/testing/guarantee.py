"""The contract of the guarantee: sensitivity, error and decoder of a strategy, by brute force at small n."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from anechoic import workloads
from anechoic._validate import Array
from anechoic.losses.dispatch import error
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.participation.base import Participation
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies.base import Strategy
from anechoic.testing._compare import ROUNDING, close, require
from anechoic.workloads.base import Workload

LARGEST = 7  # steps up to which every pattern is tried
SOUND = 1 - 1e-12  # rounding of sums in another order


def check_decoder(strategy: Strategy) -> None:
    """B C = A for B = A L, for workloads of several kinds."""
    dense, left = strategy.to_dense(), strategy.correlate(np.eye(strategy.rows))
    for workload in _workloads(strategy.n):
        decoder = workload.multiply(left)
        a = workload.to_dense()
        scale = float((np.abs(a) @ np.abs(left) @ np.abs(dense)).max())
        close(strategy, decoder @ dense, a, f"B C = A for {type(workload).__name__}", scale=scale)


def check_error(strategy: Strategy) -> None:
    """Error per step, largest, RMS, last and weighted, against row norms of the dense B = A L."""
    n, left = strategy.n, strategy.correlate(np.eye(strategy.rows))
    weights = np.arange(n, 0, -1.0)
    for workload in _workloads(n):
        found = error(workload, strategy)
        squares = np.square(workload.to_dense() @ left).sum(axis=1)
        name = f"error for {type(workload).__name__}"
        close(strategy, found.per_step, np.sqrt(squares), f"{name}, per step")
        mean = weights @ squares / weights.sum()
        ours = found.max, found.rms, found.of("last"), found.of(weights)
        theirs = np.sqrt([squares.max(), squares.mean(), squares[-1], mean])
        close(strategy, ours, theirs, f"{name}, max, RMS, last and weighted")


def check_sensitivity(strategy: Strategy, seed: int = 0) -> None:
    """`sensitivity` is not below the supremum over patterns and dimensions, nor above it where it says exact.

    All patterns are tried, of the strategy cut to a few steps where it has more; where these are not many,
    of the whole strategy too.
    """
    n = strategy.n
    small = strategy if n <= LARGEST else strategy.truncate(LARGEST)
    cases = [(small, participation) for participation in _participations(small.n)]
    if n > LARGEST and n * strategy.rows <= 10**5:
        cases += [(strategy, each) for each in (Single(), Cyclic(3), Cyclic(max(1, n // 2)), Cyclic(n))]
    for each, participation in cases:
        compare_sensitivity(each, participation, strategy, seed=seed)


def compare_sensitivity(
    strategy: Strategy, participation: Participation, subject: object, *, seed: int = 0
) -> None:
    """Raise ContractError, naming `subject`, where `sensitivity` is below the supremum, or wrongly exact."""
    found = sensitivity(strategy, participation)
    truth, attained = supremum(strategy, participation, seed=seed)
    rule = f"sensitivity {found} under {participation} is below {truth}, which is attained"
    require(subject, found.value >= truth * SOUND, rule)
    if found.exact and attained:
        rule = f"sensitivity {found} under {participation} is called exact, but the supremum is {truth}"
        require(subject, found.value <= truth * (1 + ROUNDING), rule)


def supremum(strategy: Strategy, participation: Participation, *, seed: int = 0) -> tuple[float, bool]:
    """The largest ||C U||_F found over patterns and U, and whether no other U can exceed it.

    The value is attained, hence never above the truth. On a pattern with C^T C >= 0 the sum of the entries
    is the supremum (Lemma 3.15 b), and on one or two steps the sum of their absolute values is; otherwise
    the best signs (dimension m = 1) and block-coordinate ascent over unit rows of dimension m = 2, …, k.
    """
    dense = strategy.to_dense()
    gram = dense.T @ dense
    gram = np.where(np.abs(gram) <= 1e-14 * gram.max(), 0.0, gram)
    rng = np.random.default_rng(seed)
    blocks = [gram[np.ix_(pattern, pattern)] for pattern in participation.patterns(strategy.n)]
    limits = np.array([np.abs(block).sum() for block in blocks])
    best, certain = 0.0, True
    for index in np.argsort(-limits):
        if limits[index] <= best:
            break  # Lemma 3.15(a): this pattern and those after it cannot be larger
        value, sure = _on_pattern(blocks[index], rng)
        best, certain = max(best, value), certain and sure
    return float(np.sqrt(best)), certain


def _on_pattern(block: Array, rng: np.random.Generator) -> tuple[float, bool]:
    k = len(block)
    if k <= 2 or float(block.min()) >= 0:
        return float(np.abs(block).sum()), True
    best = 0.0
    if k <= 10:
        signs = np.array([(1.0, *tail) for tail in product((1.0, -1.0), repeat=k - 1)])
        best = float(np.einsum("si,ij,sj->s", signs, block, signs, optimize=True).max())
    for dimension in range(2, k + 1):
        best = max(best, _ascend(block, rng.standard_normal((k, dimension))))
    return best, False


def _ascend(block: Array, rows: Array, sweeps: int = 200) -> float:
    """Move one row at a time to where it is best; the rows stay on the unit sphere."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    off = block - np.diag(block.diagonal())
    value = 0.0
    for _ in range(sweeps):
        for i in range(len(block)):
            pull = off[i] @ rows
            length = float(np.sqrt(pull @ pull))
            if length > 0:
                rows[i] = pull / length
        before, value = value, float((block * (rows @ rows.T)).sum())
        if value - before <= 1e-12 * value:
            break
    return value


def _workloads(n: int) -> Iterator[Workload]:
    yield workloads.prefix_sum(n)
    yield workloads.momentum(n, 0.7, weight_decay=0.1)
    yield workloads.momentum(n, 0.5, learning_rates=np.linspace(1.0, 0.3, n))
    if n <= 64:
        lags = np.subtract.outer(np.arange(n), np.arange(n))
        yield workloads.from_dense(np.where(lags >= 0, 1.0 / (1.0 + np.arange(n) + np.abs(lags)), 0.0))


def _participations(n: int) -> Iterator[Participation]:
    yield Single()
    yield FullBatch()
    yield from (Cyclic(period) for period in range(1, n + 2))
    yield from (MinSep(separation) for separation in range(1, n + 2))
    yield from (MinSep(separation, 2) for separation in range(1, n))
    yield MinSep(2, 3)
    yield from (OncePerEpoch(period) for period in (2, 3))

"""Strategies of one number: the damped square root, and how often a strategy is restarted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import scipy

from anechoic._validate import positive_int
from anechoic.algebra.threads import on_one_thread
from anechoic.losses.dispatch import error as error_of
from anechoic.losses.dispatch import loss as loss_of
from anechoic.losses.norms import LossNorm
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.series.toeplitz_objective import Progress, quadratic_form
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import Restarted, Toeplitz
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload, checked_workload

# Dampings tried before the best one is refined, from LEAST / n to 1, and how finely that is done.
GRID, LEAST, FINE = 17, 0.01, 1e-5


@on_one_thread
def damped(
    workload: Workload,
    *,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    restarts: int | str = 1,
    progress: Progress | None = None,
) -> Optimized:
    """Return the damped square root (`Toeplitz.damped`) with the damping of smallest loss, restarted or not.

    The loss as a function of log(damping) is searched on a grid, then by Brent's method around the best
    point; damping 0, the square root for prefix sums, is among what is tried. Some 30 evaluations of
    O(n log n) are needed for each number of restarts. Deterministic.

    For prefix sums and one participation damping gains little (RMS) or nothing (max, Theorem 2.5). It gains
    where a unit takes part several times.

    Guarantee: the loss is that of the returned strategy. Its coefficients fall, so that the sensitivity is
    exact without restarts; with restarts it is what `sensitivity` finds. The damping is >= 0: where the
    coefficients of A alternate take `banded_inverse`.

    Args:
        workload: a Toeplitz workload, n steps, with learning rates as in `banded_toeplitz`, or
            `workloads.restart_differences` of one (loss "rms",
            without restarts).
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms", "max" or "last", or weights of the steps.
        restarts: number of blocks that the strategy is cut into (Definition 3.18), 1 for none; "choose" tries
            blocks of whole separations (for one participation, of n / 2, n / 4, … steps).
        progress: called with the number of evaluations so far and the present loss.

    Returns:
        A `Toeplitz` strategy, or a `Restarted` one, its loss, and a lower bound where one is known.

    Raises:
        ValueError: for bad arguments.
        UnsupportedError: for a workload without Toeplitz factor, or schemas without a known worst pattern.

    Example:
        >>> from anechoic import participation, workloads
        >>> best = damped(workloads.prefix_sum(500), participation=participation.MinSep(100))
        >>> bool(0 < 1 - best.strategy.coefficients[1] / 0.5 < 0.1)  # the damping
        True

    References:
        Choquette-Choo and others, Correlated Noise Provably Beats Independent Noise (ICLR 2024), Eq. (7);
        monograph, Eq. (3.27) and Definition 3.18.
    """
    started = time.perf_counter()
    checked_workload(workload)
    search = _Search(workload, participation, loss, progress)
    blocks = _blocks(restarts, workload.n, periodic_pattern(participation, workload.n))
    # what the search finds is the loss or less, so that those behind a loss already reached are not better
    candidates: list[tuple[float, int, Strategy]] = []
    for (lowest, damping), block in sorted((search.best(block), block) for block in blocks):
        if candidates and lowest >= min(entry[0] for entry in candidates):
            break
        strategy = _restarted(Toeplitz.damped(block, damping), workload.n)
        value = loss_of(workload, strategy, participation, loss)
        candidates.append((value, -block, strategy))
    best = min(candidates, key=lambda entry: entry[:2])[2]
    asked = workload, participation, loss
    others = [Toeplitz(workload.n, np.eye(1, workload.n)[0])]
    return finish(best, asked, started, search.evaluations, others=others)


@on_one_thread
def restarted(
    workload: Workload,
    build: Callable[[int], Strategy],
    *,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    restarts: int | str = "choose",
    progress: Progress | None = None,
) -> Optimized:
    """Return `Restarted` strategies, with the number of restarts of smallest loss.

    Args:
        workload: n steps.
        build: gives the strategy of one block from its number of steps, as
            ``lambda steps: Toeplitz.square_root(workloads.prefix_sum(steps))``.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms", "max" or "last", or weights of the steps.
        restarts: as for `damped`.
        progress: called with the number of evaluations so far and the present loss.

    Returns:
        The strategy of one block where no restart is best, or a `Restarted` one.

    Raises:
        ValueError: for bad arguments, or a block of another number of steps.
        UnsupportedError: for schemas without a known worst pattern.

    References:
        Monograph, Definition 3.18.
    """
    started = time.perf_counter()
    checked_workload(workload)
    if not callable(build):
        raise ValueError(f"build={build!r} must be a function from a number of steps to a strategy.")
    found = []
    for block in _blocks(restarts, workload.n, periodic_pattern(participation, workload.n)):
        strategy = build(block)
        if not isinstance(strategy, Strategy) or strategy.n != block:
            raise ValueError(f"build({block}) gave {strategy!r}; a strategy with {block} steps is needed.")
        strategy = _restarted(strategy, workload.n)
        found.append((loss_of(workload, strategy, participation, loss), strategy))
        if progress is not None:
            progress(len(found), found[-1][0])
    best = min(found, key=lambda pair: pair[0])[1]
    return finish(best, (workload, participation, loss), started, len(found))


class _Search:
    """The loss of a damping and a number of steps per block, for the pattern 0, b, 2b, ….

    That pattern is the worst one where blocks are whole separations, as the coefficients of each fall;
    elsewhere it gives a lower estimate, by which only the search is led.
    """

    def __init__(
        self, workload: Workload, participation: Participation, kind: LossNorm, progress: Progress | None
    ) -> None:
        self.workload, self.kind = workload, kind
        self.separation, self.count = periodic_pattern(participation, workload.n)
        self.plain, self.form = quadratic_form(workload, kind)
        self.progress = progress
        self.evaluations = 0

    def best(self, block: int) -> tuple[float, float]:
        """Smallest loss, and the damping that gives it."""
        grid = np.geomspace(LEAST / self.workload.n, 1.0, GRID)
        grid[-1] = 1.0 - 1e-9
        losses = [self.loss(block, damping) for damping in grid]
        i = int(np.argmin(losses))
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
        refined = scipy.optimize.minimize_scalar(
            lambda x: self.loss(block, math.exp(x)),
            bounds=(math.log(low), math.log(high)),
            method="bounded",
            options={"xatol": FINE},
        )
        tried = [
            (self.loss(block, 0.0), 0.0),
            (float(refined.fun), math.exp(refined.x)),
            (losses[i], float(grid[i])),
        ]
        return min(tried)

    def loss(self, block: int, damping: float) -> float:
        self.evaluations += 1
        n = self.workload.n
        strategy = _restarted(Toeplitz.damped(block, damping), n)
        if block == n:
            b = self.plain.multiply(strategy.correlate(np.eye(1, n)[0]))
            error = math.sqrt(float(b @ self.form(b)))
        else:
            error = error_of(self.workload, strategy).of(self.kind)
        value = error * math.sqrt(strategy.comb_norm_squared(self.separation, self.count))
        if self.progress is not None:
            self.progress(self.evaluations, value)
        return value


def _restarted(strategy: Strategy, n: int) -> Strategy:
    return strategy if strategy.n == n else Restarted(strategy, -(-n // strategy.n), n)


def _blocks(restarts: int | str, n: int, comb: tuple[int, int]) -> list[int]:
    """Steps of a block, for each number of restarts to be tried."""
    if restarts == "choose":
        separation, count = comb
        if count == 1:
            return [-(-n // 2**power) for power in range(n.bit_length())]
        whole = range(1, count + 1) if count <= 12 else np.unique(np.geomspace(1, count, 12).astype(int))
        return sorted({min(n, int(q) * separation) for q in whole} | {n}, reverse=True)
    if isinstance(restarts, str):
        raise ValueError(f"restarts={restarts!r} is unknown: give a number, or 'choose'.")
    if positive_int("restarts", restarts) > n:
        raise ValueError(f"restarts={restarts} exceeds n={n}: a block has at least one step.")
    return [-(-n // restarts)]

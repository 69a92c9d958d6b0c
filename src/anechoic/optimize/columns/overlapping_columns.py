"""The largest error under minimum separation, with columns that overlap from one participation to the next.

For the mean of squared errors columns that one unit can touch are best orthogonal, or nearly so. For the
largest error they are not: at the optimum M = C^T C is positive there, and C of up to twice as many bands as
the separation gains 2 to 3 per cent. M then vanishes between participations that are no neighbours, so that
sens^2, the largest sum of M over a pattern, is a dynamic programme (`sensitivity.chain`). Its maximum, and
that of the errors, are replaced by smooth ones, which are sharpened in stages, and L-BFGS minimises their
product over all entries of C.

A long run of prefix sums is optimised on cells of a few steps each. What a cell leaves out is what is near
the diagonal: there C is C[t, t] times the root of A, whose squares r_j^2 have a sum larger by

    delta = sum_{j < n} r_j^2 - sum_{j < cells} r_j^2

in the run than in the cells. So delta C[t, t]^2 is added to the squared norm of a column and delta /
C[t, t]^2 to the squared error, and the columns over those of the root, which hardly depend on the grain then,
are interpolated. Their norms are optimised in the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from scipy.linalg import solve_triangular

from anechoic._validate import Array
from anechoic.algebra import banded
from anechoic.optimize.columns.coarse_run import interpolated
from anechoic.optimize.columns.objective import DENSE
from anechoic.optimize.columns.search import Progress
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads import prefix_sum
from anechoic.workloads.base import Workload

CELLS, SHORTEST = 200, 8  # of a run at most, and of a separation at least
MOST = 32  # participations
COARSE = (4, 2, 1)  # cells of the last search in one of a search before it
# Powers of the errors, half of them sharpness of patterns: of the first search, of each later one, of norms.
FIRST, LATER, NORMS = (128.0, 1024.0, 4096.0), (1024.0, 8192.0), (512.0, 4096.0, 16384.0)
ROUNDS, NORM_ROUNDS = 120, 30  # of L-BFGS in each stage
LAGS = 50  # about as many lags of neighbours that are looked at for norms
NEVER = -1e30  # logarithm of what there is none of

#: Variables and a power to a value and its gradient.
Function = Callable[[Array, float], tuple[float, Array]]


def serves(workload: Workload, bands: int, participation: Participation) -> bool:
    """Whether this search knows the class, is quick, and has cells that are fine enough."""
    n = workload.n
    if not isinstance(participation, MinSep) or bands > 2 * participation.separation:
        return False
    size = _grain(n)
    return (
        1 < participation.max_participations_in(n) <= MOST
        and participation.separation >= SHORTEST * size
        and (size == 1 or (workload.is_prefix_sum and n <= DENSE))
    )


def overlapping_columns(
    workload: Workload, bands: int, participation: MinSep, progress: Progress | None = None
) -> tuple[Array, int]:
    """Columns, shape (n, bands), of small largest error for their sensitivity, and evaluations.

    Args:
        workload: A, which `serves`.
        bands: of C, at most twice the separation.
        participation: with more than one participation.
        progress: called with the evaluations so far and about the loss, after each round.
    """
    n, last = workload.n, _grain(workload.n)
    count, separation = participation.max_participations_in(n), participation.separation
    coarse, stages, size = None, Stages(progress), 0
    for factor in COARSE:
        if factor > 1 and not (workload.is_prefix_sum and separation >= SHORTEST * factor * last):
            continue
        before, size = size, factor * last
        cells, wide = -(-n // size), -(-bands // size)
        root = square_root_coefficients(prefix_sum(cells), wide)
        start = banded.of_toeplitz(root, cells)
        if coarse is not None:
            start = interpolated(coarse, workload.truncate(cells), wide, before // size)
        apart = -(-separation // size)
        search = _Search(workload.truncate(cells), wide, Chains(cells, apart, count, 1), _delta(n, cells))
        coarse = search.minimised(start, stages, FIRST if coarse is None else LATER)
    assert coarse is not None
    if size > 1:
        norms = _Norms(interpolated(coarse, workload, bands, size), Chains(n, separation, count, LAGS))
        coarse = norms.minimised(stages)
    return coarse, stages.evaluations


def _grain(n: int) -> int:
    return -(-n // CELLS)


def _delta(n: int, cells: int) -> float:
    squares = np.square(square_root_coefficients(prefix_sum(n), n))
    return float(squares[cells:].sum())


def power_mean(squares: Array, power: float) -> tuple[float, Array]:
    """The mean of that power of the squared errors as a smooth maximum, and its derivatives."""
    largest = float(squares.max())
    shares = (squares / largest) ** (power - 1)
    mean = float((shares * squares / largest).mean())
    return largest * mean ** (1 / power), shares * mean ** (1 / power - 1) / len(squares)


class Chains:
    """The smooth maximum of sums of M over the patterns of minimum separation.

    Args:
        n: steps.
        separation, count: of the schema, count >= 2.
        most: lags from the separation to twice of it that are looked at; 1 for all of them.
    """

    def __init__(self, n: int, separation: int, count: int, most: int) -> None:
        self._n, self._count = n, count
        self._free = 2 * separation  # from this lag on nothing interacts
        self._every = 1 if most == 1 else max(1, separation // most)
        self.lags = range(separation, min(self._free, n), self._every)

    def pairs(self, gram: Callable[[int], Array]) -> Array:
        """2 |M[t - lag, t]| at [lag, t], from its diagonals; `NEVER` where there is no such step."""
        found = np.full((len(self.lags), self._n), NEVER)
        for row, lag in zip(found, self.lags, strict=True):
            row[lag:] = 2 * np.abs(gram(lag))
        return found

    def __call__(self, squares: Array, pairs: Array, sharpness: float) -> tuple[float, Array, Array]:
        """The maximum, about, and its derivatives by M[t, t], shape (n,), and by `pairs`.

        A sum of logarithms over all paths through the steps, forwards, and their shares, backwards. The
        sharpness is relative to the mean of M[t, t] times the count, so that the maximum is homogeneous.
        """
        n, count, lags, free = self._n, self._count, self.lags, self._free
        scale = count * float(squares.mean())
        own, joint = sharpness / scale * squares, sharpness / scale * pairs
        paths, shares, since = [own], [], []
        for _ in range(count - 1):
            before = paths[-1]
            shifted = np.concatenate([np.full(n, NEVER), before])
            # row `lag` of what came `lag` steps before
            earlier = sliding_window_view(shifted, n)[n - lags.start :: -self._every][: len(lags)]
            terms = joint + earlier
            running = np.logaddexp.accumulate(before)
            apart = np.concatenate([np.full(min(free, n), NEVER), running[: max(n - free, 0)]])
            top = np.maximum(terms.max(axis=0, initial=NEVER), apart)
            near, far = np.exp(terms - top), np.exp(apart - top)
            total = near.sum(axis=0) + far
            shares.append((near / total, far / total))
            since.append(running)
            paths.append(np.maximum(own + top + np.log(total), NEVER))
        logs = np.array(paths)
        top = float(logs.max())
        p = np.exp(logs - top)
        value = (top + float(np.log(p.sum()))) * scale / sharpness
        p /= p.sum()
        by_pairs = np.zeros_like(pairs)
        for j in range(count - 1, 0, -1):
            near, far = shares[j - 1]
            taken = near * p[j]
            by_pairs += taken
            for row, lag in zip(taken, lags, strict=True):
                p[j - 1, : n - lag] += row[lag:]
            if n > free:
                sums = since[j - 1][: n - free]  # no path ends before the first of them
                left = np.log(np.maximum((far * p[j])[free:], 1e-300)) - np.maximum(sums, NEVER / 2)
                left = np.logaddexp.accumulate(left[::-1])[::-1]
                p[j - 1, : n - free] += np.exp(paths[j - 1][: n - free] + left)
        by_squares = p.sum(axis=0)
        joined = np.where(pairs > NEVER, pairs, 0.0)
        rest = value - float(by_squares @ squares) - float((by_pairs * joined).sum())
        return value, by_squares + rest / scale * count / n, by_pairs


class Stages:
    """L-BFGS for one power after the other, from where the one before ended."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.evaluations = 0

    def __call__(self, function: Function, x: Array, powers: tuple[float, ...], rounds: int) -> Array:
        def counted(x: Array, power: float) -> tuple[float, Array]:
            self.evaluations += 1
            return function(x, power)

        def after(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            if self._progress is not None:
                self._progress(self.evaluations, float(np.exp(intermediate_result.fun / 2)))

        options = {"maxiter": rounds, "maxfun": 2 * rounds, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-10}
        for power in powers:
            x = scipy.optimize.minimize(
                counted, x, args=(power,), jac=True, method="L-BFGS-B", callback=after, options=options
            ).x
        return np.asarray(x)


class _Search:
    """Over all entries of a banded C."""

    def __init__(self, workload: Workload, bands: int, chains: Chains, delta: float) -> None:
        self._a, self._chains, self._delta = workload.to_dense(), chains, delta
        self._steps = np.arange(workload.n)
        lags = self._steps[:, None] - self._steps
        self._inside = (lags >= 0) & (lags < bands)
        self._bands = bands

    def minimised(self, columns: Array, stages: Stages, powers: tuple[float, ...]) -> Array:
        x = stages(self, banded.dense(columns)[self._inside], powers, ROUNDS)
        c = np.zeros_like(self._a)
        c[self._inside] = x
        return banded.from_dense(c, self._bands)

    def __call__(self, x: Array, power: float) -> tuple[float, Array]:
        """The logarithm of the squared loss, and its gradient."""
        c = np.zeros_like(self._a)
        c[self._inside] = x
        own = c.diagonal().copy()
        if np.abs(own).min() <= 1e-6 * np.abs(own).max():
            return 1e10, np.zeros_like(x)
        gram = c.T @ c
        squares = gram.diagonal() + self._delta * np.square(own)
        sens, by_squares, by_pairs = self._chains(
            squares, self._chains.pairs(lambda lag: gram.diagonal(lag)), power / 2
        )
        by_gram = np.diag(by_squares)
        for row, lag in zip(by_pairs, self._chains.lags, strict=True):
            later = self._steps[lag:]
            by_gram[later - lag, later] = by_gram[later, later - lag] = row[lag:] * np.sign(
                gram.diagonal(lag)
            )
        b = solve_triangular(c, self._a.T, trans="T", lower=True, check_finite=False).T
        errors = np.square(b).sum(axis=1) + self._delta / np.square(own)
        error, by_error = power_mean(errors, power)
        product = b.T @ (by_error[:, None] * b)
        by_c = 2 * (c @ by_gram) / sens
        by_c -= 2 * solve_triangular(c, product, lower=True, check_finite=False).T / error
        by_c[self._steps, self._steps] += (
            2 * self._delta * (own * by_squares / sens - by_error / own**3 / error)
        )
        return float(np.log(sens) + np.log(error)), by_c[self._inside]


class _Norms:
    """Over the norms of given columns of a C for prefix sums, in their logarithms: n^2 for an evaluation."""

    def __init__(self, columns: Array, chains: Chains) -> None:
        self._norms = np.sqrt(np.square(columns).sum(axis=1))
        self._unit, self._chains = columns / self._norms[:, None], chains
        n, bands = columns.shape
        unit = self._unit
        self._pairs = chains.pairs(
            lambda lag: np.einsum("ji,ji->j", unit[: n - lag, lag:], unit[lag:, : max(bands - lag, 0)])
        )
        inverse = solve_triangular(banded.dense(unit), np.eye(n), lower=True, check_finite=False)
        products = inverse @ inverse.T
        self._own = products.diagonal().copy()
        self._before = np.tril(products, -1)

    def minimised(self, stages: Stages) -> Array:
        logs = stages(self, np.log(self._norms), NORMS, NORM_ROUNDS)
        return np.asarray(np.exp(logs)[:, None] * self._unit)

    def __call__(self, logs: Array, power: float) -> tuple[float, Array]:
        q = np.exp(logs - logs.mean())
        chains = self._chains
        factors = np.zeros_like(self._pairs)
        for row, lag in zip(factors, chains.lags, strict=True):
            row[lag:] = q[lag:] * q[: len(q) - lag]
        joint = np.where(self._pairs > NEVER, self._pairs * factors, NEVER)
        sens, by_squares, by_pairs = chains(np.square(q), joint, power / 2)
        weights = by_pairs * np.where(self._pairs > NEVER, joint, 0.0)
        by_log = 2 * by_squares * np.square(q) + weights.sum(axis=0)
        for row, lag in zip(weights, chains.lags, strict=True):
            by_log[: len(q) - lag] += row[lag:]
        # e_t^2 is the sum of x_s x_u K[s, u] over s, u <= t for x = 1 / q and K = (D^T D)^-1
        x = 1.0 / q
        image = self._before @ x
        error, by_error = power_mean(np.cumsum(x * (2 * image + self._own * x)), power)
        after = np.cumsum(by_error[::-1])[::-1]
        by_x = 2 * (after * (image + self._own * x) + self._before.T @ (after * x))
        slopes = by_log / sens - by_x * x / error
        return float(np.log(sens) + np.log(error)), slopes

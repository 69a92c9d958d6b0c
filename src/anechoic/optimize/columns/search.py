"""L-BFGS over the columns of a banded C, the ends of the run apart, and a bound that says how close it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.lower_bounds.result import Bound
from anechoic.optimize.columns.objective import BlockObjective, ColumnsWindow, Mean, Objective
from anechoic.optimize.columns.rows import bound_by_rows, level
from anechoic.optimize.columns.scales import Scales
from anechoic.workloads.base import Workload

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[int, float], None]

TOLERANCE = 5e-6  # projected gradient aimed at
ITERATIONS = 4000  # of one L-BFGS run, where the run is not cut into windows
MEMORY = 10  # pairs that L-BFGS keeps
# The ends of the run: columns of one of them at most and at least, over bands^2; iterations there, and of all
# columns in between.
END, IN_ENDS, BETWEEN, ROUNDS = (8, 3), 600, 50, 12
# What so many iterations must gain, relatively, where norms depend on many windows: the rest takes long.
GAIN, PATIENCE = 2e-5, 50
# Largest error: sharpness of the smooth maximum at first, at last, and its growth by round; the part of the
# weight that is even, at first and at last.
SHARPNESS, SHARPEST, SHARPER = 40.0, 600.0, 2.0
EVEN, KEPT = 1e-3, 1e-4
# Projected gradient aimed at in the first round, iterations in it and their growth by round, rounds, the
# first that ends level, the gap to stop at, and what two rounds leave of it at most where norms depend on
# many windows.
LOOSE, IN_ROUND, LONGER, TURNS, LEVEL_FROM, GAP, SLOW = 1e-4, 70, 1.4, 12, 2, 1e-4, 0.9


class Search:
    """L-BFGS over the columns of C, of sensitivity 1.

    Attributes:
        objective, scales: the squared errors, and how long columns may be.
        evaluations: of the loss and its gradient so far; those in windows count by their share of the run.
        gradient: the projected gradient at the last of them.
    """

    def __init__(self, objective: Objective, scales: Scales, progress: Progress | None) -> None:
        self.objective, self.scales, self._progress = objective, scales, progress
        self._units = scales.units
        self._work = 0.0
        self._error = np.inf
        self.gradient = np.inf

    @property
    def evaluations(self) -> int:
        return int(np.ceil(self._work))

    def minimise(self, columns: Array, weights: Array, tolerance: float = TOLERANCE) -> Array:
        """Columns of the smallest weighted mean of squared errors."""
        mean = weighted(weights)
        objective = self.objective
        if not isinstance(objective, BlockObjective):
            return self._whole(columns, mean, ITERATIONS, tolerance)
        ends = _ends(objective, columns.shape[1])
        if not ends:
            return self._whole(columns, mean, ITERATIONS, tolerance)
        columns = self._whole(columns, mean, BETWEEN // 2, tolerance)
        for _ in range(ROUNDS):
            if self.gradient <= tolerance:
                break
            state, before = objective.state(columns, weights), self._error
            for blocks in ends:
                window = objective.window(columns, weights, state, blocks)
                columns = self._window(columns, window, self._error**2, tolerance / 2)
            columns = self._whole(columns, mean, BETWEEN, tolerance)
            if self.scales.bounded and self._error > (1.0 - GAIN) * before:
                break
        return columns

    def descend(self, columns: Array, weights: Array, iterations: int) -> Array:
        """Columns of a smaller weighted mean, after at most so many iterations over all of them."""
        return self._whole(columns, weighted(weights), iterations, TOLERANCE)

    def minimax(self, columns: Array, workload: Workload, gap: float = GAP) -> tuple[Array, Bound]:
        """Columns of the smallest largest error, and a bound of it: that of any weighted mean is one.

        The exponential method of multipliers: minimise log sum_t w_t exp(p e_t^2 / m) m / p for the largest
        squared error m so far; the weights of the mean that is then at its minimum are the next w. A small
        part of the weight stays even: where steps have none, the columns before them are hardly determined.
        What is left of differences between the largest errors is levelled out.
        """
        objective = self.objective
        weights = np.full(len(columns), 1.0 / len(columns))
        found = _Minimax(self, workload)
        sharpness, tolerance, even = SHARPNESS, LOOSE, EVEN
        gaps: list[float] = []
        while len(gaps) < TURNS:
            mean = SmoothSearch(weights, sharpness / float(objective.squares(columns).max()), even)
            columns = self._whole(columns, mean, int(IN_ROUND * LONGER ** len(gaps)), tolerance)
            weights = mean(objective.squares(columns))[1]
            columns = found.taken(columns, weights, sharp=len(gaps) >= LEVEL_FROM)
            gaps.append(found.smallest / found.highest.value - 1.0)
            if gaps[-1] <= gap or (self.scales.bounded and len(gaps) > 4 and gaps[-1] > SLOW * gaps[-3]):
                break
            sharpness = min(sharpness * SHARPER, SHARPEST)
            tolerance = max(tolerance / SHARPER, TOLERANCE)
            even = max(even / SHARPER, KEPT)
        return found.best, found.highest

    def projected(self, columns: Array, weights: Array) -> float:
        """The projected gradient there, of the weighted mean."""
        found = self.objective(columns, weighted(weights))
        variables = self.scales.variables(columns)
        return self.scales.pull_back(variables, found.gradient / (2.0 * found.value))[1]

    def bound(self, columns: Array, weights: Array) -> Bound:
        """Weak duality at M = C^T C, for every M' of these bands and sensitivity 1.

        Let Y = A^T W A, Z = M^-1 Y M^-1, and R the entries of Z in the bands but off its diagonal. The matrix
        Z - R + diag(sums of |R| by rows) is no less than Z, as R is no more than that diagonal, and in the
        bands it is a diagonal v. Hence tr(Y M'^-1) + s^2 tr(diag(v) M') >= tr(Y M'^-1) + s^2 tr(Z M')
        >= 2 s tr(Y M^-1) for every s >= 0, where tr(diag(v) M') is at most the price of v:
        the best s gives tr(Y M'^-1) >= tr(Y M^-1)^2 / price.
        """
        value = float(weights @ self.objective.squares(columns))
        multipliers = self.objective.multipliers(columns, weights)
        gram = _gram(columns)
        check = float((multipliers * gram * np.r_[1.0, np.full(gram.shape[1] - 1, 2.0)]).sum())
        off = np.abs(multipliers[:, 1:])
        diagonal = multipliers[:, 0] + off.sum(axis=1)
        for lag in range(off.shape[1]):
            diagonal[lag + 1 :] += off[: len(off) - lag - 1, lag]
        price = self.scales.price(np.maximum(diagonal, 0.0))
        # tr(Z M) is the value itself: what it misses by is what rounding did
        slack = 1.0 - 1e-12 - 10.0 * abs(check / value - 1.0)
        bands = columns.shape[1]
        covers = f"strategies of {bands} band{'s' * (bands > 1)}"
        return Bound(value / math.sqrt(price) * slack, "dual of Problem 4.6 within the bands", covers)

    def _whole(self, columns: Array, mean: Mean, iterations: int, tolerance: float) -> Array:
        scales = self.scales
        variables = scales.variables(columns)

        def by_variables(variables: Array) -> tuple[float, Array]:
            self._work += 1.0
            found = _attempt(self.objective, scales.columns(variables), mean)
            if found is None or not (np.isfinite(found.value) and np.isfinite(found.gradient).all()):
                return 1e10, np.zeros_like(variables)
            slopes, self.gradient = scales.pull_back(variables, found.gradient / (2.0 * found.value))
            self._error = float(np.sqrt(found.value))
            return 0.5 * float(np.log(found.value)), slopes

        return scales.columns(self._run(by_variables, variables, iterations, tolerance, scales.bounded))

    def _window(self, columns: Array, window: ColumnsWindow, total: float, tolerance: float) -> Array:
        """The free columns of a window, each as long as it is; `total` is the mean over the whole run."""
        free = columns[window.free]
        lengths = np.sqrt(np.einsum("ji,ji->j", free, free))[:, None]
        size = float(np.sqrt(np.square(columns).sum()))
        units = self._units[window.free]
        share = len(free) / len(columns)

        def by_variables(variables: Array) -> tuple[float, Array]:
            self._work += share
            directions = variables.reshape(free.shape) / units
            norms = np.sqrt(np.einsum("ji,ji->j", directions, directions))[:, None]
            directions /= norms
            found = _attempt(window, lengths * directions)
            if found is None or not (np.isfinite(found[0]) and np.isfinite(found[1]).all()):
                return 1e10, np.zeros_like(variables)
            value, gradient = found
            gradient *= lengths / (2.0 * total)
            gradient -= directions * np.einsum("ji,ji->j", gradient, directions)[:, None]
            self.gradient = size * float(np.sqrt(np.square(gradient / lengths).sum()))
            return value / (2.0 * total), (gradient / (norms * units)).reshape(-1)

        found = self._run(by_variables, (free * units).reshape(-1), IN_ENDS, tolerance, 0)
        directions = found.reshape(free.shape) / units
        norms = np.sqrt(np.einsum("ji,ji->j", directions, directions))[:, None]
        columns = columns.copy()
        columns[window.free] = lengths * directions / norms
        return columns

    def _run(
        self,
        function: Callable[[Array], tuple[float, Array]],
        start: Array,
        iterations: int,
        tolerance: float,
        bounded: int,
    ) -> Array:
        errors: list[float] = []

        def after(intermediate_result: object) -> None:
            if self._progress is not None:
                self._progress(self.evaluations, self._error)
            errors.append(self._error)
            slow = len(errors) > 4 * PATIENCE and errors[-1] > (1.0 - GAIN) * errors[-1 - PATIENCE]
            if self.gradient <= tolerance or (bounded and slow):
                raise StopIteration

        bounds = None
        if bounded:
            lowest = np.full(len(start), -np.inf)
            lowest[-bounded:] = 0.0
            bounds = scipy.optimize.Bounds(lowest)
        options = {
            "maxiter": iterations,
            "maxfun": 2 * iterations,
            "gtol": 0.0,
            "ftol": 0.0,
            "maxcor": MEMORY,
        }
        found = scipy.optimize.minimize(
            function, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=after, options=options
        )
        return np.asarray(found.x)


class _Minimax:
    """The columns of smallest largest error so far, and the highest bound."""

    highest: Bound

    def __init__(self, search: Search, workload: Workload) -> None:
        self._search, self._workload = search, workload
        self.smallest = np.inf

    def taken(self, columns: Array, weights: Array, *, sharp: bool) -> Array:
        """Columns to go on with, level ones if `sharp`, from about stationary ones for these weights."""
        search = self._search
        bound = search.bound(columns, weights)
        if sharp:
            value = bound_by_rows(self._workload, search.scales, columns, weights)
            bound = _higher(bound, replace(bound, value=value))
            columns = level(self._workload, search.objective.squares, columns, search.scales.units, weights)
        # each holds, and the last is not always the highest
        self.highest = bound if self.smallest == np.inf else _higher(self.highest, bound)
        largest = float(np.sqrt(search.objective.squares(columns).max()))
        if largest < self.smallest:
            self.smallest, self.best = largest, columns
        return columns


def _attempt(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What it gives, or None where a step of the line search made C singular."""
    try:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)
    except np.linalg.LinAlgError:
        return None


def weighted(weights: Array) -> Mean:
    """The weighted mean; weights sum to 1."""
    return lambda squares: (float(weights @ squares), weights)


def _higher(one: Bound, other: Bound) -> Bound:
    return other if other.value > one.value else one


class SmoothSearch:
    """log(sum_t w_t exp(s x_t)) / s, at most the largest x, with a part of the mean; and its derivatives."""

    def __init__(self, weights: Array, sharpness: float, even: float) -> None:
        self._weights, self._sharpness, self._even = weights, sharpness, even

    def __call__(self, squares: Array) -> tuple[float, Array]:
        largest = float(squares.max())
        shares = self._weights * np.exp(self._sharpness * (squares - largest))
        total = float(shares.sum())
        smooth = largest + float(np.log(total)) / self._sharpness
        value = (1.0 - self._even) * smooth + self._even * float(squares.mean())
        return value, (1.0 - self._even) * shares / total + self._even / len(squares)


def _ends(objective: BlockObjective, bands: int) -> list[range]:
    """The blocks at the start and at the end of the run, if it is long enough to treat them apart."""
    most, least = (factor * max(bands, 4) ** 2 // objective.size for factor in END)
    length = min(most, objective.count // 4)
    if length < max(least, 3):
        return []
    return [range(length), range(objective.count - length, objective.count)]


def _gram(columns: Array) -> Array:
    """M = C^T C by its upper diagonals: array[j, i] = M[j, j + i], shape (n, bands)."""
    n, bands = columns.shape
    gram = np.zeros((n, bands))
    for lag in range(bands):
        gram[: n - lag, lag] = np.einsum("ji,ji->j", columns[: n - lag, lag:], columns[lag:, : bands - lag])
    return gram

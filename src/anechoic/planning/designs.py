"""Optimised strategies of one objective by bands or buffers, and their errors: computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from anechoic.losses.norms import LossNorm, weight_of_the_last
from anechoic.optimize import banded, dense
from anechoic.optimize.columns.banded import refine_columns
from anechoic.optimize.series.banded_toeplitz import design
from anechoic.optimize.series.blt import designs as blt_designs
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.planning.bands import powers_of_two
from anechoic.planning.column_norms import POWERS, norms_over_passes
from anechoic.planning.objective import PlanObjective
from anechoic.strategies import ColumnNormalized, Identity
from anechoic.strategies.base import Strategy
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.workloads.optimizers import toeplitz_factor

#: Work, n bands, up to which bands are tried, and where learning rates differ from step to step; and the
#: longest run of equal rates whose columns may differ in length: that takes n^2.
EVEN_WORK, UNEVEN_WORK, UNEVEN_UP_TO = 300_000_000, 3_000_000, 8000
#: Longest run for which column-normalised strategies are tried: their error takes O(n bands) work.
NORMALIZE_UP_TO = 200_000
#: Longest run for which banded Toeplitz strategies are optimised.
BANDED_UP_TO = 10_000_000
#: Work, n bands^2, and steps up to which the columns of a banded strategy are optimised one by one.
FREE_UP_TO = 150_000
FREE_STEPS_UP_TO = 5000
#: n bands, and steps, up to which columns that are scaled are freed, where rates differ over several passes.
FREED_UP_TO, FREED_STEPS_UP_TO = 200_000, 2048
#: Longest run whose designs are remembered for the next plan of the same workload, and of how many workloads.
REMEMBERED_UP_TO, REMEMBERED = 20_000, 8
#: How near to the best matrix of all one is looked for.
DENSE_GAP = 1e-3
#: More buffers than this gain next to nothing (Section 4.3.2); beyond these steps one more, and another one,
#: gain some parts in a thousand.
BUFFERS, LONG, LONGER = 4, 20_000, 500_000
#: Longest run whose BLTs are optimised for weights of the steps; those of longer ones for the mean, in closed
#: form.
WEIGHTS_UP_TO = 200_000


class Designs:
    """Banded strategies for a Toeplitz workload with any learning rates, and buffered ones.

    For as many groups or steps between participations as bands, all columns that one example touches are
    orthogonal, so that the best one for a single participation is the best one whatever the amplification.
    """

    def __init__(self, objective: PlanObjective) -> None:
        self.objective, self.workload = objective, objective.workload
        # Toeplitz optimisers know no largest error where rates differ: designs for the mean are compared
        self.loss: LossNorm = "rms" if objective.worst and not self.workload.is_toeplitz else objective.loss
        self._made: dict[int, Strategy] = {}
        self._free: dict[int, Strategy] = {}
        self._freed: dict[tuple[Strategy, Participation], Strategy | None] = {}
        self._errors: dict[Strategy, float] = {}
        self._curves: dict[int, Callable[[int], float]] = {}
        self._dense: dict[Participation, Strategy] = {}
        self._blts: dict[Participation, tuple[list[Strategy], Iterator[Strategy]]] = {}

    def toeplitz(self, bands: int) -> Strategy:
        """The best banded Toeplitz strategy, its columns normalised unless the run is very long."""
        if bands not in self._made:
            best: Strategy = Identity(self.workload.n)
            if bands > 1:
                best = design(self.workload, bands, self.loss)
            if bands > 1 and self.workload.n <= NORMALIZE_UP_TO:
                best = ColumnNormalized(best)
            self._made[bands] = best
        return self._made[bands]

    def dense(self, schema: Participation) -> Strategy:
        """The best of all matrices for a participation, to within `DENSE_GAP`, or of few bands."""
        if schema not in self._dense:
            n, loss = self.workload.n, self.objective.loss
            if isinstance(schema, MinSep) and schema.max_participations_in(n) > 1:
                found = banded(
                    self.workload, bands=min(schema.separation, n), participation=schema, loss=loss
                )
            else:
                found = dense(self.workload, participation=schema, loss=loss, gap=DENSE_GAP)
            self._dense[schema] = found.strategy
        return self._dense[schema]

    def most_bands(self, most: int) -> int:
        """At most so many bands, and no more than are quick to optimise."""
        work = EVEN_WORK if self.workload.is_toeplitz else UNEVEN_WORK
        return max(1, min(most, work // self.workload.n))

    def scaled_over_passes(self, strategy: Strategy, schema: Participation) -> Iterable[Strategy]:
        """A strategy with columns as long as their steps matter; nothing where all are equally long."""
        if self.workload.is_toeplitz and self.workload.n > UNEVEN_UP_TO:
            return
        for power in POWERS:
            norms = norms_over_passes(self.objective, schema, power)
            if norms is not None:
                even = strategy if isinstance(strategy, ColumnScaled) else ColumnNormalized(strategy)
                yield ColumnScaled(even.base, np.asarray(even.scales) * norms)

    def of(self, strategy: Strategy) -> float:
        """Root of the objective for unit noise."""
        if strategy not in self._errors:
            self._errors[strategy] = self.objective.measure(strategy)
        return self._errors[strategy]

    def error(self, bands: int) -> float:
        """That of `toeplitz(bands)`; its largest column norm is 1."""
        return self.of(self.toeplitz(bands))

    def curve(self, most: int) -> Callable[[int], float]:
        """About `error(bands)` for 1 <= bands <= most, from the errors at powers of two; for rankings."""
        if most not in self._curves:
            knots = [1, *(b for b in powers_of_two(most) if b > 1)]
            x, y = np.log(knots), np.log([self.error(b) for b in knots])
            if len(knots) < 3:
                self._curves[most] = lambda bands: float(np.exp(np.interp(np.log(bands), x, y)))
            else:
                from scipy.interpolate import PchipInterpolator

                smooth = PchipInterpolator(x, y)
                self._curves[most] = lambda bands: float(np.exp(smooth(np.log(bands))))
        return self._curves[most]

    @property
    def normalized_up_to(self) -> int:
        """The most bands for which `free` is quick: none with learning rates, where `refined` knows more."""
        n = self.workload.n
        if n > FREE_STEPS_UP_TO or not self.workload.is_toeplitz or self.objective.worst:
            return 0
        return math.isqrt(FREE_UP_TO // n)

    def free(self, bands: int) -> Strategy | None:
        """The best banded strategy with columns of norm 1, where that is quick to find."""
        if not 1 < bands <= self.normalized_up_to:
            return None
        if bands not in self._free:
            self._free[bands] = banded(self.workload, bands=bands, loss=self.loss).strategy
        return self._free[bands]

    @property
    def refined_up_to(self) -> int:
        """The most bands for which `refined` is quick: none where all rates are alike."""
        n = self.workload.n
        if n > FREED_STEPS_UP_TO or self.workload.is_toeplitz or self.objective.worst:
            return 0
        return FREED_UP_TO // n

    def refined(self, strategy: Strategy, schema: Participation) -> Strategy | None:
        """A banded strategy, its columns freed for several participations, where that is quick."""
        if (strategy, schema) not in self._freed:
            self._freed[strategy, schema] = refine_columns(self.workload, strategy, schema, self.loss)
        return self._freed[strategy, schema]

    def blt(self, buffers: int, schema: Participation = SINGLE) -> Strategy:
        """The best BLT of at most so many buffers."""
        if schema not in self._blts:
            workload, loss = self.workload, self.loss
            closed = workload.is_toeplitz and weight_of_the_last(loss, workload.n) is not None
            if workload.n > WEIGHTS_UP_TO and not closed:
                workload, loss = toeplitz_factor(workload), "rms"
            self._blts[schema] = [], blt_designs(workload, schema, loss)
        found, more = self._blts[schema]
        found += islice(more, max(0, buffers - len(found)))
        return found[:buffers][-1]

    def buffered(self, schema: Participation) -> Iterable[Strategy]:
        """The best BLTs for a participation, of 1, 2, … buffers, as many as the optimum has use for."""
        n = self.workload.n
        for buffers in range(1, min(BUFFERS + (n > LONG) + (n > LONGER), n - 1) + 1):
            best = self.blt(buffers, schema)
            if best.recurrence().rows < buffers:
                break
            yield best


_remembered: dict[tuple[Any, ...], Designs] = {}


def designs_of(objective: PlanObjective) -> Designs:
    """The designs of an objective; of one that was asked for lately, those made then."""
    workload = objective.workload
    if workload.n > REMEMBERED_UP_TO:
        return Designs(objective)
    arrays = (workload.coefficients, objective.weights, workload.rates)
    key = type(workload), objective.worst, *(None if one is None else one.tobytes() for one in arrays)
    found = _remembered.pop(key) if key in _remembered else Designs(objective)
    _remembered[key] = found  # the last one asked for
    for forgotten in [*_remembered][:-REMEMBERED]:
        _remembered.pop(forgotten, None)
    return found

"""The mechanism of a stream: planned for its horizon, or for ever, and its standard errors step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anechoic import optimize
from anechoic._validate import Array, fraction, one_of, positive_float, positive_int
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import Single
from anechoic.participation.base import Participation
from anechoic.planning.external_batches import ExternalSetting, calibrated_in_integers
from anechoic.planning.memory_budget import BYTES, MODELS, memory_limit
from anechoic.planning.objective import PlanObjective
from anechoic.planning.records import Goal
from anechoic.planning.result import mechanism_in
from anechoic.planning.user_choices import Restriction
from anechoic.sampling import External
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.strategies.base import Strategy
from anechoic.strategies.blt_rational import rational_blt
from anechoic.streaming.clock import Running, SlidingWindow, Window

#: Releases of a stream without horizon: 34 years at 1,000 a second.
FOR_EVER = 2**40
#: Releases for which its strategy is near the best; beyond, the error grows like their square root.
_ACCURATE_TO = 10**6
#: Of a BLT for them, with a max loss within a tenth of a percent of that of the square root.
_BUFFERS = 10
#: Steps for which a strategy is optimised where the optimum no longer changes with more.
_SETTLED = 4096
#: Everything is compared up to this horizon; beyond, independent noise and BLTs.
_ALL_UP_TO = 2048
#: Bytes of noise state that are written with every commit, if four rows are not more.
_WRITTEN = 2**20
#: Losses that are relatively closer than this count as equal: optimisers end a little apart elsewhere.
_ALIKE = 1e-3


def planned_mechanism(
    *,
    over: Window,
    horizon: int | None,
    participation: Participation,
    epsilon: float,
    delta: float,
    dimension: int,
    adjacency: str = "zero_out",
    unit: str = "event",
    buffered: bool = False,
    kept: bool = False,
) -> Mechanism:
    """Plan the mechanism that a stream takes where none is given, for contributions of norm 1.

    With a horizon it is the one of least largest error among those that `plan` compares in a fixed order:
    independent noise, BLTs and, up to 2,048 steps, banded and dense strategies and columns of other norms,
    and what `extend.register_strategies` knows. Without, C is horizon-free: it has a limiting sensitivity, so
    that its noise does not depend on how many releases there will be.

    Args:
        over: which steps are added up.
        horizon: number of releases n, or None for 2**40.
        participation: which steps one unit may touch; without horizon it must bound their number.
        epsilon, delta, adjacency, unit: see `calibrate`.
        dimension: numbers released at each step.
        buffered: compare independent noise and BLTs alone, whose rows take few operations.
        kept: whether the noise state is written with every commit: then it takes a MiB at most, or four rows.

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: if without horizon a unit may take part for ever.
    """
    if horizon is None:
        if participation.max_participations_in(FOR_EVER) > 2**16:
            raise UnsupportedError(
                f"horizon=None with participation={participation!r}: a unit that takes part for ever needs"
                " infinitely much noise. Bound it, as MinSep(separation=24, max_participations=30), or give a"
                " horizon."
            )
        strategy = _endless(over)
    else:
        n = positive_int("horizon", horizon)
        # a window that holds all steps is a running sum
        workload = (Running() if over.reach >= n else over).workload(n)
        found = ExternalSetting(
            PlanObjective(workload, worst=True),
            participation,
            Restriction.of("identity" if buffered else "auto"),
            memory_limit(dimension, max(_WRITTEN, MODELS * BYTES * dimension) if kept else None),
            alike=_ALIKE,
            few=buffered or n > _ALL_UP_TO,  # few numbers say what they are, however many steps
        ).best()
        strategy = found or Identity(n)
    among = one_of("adjacency", adjacency, ("zero_out", "replace_one"))
    goal = Goal(epsilon, delta, None, 1.0, among, unit)  # type: ignore[arg-type]
    return calibrated_in_integers(goal, strategy, External(participation, 1, steps=strategy.n), dimension)


def _endless(over: Window) -> Strategy:
    """Return a strategy of 2**40 steps whose sensitivity is bounded as if there were no last one.

    For a window it is banded, and as long: the memory of older noise would be of no use.
    """
    width = over.reach
    if not width:
        return rational_blt(FOR_EVER, _BUFFERS, accurate_to=_ACCURATE_TO)
    if width == 1:
        return Identity(FOR_EVER)
    steps = min(max(4 * width, 64), _SETTLED)
    workload = SlidingWindow(min(width, steps)).workload(steps)
    best = optimize.banded_toeplitz(workload, bands=min(width, 256), loss="max").strategy
    return BandedToeplitz(FOR_EVER, best.coefficients[: min(width, 256)])


def mechanism_of(
    mechanism: Mechanism | None,
    participation: Participation | None,
    *,
    horizon: int | None,
    epsilon: float | None,
    delta: float,
    unit: str | None,
    **setting: Any,
) -> Mechanism:
    """Return the mechanism that is given, or plan one; without participation, for units of one record.

    Raises:
        ValueError, UnsupportedError: as `planned_mechanism`; ValueError for a mechanism of another kind.
        MismatchError: if a mechanism promises something else than the stream enforces.
    """
    if mechanism is None:
        if epsilon is None:
            raise ValueError("epsilon=None: give epsilon (and delta), or a mechanism.")
        return planned_mechanism(
            horizon=horizon,
            participation=Single() if participation is None else participation,
            epsilon=positive_float("epsilon", epsilon, remedy="Only infinite noise gives 0."),
            delta=fraction("delta", delta),
            unit=unit or ("event" if participation is None else "unit"),
            **setting,
        )
    if epsilon is not None or horizon is not None:
        raise ValueError("give either epsilon and horizon, or a mechanism, which has both.")
    mechanism = mechanism_in(mechanism)
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism is a {type(mechanism).__name__}; it must be an anechoic.Mechanism, as from"
            " anechoic.calibrate(strategy, sampling=External(Single(), 1, steps=n), …)."
        )
    sampling, held = mechanism.sampling, mechanism.participation
    if not sampling.formed_outside or sampling.batch_size != 1:
        raise MismatchError(
            f"mechanism.sampling={sampling!r}: a stream draws nobody at random, and releases sums, which are"
            " divided by nothing. Give sampling=External(participation, 1, steps=n)."
        )
    if (Single() if participation is None else participation) != held:
        raise MismatchError(
            f"participation={participation!r}, but the mechanism is for {held!r}, to which units are held:"
            " give the same, or calibrate for another."
        )
    return mechanism


class Deviations:
    """Standard deviation of the noise in row t of A Y, for contributions of norm 1: noise_std ||B[t]||."""

    def __init__(self, mechanism: Mechanism, over: Window) -> None:
        self._mechanism, self._over = mechanism, over
        self._known: Array = np.zeros(0)
        self._inverse: Array | None = None

    def at(self, step: int) -> float:
        """Return one number, the same for every coordinate: the row norm of B times noise_std."""
        if step >= len(self._known):
            n = min(self._mechanism.steps, max(64, 2 ** (step + 1).bit_length()))
            self._known = self._mechanism.noise_std * error(self._over.workload(n), self._leading(n)).per_step
        return float(self._known[step])

    def since(self, begin: int, step: int) -> float:
        """Return that of row t less row begin - 1 of A Y: the sums of steps begin, …, step of running totals.

        That is noise_std ||B[t] - B[begin - 1]||, or the sum of both deviations, which bounds it, where C is
        neither Toeplitz nor small.
        """
        if begin == 0:
            return self.at(step)
        rows = self._rows(step)
        if rows is None:
            return self.at(step) + self.at(begin - 1)
        late, early = rows(step), rows(begin - 1)
        late[: len(early)] -= early
        return float(self._mechanism.noise_std * np.linalg.norm(late))

    def _rows(self, step: int) -> Callable[[int], Array] | None:
        """Return a function that gives rows of B; of a Toeplitz one up to the diagonal."""
        strategy, steps = self._mechanism.strategy, self._mechanism.steps
        toeplitz = strategy.structure.toeplitz
        if not toeplitz and steps > _ALL_UP_TO:
            return None
        if self._inverse is None or step >= len(self._inverse):
            n = min(steps, max(64, 2 ** (step + 1).bit_length())) if toeplitz else steps
            columns = (np.arange(n) == 0).astype(float) if toeplitz else np.eye(strategy.rows)
            self._inverse = np.asarray(self._over.workload(n).multiply(self._leading(n).correlate(columns)))
        found = self._inverse
        return (lambda t: found[t::-1].copy()) if toeplitz else (lambda t: found[t].copy())

    def _leading(self, n: int) -> Strategy:
        strategy = self._mechanism.strategy
        return strategy if n == strategy.n else strategy.truncate(n)

"""The contract of the noise: what `recurrence` describes, and what a stream emits, is noise of L Z."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.noise import NoiseStream
from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    StateSpace,
)
from anechoic.strategies.base import Strategy
from anechoic.testing._compare import ContractError, close, require
from anechoic.testing.matrix import is_square, solver


def check_recurrence(strategy: Strategy, seed: int = 0) -> None:
    """The rows that `recurrence` makes of i.i.d. rows are distributed as those of L Z, and causal.

    For a square C they are C^-1 Z itself. For a rectangular one they are R Z' with R n x n, lower-triangular
    and R R^T = L L^T: found by replaying unit vectors, and compared exactly.
    """
    recurrence, n = strategy.recurrence(), strategy.n
    require(strategy, recurrence.n == n, f"recurrence().n={recurrence.n} differs from n={n}")
    if isinstance(recurrence, (Autoregressive, MovingAverage)) and recurrence.stationary:
        steps = n if recurrence.period is None else min(n, recurrence.period)
        longest = np.asarray(recurrence.row(steps - 1))
        held = all(bool((recurrence.row(s) == longest[: s + 1]).all()) for s in range(steps))
        require(strategy, held, "recurrence() says stationary, but its rows differ")
    if is_square(strategy):
        z = np.random.default_rng(seed).standard_normal((n, 2))
        close(strategy, replay(recurrence, z), solver(strategy)(z), "rows of recurrence() = solve(z)")
        return
    made = replay(recurrence, np.eye(n))
    left = strategy.correlate(np.eye(strategy.rows))
    require(strategy, not np.triu(made, 1).any(), "a row of recurrence() depends on a later fresh row")
    close(strategy, made @ made.T, left @ left.T, "covariance of recurrence() = L L^T")


def check_stream(strategy: Strategy, *, dimension: int = 5, std: float = 0.7) -> None:
    """A stream emits std * (the rows of `recurrence` for its fresh rows), and so it does when restored."""
    key = bytes(range(32))
    stream = NoiseStream(strategy, dimension, std=std, key=key, dtype=np.float64)
    state, rows = stream.init(), []
    cut = strategy.n // 2
    for t in range(strategy.n):
        if t == cut:
            state = stream.restore(state.state_dict())
        row, state = stream.next(state)
        rows.append(row)
    fresh = np.array([stream.fresh(t) for t in range(strategy.n)])
    made = solver(strategy)(fresh) if is_square(strategy) else replay(strategy.recurrence(), fresh)
    close(strategy, np.array(rows), std * made, "rows of a stream")


def replay(recurrence: Recurrence, z: Array) -> Array:
    """The rows x_t that a recurrence makes of fresh rows z_t, in plain NumPy: what a noise stream must emit.

    Args:
        recurrence: Autoregressive, MovingAverage, Buffered, StateSpace or Nested.
        z: shape (n, ...).
    """
    out = np.zeros_like(z)
    past: list[Array] = []  # newest first; of rows that are mixed the topmost last
    for t, fresh in enumerate(z):
        s = recurrence.local(t)
        if s == 0:
            past = []
        match recurrence:
            case Autoregressive():
                row = _row_of(recurrence, s)
                known = sum((c * x for c, x in zip(row[1:], past, strict=False)), np.zeros_like(fresh))
                x = (fresh - known) / row[0]
                past = [x, *past][: recurrence.window - 1]
            case MovingAverage():
                row = _row_of(recurrence, s)
                past = [fresh, *past][: recurrence.window]
                x = sum((c * y for c, y in zip(row, past, strict=True)), np.zeros_like(fresh))
            case Buffered() | StateSpace() | Nested():
                step = recurrence.step(s)
                rule = f"depth({s})={recurrence.depth(s)} but {len(past)} rows are on the stack"
                require(recurrence, len(past) == recurrence.depth(s), rule)
                stack, kept = np.array(past).reshape(-1, *fresh.shape), len(past) - step.mix.shape[1]
                read = np.tensordot(step.readout, stack[len(past) - len(step.readout) :], axes=1)
                x = (step.lead * fresh + read) / step.divisor
                mixed = np.tensordot(step.mix, stack[kept:], axes=1) + np.multiply.outer(step.entry, x)
                past = [*past[:kept], *mixed]
            case _:
                raise ContractError(f"{type(recurrence).__name__} is no recurrence a noise stream knows")
        out[t] = recurrence.gain(t) * x
    return out


def _row_of(recurrence: Autoregressive | MovingAverage, s: int) -> Array:
    row = np.asarray(recurrence.row(s))
    rule = f"row({s}) has {len(row)} entries, not min(window={recurrence.window}, {s + 1})"
    require(recurrence, len(row) == min(recurrence.window, s + 1), rule)
    return row

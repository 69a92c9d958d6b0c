"""A plan's choice on a grid: contributions and noise as integers, as fine as float64 can round the noise."""

from __future__ import annotations

from dataclasses import replace

from anechoic.errors import GuaranteeError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.noise.filter_choice import rounded_filter
from anechoic.noise.grid import FEWEST
from anechoic.planning.choice import noise_state
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.records import PlanRow
from anechoic.planning.result import Plan

#: Bytes of one number in the memory of rounded noise.
_WIDE = 8
#: A trial of the noise before the run: steps beyond two memories, entries, and how many times larger than it
#: will be. Its largest variate is then that of 10**20 draws or more.
_STEPS, _ENTRIES, _LARGER = 128, 16, 3.0
#: Bits that are given up for noise which float64 cannot round on the default grid: 2**-11 of the clip norm is
#: rounded off then.
_FEWER = 4
_TRIAL_KEY = bytes(32)


def on_finest_grid(
    plan: Plan,
    dimension: int,
    epsilon: float | None,
    most: int,
    fewer: int = _FEWER,
    budget: int | None = None,
) -> Plan:
    """`plan` on a grid of `most` bits, or on the finest coarser one that its noise permits.

    Args:
        plan: its choice has no grid.
        dimension: entries of one row of noise.
        epsilon: that the mechanism must keep within, or None.
        most: bits of the finest grid, such as `noise.grid.default_bits(dimension)`.
        fewer: of them that may be given up.
        budget: bytes of noise state: what is beyond, and can be made again, is; None for any number.

    Raises:
        GuaranteeError: if the noise is too large for any of them, or its memory drifts.
    """
    least = max(FEWEST, most - fewer)
    for bits in range(most, least, -2):
        try:
            found = on_grid(plan, dimension, epsilon, bits, budget)
            try_noise(found.mechanism, dimension)
        except GuaranteeError:
            continue
        return found
    found = on_grid(plan, dimension, epsilon, least, budget)
    try_noise(found.mechanism, dimension)
    return found


def on_grid(plan: Plan, dimension: int, epsilon: float | None, bits: int, budget: int | None = None) -> Plan:
    """`plan`, its choice on a grid and still within `epsilon`, and `budget` where it can be.

    The memory of every row, and what is said of it, is that on a grid.
    """
    chosen, growth = plan.mechanism, 2.0**-24
    found = replace(chosen, grid_bits=bits)
    while found.drift and epsilon is not None and found.epsilon() > epsilon:
        found, growth = replace(found, noise_std=chosen.noise_std * (1 + growth)), 4 * growth
    room = MemoryBudget(None if budget is None else budget // (_WIDE * dimension), dimension)

    def widened(row: PlanRow) -> PlanRow:
        recurrence = row.mechanism.strategy.recurrence()
        storage, history = "regenerate", 0
        if row.noise_storage == "store":
            storage, history = room.storage(recurrence, rounded_filter(recurrence, 1.0).rows)
        return replace(
            row,
            memory=_WIDE * dimension * history,
            seconds=row.seconds if storage == row.noise_storage else room.seconds(recurrence, storage),
            history=history,
            mechanism=found if row.chosen else row.mechanism,
            number_bytes=_WIDE,
            noise_storage=storage,
        )

    wide = replace(plan, rows=tuple(map(widened, plan.rows)), mechanism=found)
    return replace(wide, reason=plan.reason.replace(noise_state(plan.chosen), noise_state(wide.chosen)))


def try_noise(mechanism: Mechanism, dimension: int) -> None:
    """Refuse noise that cannot be rounded exactly, before the run and not in the middle of it.

    Raises:
        GuaranteeError: if it is too large for the grid, or its memory drifts.
    """
    mechanism.stream(dimension, key=_TRIAL_KEY)  # refuses what would drift too far; nothing is drawn
    cell = 2.0 ** -(mechanism.grid_bits or 0)
    std = _LARGER * mechanism.noise_std
    stream = NoiseStream(mechanism.strategy, _ENTRIES, std=std, key=_TRIAL_KEY, grid=cell)
    state, row = stream.init(), None
    for _ in range(min(mechanism.steps, 2 * mechanism.strategy.recurrence().rows + _STEPS)):
        row, state = stream.next(state, out=row)

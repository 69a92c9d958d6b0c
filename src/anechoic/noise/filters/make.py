"""How one noise row is made from a fresh row and the memory: one filter for each kind of recurrence.

Emitted rows carry the noise std and the gain g_t of a column scaling. Both are folded into the coefficients:
memory that holds earlier emitted rows y = std * g * x enters step t with the factor g_t / g_{t-j}, so that no
row is passed over only to be scaled.
"""

from __future__ import annotations

from anechoic._validate import one_of
from anechoic.noise.filters.base import MEMORY, Filter
from anechoic.noise.filters.buffered import BufferedFilter
from anechoic.noise.filters.nested import NestedFilter
from anechoic.noise.filters.regenerated import RegeneratedFilter
from anechoic.noise.filters.stacked import StackedFilter
from anechoic.noise.filters.state_space import StateSpaceFilter
from anechoic.noise.filters.windowed import AutoregressiveFilter, MovingAverageFilter
from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    Stacked,
    StateSpace,
)


def make_filter(recurrence: Recurrence, std: float, precision: str, memory: str = "store") -> Filter:
    """The filter of a recurrence.

    Raises:
        ValueError: if the recurrence is of none of the kinds known, or needs memory that is not wanted.
    """
    if one_of("memory", memory, MEMORY) == "regenerate":
        if not isinstance(recurrence, Autoregressive | MovingAverage):
            raise ValueError(
                "memory='regenerate' makes rows from those of C^-1, which are at hand for dense, banded,"
                f" Toeplitz strategies and their inverses, but this one's noise is"
                f" {type(recurrence).__name__} and keeps {recurrence.rows} rows: use memory='store'."
            )
        return RegeneratedFilter(recurrence, std, precision)
    if isinstance(recurrence, StateSpace):
        return StateSpaceFilter(recurrence, std, precision)
    if isinstance(recurrence, Nested):
        return NestedFilter(recurrence, std, precision)
    if isinstance(recurrence, Stacked):
        return StackedFilter(recurrence, std, precision)
    if isinstance(recurrence, Buffered):
        return BufferedFilter(recurrence, std, precision)
    if isinstance(recurrence, Autoregressive):
        return AutoregressiveFilter(recurrence, std, precision)
    if isinstance(recurrence, MovingAverage):
        return MovingAverageFilter(recurrence, std, precision)
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that streams know: return Autoregressive, "
        "MovingAverage, Buffered, StateSpace, Nested or Stacked from recurrence()."
    )

"""Families of the strategies that plans compare, and their labels in tables and pictures."""

from __future__ import annotations

from functools import singledispatch
from typing import Literal

from anechoic.strategies import BLT, Banded, BandedToeplitz, Dense, Identity, Output
from anechoic.strategies.base import Strategy
from anechoic.strategies.column_scaled import ColumnScaled

#: What `plan(strategy=…)` and `make_private(mechanism=…)` take, and the families that each may choose from.
StrategyName = Literal["auto", "identity", "output", "banded_toeplitz", "banded", "blt", "dense"]
PLAN_CHOICES: dict[StrategyName, frozenset[str]] = {
    "auto": frozenset({"identity", "banded_toeplitz", "blt", "dense"}),
    "identity": frozenset({"identity"}),
    "output": frozenset({"output"}),
    "banded_toeplitz": frozenset({"banded_toeplitz"}),
    "banded": frozenset({"banded_toeplitz"}),
    "blt": frozenset({"blt"}),
    "dense": frozenset({"dense"}),
}


#: Columns whose squared norms differ by no more than this part are of one length.
EVEN = 1e-6


#: Families by class.
_FAMILY_OF: dict[type[Strategy], str] = {
    Identity: "identity",
    Output: "output",
    Banded: "banded_toeplitz",
    BandedToeplitz: "banded_toeplitz",
    BLT: "blt",
    Dense: "dense",
}


def family(strategy: Strategy) -> str:
    """Return the family of a strategy, normalised or not; "" for others, such as trees."""
    return _FAMILY_OF.get(type(strategy.base if isinstance(strategy, ColumnScaled) else strategy), "")


@singledispatch
def label(strategy: Strategy) -> str:
    """Return one line for a row of the table, without the number of steps, which is the same for all."""
    return strategy.describe()


@label.register(Identity)
@label.register(Output)
@label.register(Dense)
def _(strategy: Strategy) -> str:
    return type(strategy).__name__


@label.register(Banded)
@label.register(BandedToeplitz)
def _(strategy: Strategy) -> str:
    return f"{type(strategy).__name__}(bands={strategy.structure.bands})"


@label.register(BLT)
def _(strategy: BLT) -> str:
    return f"BLT(buffers={strategy.recurrence().rows})"


@label.register(ColumnScaled)
def _(strategy: ColumnScaled) -> str:
    lengths = strategy.column_norms_squared()
    even = float(lengths.max()) <= (1.0 + EVEN) * float(lengths.min())
    return f"{label(strategy.base)}, {'normalized' if even else 'scaled by step'}"

"""Strategies C: lower-triangular n x n matrices whose inverse correlates the noise."""

from anechoic.strategies.base import SquareStrategy, Strategy, Structure
from anechoic.strategies.blt import BLT
from anechoic.strategies.recurrence import Autoregressive, Buffered, MovingAverage, Recurrence
from anechoic.strategies.scaled import ColumnNormalized, ColumnScaled, Restarted
from anechoic.strategies.simple import Dense, Identity, Output
from anechoic.strategies.toeplitz import BandedToeplitz, Toeplitz

__all__ = [
    "BLT",
    "Autoregressive",
    "BandedToeplitz",
    "Buffered",
    "ColumnNormalized",
    "ColumnScaled",
    "Dense",
    "Identity",
    "MovingAverage",
    "Output",
    "Recurrence",
    "Restarted",
    "SquareStrategy",
    "Strategy",
    "Structure",
    "Toeplitz",
]

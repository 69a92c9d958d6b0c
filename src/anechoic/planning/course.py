"""The errors of a strategy over the steps of a run, as many of them as a picture can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.thinning import thinned
from anechoic.losses.result import StepErrors

#: Steps of a course; more could not be told apart.
POINTS = 800


@dataclass(frozen=True, eq=False)
class Course:
    """Numbers of steps, from 1 to n, and the errors after them: all, or in longer runs the least and largest.

    Attributes:
        steps: increasing, at most `POINTS` of them.
        errors: for unit noise, of the same shape.
    """

    steps: Array
    errors: Array

    @classmethod
    def of(cls, errors: StepErrors) -> Course:
        """Of all errors, in O(n)."""
        places = thinned(errors.per_step, POINTS)
        return cls(np.asarray(places + 1.0), errors.per_step[places])

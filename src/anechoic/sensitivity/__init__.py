"""Sensitivity of a strategy under a participation schema: one theorem a file, results with evidence."""

from anechoic.sensitivity.dispatch import sensitivity
from anechoic.sensitivity.result import Sensitivity

__all__ = ["Sensitivity", "sensitivity"]

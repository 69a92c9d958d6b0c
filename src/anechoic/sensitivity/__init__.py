"""Sensitivity of a strategy under a participation schema: one theorem a file, results with evidence."""

from anechoic.sensitivity import cyclic, epochs, full_batch, listed, min_sep, single, trees, wrapped  # noqa: F401
from anechoic.sensitivity.dispatch import sensitivity, under
from anechoic.sensitivity.moments import joint_sensitivity
from anechoic.sensitivity.result import Sensitivity

__all__ = ["Sensitivity", "joint_sensitivity", "sensitivity", "under"]

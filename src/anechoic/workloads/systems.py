"""The state-space system of a workload, where it has a short one."""

from __future__ import annotations

import numpy as np

from anechoic.algebra.systems import System, chained, realisation
from anechoic.workloads.base import Workload


def workload_system(workload: Workload, longest: int) -> System | None:
    """The system from x to T x for the Toeplitz factor T of a workload; None where its fraction is longer."""
    if not workload.has_toeplitz_factor:
        return None
    p, q = workload.fraction
    if max(len(p), len(q)) > longest:
        return None
    if workload.poles is None:
        return realisation(p, q)
    one, other = (np.array([1.0, -pole]) for pole in workload.poles)
    return chained(realisation(p, one), realisation(np.ones(1), other))

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
    poles = workload.poles
    if poles is None:
        return realisation(p, q)
    system = realisation(p, np.array([1.0, -poles[0]]))
    for pole in poles[1:]:
        system = chained(system, realisation(np.ones(1), np.array([1.0, -pole])))
    return system

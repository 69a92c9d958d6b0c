"""Audits: attempts to refute the guarantee of a run from what it released.

    report = anechoic.audit.audit_mechanism(mech)          # the noise stream of a mechanism
    report = anechoic.torch.audit_training(mech)           # the whole torch path
    report = anechoic.audit.audit(mech, observation)       # your own run
    print(report)

An audit gives lower confidence bounds. It can refute a guarantee, and it states the power with which it would
have; it cannot prove one.
"""

from anechoic.audit import balls_in_bins, min_sep, poisson, random_allocation  # noqa: F401
from anechoic.audit.mechanism import audit, audit_mechanism
from anechoic.audit.observation import Observation

__all__ = ["Observation", "audit", "audit_mechanism"]

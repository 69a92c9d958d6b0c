"""Audits: attempts to refute the guarantee of a run from what it released.

    report = anechoic.audit.audit_mechanism(mech)          # the noise stream of a mechanism
    report = anechoic.torch.audit_training(mech)           # the whole torch path
    report = anechoic.audit.audit(mech, observation)       # your own run
    print(report)
    anechoic.audit.from_scores(in_scores, out_scores, delta=1e-5)  # your own attack

An audit gives lower confidence bounds. It can refute a guarantee, and it states the power with which it would
have; it cannot prove one.
"""

from anechoic.audit import laws  # noqa: F401
from anechoic.audit.mechanism import audit, audit_mechanism
from anechoic.audit.observation import Observation
from anechoic.audit.scores import ScoreAudit, from_scores

__all__ = ["Observation", "ScoreAudit", "audit", "audit_mechanism", "from_scores"]

"""Audits: can the guarantee of a run be refuted from what it released?

    report = anechoic.audit.audit_mechanism(mech)          # the noise stream of a mechanism
    report = anechoic.torch.audit_training(mech)           # the whole torch path
    report = anechoic.audit.audit(mech, observation)       # your own run
    print(report)

An audit gives lower confidence bounds. It can refute a guarantee, and it states the power with which it would
have; it cannot prove one.
"""

from anechoic.audit import balls_in_bins, min_sep, poisson, random_allocation  # noqa: F401
from anechoic.audit.bounds import LowerBound, epsilon_by_threshold, mu_by_fit, mu_by_threshold
from anechoic.audit.covariance import CovarianceTest, covariance_test
from anechoic.audit.draws import DrawTest, draw_test
from anechoic.audit.hazards import draw_participation
from anechoic.audit.mechanism import audit
from anechoic.audit.observation import Observation, canary_scores, score_weights
from anechoic.audit.patterns import strongest_pattern
from anechoic.audit.power import (
    canaries_needed,
    draw_gaussian,
    draw_ratios,
    entries_needed,
    epsilon_power,
    fit_power,
    scale_power,
    threshold_power,
)
from anechoic.audit.ratios import likelihood_ratios
from anechoic.audit.report import AuditReport, Finding
from anechoic.audit.simulate import audit_mechanism

__all__ = [
    "AuditReport",
    "CovarianceTest",
    "DrawTest",
    "Finding",
    "LowerBound",
    "Observation",
    "audit",
    "audit_mechanism",
    "canaries_needed",
    "canary_scores",
    "covariance_test",
    "draw_gaussian",
    "draw_participation",
    "draw_ratios",
    "draw_test",
    "entries_needed",
    "epsilon_by_threshold",
    "epsilon_power",
    "fit_power",
    "likelihood_ratios",
    "mu_by_fit",
    "mu_by_threshold",
    "scale_power",
    "score_weights",
    "strongest_pattern",
    "threshold_power",
]

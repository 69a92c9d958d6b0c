"""Mechanisms: records that bind strategy, sampling, noise and guarantee; endless ones; compositions."""

from anechoic.mechanism import composed_statement, statement_text  # noqa: F401 - each registers what it says
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.compatibility import check_covered
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.mechanism.moments import MomentPairs, PairedMoments, calibrate_moments

__all__ = [
    "Adjacency",
    "Composition",
    "EndlessMechanism",
    "Mechanism",
    "MomentPairs",
    "PairedMoments",
    "calibrate",
    "calibrate_moments",
    "check_covered",
    "compose",
]

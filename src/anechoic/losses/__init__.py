"""Errors of a mechanism per step, and its loss: sensitivity times error."""

from anechoic.losses.dispatch import error, loss
from anechoic.losses.kinds import KINDS, LossKind, row_weights, tail_weights
from anechoic.losses.result import StepErrors

__all__ = ["KINDS", "StepErrors", "LossKind", "error", "loss", "row_weights", "tail_weights"]

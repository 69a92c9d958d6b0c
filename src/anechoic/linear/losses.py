"""Losses of a linear model, by their derivative in the score of a row.

Each works entry by entry, and adds up over the outputs of one row in a fixed order: what a row gives is a
function of that row alone, bit for bit, whichever rows stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from scipy.special import exp2, expit

from anechoic._validate import Array, one_of, positive_float

ClassifierLoss = Literal["log_loss", "hinge", "squared_hinge", "modified_huber"]
RegressorLoss = Literal["squared_error", "huber", "epsilon_insensitive"]
CLASSIFIER_LOSSES = get_args(ClassifierLoss)
REGRESSOR_LOSSES = get_args(RegressorLoss)

#: derivative(scores, targets), both of shape (outputs, k): the derivative of each row's loss by its scores.
Derivative = Callable[[Array, Array], Array]


def classifier_loss(name: str, outputs: int) -> Derivative:
    """Of targets that are 1 for the class of an output and 0 for the others.

    Args:
        name: "log_loss" (softmax where there are several outputs), or "hinge", "squared_hinge" or
            "modified_huber" (one against the rest).
        outputs: 1 for two classes.

    Raises:
        ValueError: for another name.
    """
    one_of("loss", name, CLASSIFIER_LOSSES)
    if name == "log_loss":
        squash = expit if outputs == 1 else softmax
        return lambda scores, targets: np.asarray(squash(scores) - targets)
    return {"hinge": _hinge, "squared_hinge": _squared_hinge, "modified_huber": _modified_huber}[name]


def regressor_loss(name: str, width: float) -> Derivative:
    """Of numbers: "squared_error" (a half of it), "huber" or "epsilon_insensitive".

    Args:
        name: of the loss.
        width: where "huber" becomes linear, and within which "epsilon_insensitive" is 0; in units of the
            scaled target, > 0.

    Raises:
        ValueError: for another name, or a width that is not > 0.
    """
    one_of("loss", name, REGRESSOR_LOSSES)
    positive_float("loss_width", width)
    if name == "squared_error":
        return lambda scores, targets: scores - targets
    if name == "huber":
        return lambda scores, targets: np.clip(scores - targets, -width, width)
    return lambda scores, targets: np.where(np.abs(scores - targets) > width, np.sign(scores - targets), 0.0)


def softmax(scores: Array) -> Array:
    """Over the first axis, shape (outputs, k)."""
    powers = exp2((scores - scores.max(axis=0)) * math.log2(math.e))
    total = powers[0].copy()
    for one in powers[1:]:
        total += one
    return np.asarray(powers / total)


def probabilities(scores: Array) -> Array:
    """Of the classes, shape (rows, classes), from scores as `decision_function` has them."""
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], axis=1)
    return np.ascontiguousarray(softmax(scores.T).T)


def _margin(scores: Array, targets: Array) -> tuple[Array, Array]:
    sign = 2.0 * targets - 1.0
    return sign, 1.0 - sign * scores


def _hinge(scores: Array, targets: Array) -> Array:
    sign, short = _margin(scores, targets)
    return np.where(short > 0.0, -sign, 0.0)


def _squared_hinge(scores: Array, targets: Array) -> Array:
    sign, short = _margin(scores, targets)
    return np.asarray(-2.0 * sign * np.maximum(short, 0.0))


def _modified_huber(scores: Array, targets: Array) -> Array:
    sign, short = _margin(scores, targets)
    return np.asarray(-2.0 * sign * np.clip(short, 0.0, 2.0))

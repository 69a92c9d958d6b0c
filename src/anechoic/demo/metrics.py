"""What a run is judged by, and how several seeds are summarised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike


def auc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Area under the ROC curve: how often a positive example scores above a negative one.

    Ties count one half (the Mann-Whitney statistic, from ranks, O(count log count)).

    Args:
        scores: shape (count,); a score that is not finite counts as a tie with the others that are not.
        positive: shape (count,), true (or 1) where the example is positive.

    Raises:
        ValueError: if the shapes differ, or one of the two classes is absent.
    """
    values = np.asarray(scores, dtype=np.float64)
    labels = np.asarray(positive).astype(bool)
    if values.shape != labels.shape or values.ndim != 1:
        raise ValueError(
            f"scores have shape {values.shape} and labels {labels.shape}: give one label a score."
        )
    ones = int(labels.sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        raise ValueError(f"{ones} positive and {zeros} negative examples: an AUC needs both.")
    ranks = scipy.stats.rankdata(np.nan_to_num(values))
    return float((ranks[labels].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def accuracy(predicted: ArrayLike, target: ArrayLike) -> float:
    """Share of the entries of `predicted` that equal `target`, both of shape (count,)."""
    return float(np.mean(np.asarray(predicted) == np.asarray(target)))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of `values`, and its standard error (0 for one value: nothing is known of its spread)."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        raise ValueError("no values to summarise: at least one run is needed.")
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else 0.0
    return float(array.mean()), error

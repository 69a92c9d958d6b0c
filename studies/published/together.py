"""Many private logistic models trained at once: same batches, same noise rows, each at a scale of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import positive_float, positive_int

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def train_together(
    features: Floats,
    labels: Indices,
    batches: Callable[[int], Indices],
    *,
    steps: int,
    classes: int,
    batch_size: float,
    rate: float,
    clip_norm: float | None,
    noise: Floats | None = None,
    scales: ArrayLike = (0.0,),
) -> Floats:
    """Weights of len(scales) multinomial logistic models after `steps` steps of private SGD from zero.

    Class 0 has the logit 0, so that a model has features x (classes - 1) parameters. The gradient of an
    example is the outer product of its features and its residuals; its norm is the product of theirs, so that
    per-example clipping is exact without a gradient for each example.

    Args:
        features: shape (examples, d).
        labels: shape (examples,), 0 … classes - 1.
        batches: gives the examples of step t; there may be none.
        steps: >= 1.
        classes: >= 2.
        batch_size: what sums are divided by, whatever the size of the batch at hand.
        rate: learning rate.
        clip_norm: largest norm of an example's gradient; None to clip nothing.
        noise: rows to add to the sum of gradients, shape (steps, d * (classes - 1)); None for none.
        scales: what `noise` is multiplied by, one for each model.

    Returns:
        Shape (models, d, classes - 1), single precision, in which all of this is computed.

    Raises:
        ValueError: for `noise` of another shape.
    """
    steps, free = positive_int("steps", steps), positive_int("classes", classes, minimum=2) - 1
    factors = np.asarray(scales, dtype=np.float32)
    models, d = len(factors), features.shape[1]
    if noise is not None and noise.shape != (steps, d * free):
        raise ValueError(f"noise has shape {noise.shape}; ({steps}, {d * free}) is needed.")
    step = np.float32(positive_float("rate", rate) / positive_float("batch_size", batch_size))
    one_hot = np.eye(classes, dtype=np.float32)[:, 1:]
    lengths = np.sqrt(np.einsum("ij,ij->i", features, features))
    weights = np.zeros((d, models, free), dtype=np.float32)
    for t in range(steps):
        rows = batches(t)
        x = features[rows]
        residuals = _probabilities((x @ weights.reshape(d, models * free)).reshape(-1, models, free))
        residuals -= one_hot[labels[rows]][:, None, :]
        if clip_norm is not None:
            norms = lengths[rows][:, None] * np.sqrt(np.square(residuals).sum(axis=2))
            residuals *= (clip_norm / np.maximum(norms, clip_norm))[:, :, None]
        sums = (x.T @ residuals.reshape(-1, models * free)).reshape(weights.shape)
        if noise is not None:
            sums += noise[t].reshape(d, 1, free) * factors[:, None]
        weights -= step * sums
    return np.ascontiguousarray(weights.transpose(1, 0, 2))


def accuracies(weights: Floats, features: Floats, labels: Indices) -> list[float]:
    """Share of examples that each model, shape (models, d, classes - 1), puts into their class."""
    found = []
    for one in weights:
        logits = features @ one
        guess = np.where(logits.max(axis=1) > 0, 1 + logits.argmax(axis=1), 0)
        found.append(float((guess == labels).mean()))
    return found


def _probabilities(logits: Floats) -> Floats:
    """Of the classes but the first along the last axis, without overflow."""
    top = np.maximum(logits.max(axis=2, keepdims=True), 0)
    powers = np.exp(logits - top)
    return np.asarray(powers / (powers.sum(axis=2, keepdims=True) + np.exp(-top)))

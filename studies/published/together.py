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
    rate: ArrayLike,
    clip_norm: float | None,
    noise: Floats | None = None,
    scales: ArrayLike = (0.0,),
    momentum: float = 0.0,
    cooled: int = 0,
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
        rate: learning rate, of all models or of each.
        clip_norm: largest norm of an example's gradient; None to clip nothing.
        noise: rows to add to the sum of gradients, shape (steps, d * (classes - 1)); None for none.
        scales: what `noise` is multiplied by, one for each model.
        momentum: of the heavy ball, in [0, 1).
        cooled: last steps in which the rate falls evenly to a twentieth.

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
    rates = np.array([positive_float("rate", one) for one in np.ravel(rate)], dtype=np.float32)
    step = np.broadcast_to(rates / np.float32(positive_float("batch_size", batch_size)), (models,))[:, None]
    one_hot = np.eye(classes, dtype=np.float32)[:, 1:]
    lengths = np.sqrt(np.einsum("ij,ij->i", features, features))
    weights = np.zeros((d, models, free), dtype=np.float32)
    velocity = np.zeros_like(weights)
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
        if momentum:
            velocity *= np.float32(momentum)
            sums = np.add(velocity, sums, out=velocity)
        weights -= step * np.float32(cooling(t, steps, cooled)) * sums
    return np.ascontiguousarray(weights.transpose(1, 0, 2))


def cooling(t: int, steps: int, cooled: int) -> float:
    """What the rate of step t is multiplied by: 1, and over the last `cooled` steps ever less, to 1 / 20."""
    late = t + 1 - (steps - cooled)
    return 1.0 - 0.95 * late / cooled if late > 0 else 1.0


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

"""What clients do in a round: gradient steps of a softmax model on their own examples, all clients at once.

The update of a linear model lies in the span of its client's examples: W_s = W + X^T A_s. So the steps move
A, of shape (examples, classes), by the Gram matrix X X^T, and the model's size enters once before the first
step and once after the last. Nothing is approximated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from studies.federated.population import Features


def updates(
    model: Features,
    features: Features,
    labels: NDArray[np.uint8],
    weights: Features,
    *,
    steps: int,
    rate: float,
) -> Features:
    """Model after `steps` steps of gradient descent less the model before, for each client.

    Args:
        model: W, shape (features, classes); logits are x W.
        features, labels, weights: of the round's clients, as `Population.batch` gives them: shapes
            (clients, examples, features), (clients, examples), (clients, examples).
        steps: of each client, >= 1.
        rate: their learning rate.

    Returns:
        Shape (clients, features, classes).
    """
    count, most, width = features.shape
    start = (features.reshape(-1, width) @ model).reshape(count, most, -1)
    target = np.eye(model.shape[1], dtype=np.float32)[labels]
    transposed = features.transpose(0, 2, 1)
    gram = features @ transposed
    along = np.zeros_like(start)
    for _ in range(steps):
        logits = start + gram @ along
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        along -= rate * weights[:, :, None] * (shares - target)
    found: Features = transposed @ along
    return found

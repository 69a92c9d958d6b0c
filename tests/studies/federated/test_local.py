import numpy as np
import pytest

from studies.federated.local import updates


def one_client(model, features, labels, steps, rate):
    """Gradient descent on the mean cross-entropy of one client, written out."""
    weights = model.astype(np.float64)
    target = np.eye(model.shape[1])[labels]
    for _ in range(steps):
        shares = np.exp(features @ weights)
        shares /= shares.sum(axis=1, keepdims=True)
        weights = weights - rate * features.T @ (shares - target) / len(labels)
    return weights - model


@pytest.mark.parametrize("steps", [1, 3])
def test_updates_are_gradient_descent_of_each_client(steps):
    rng = np.random.default_rng(0)
    model = rng.normal(size=(7, 4)).astype(np.float32)
    features = rng.normal(size=(3, 5, 7)).astype(np.float32)
    labels = rng.integers(0, 4, size=(3, 5)).astype(np.uint8)
    counts = [5, 2, 1]  # the rest is padding
    weights = np.array([[1 / c] * c + [0] * (5 - c) for c in counts], np.float32)
    found = updates(model, features, labels, weights, steps=steps, rate=0.3)
    for i, count in enumerate(counts):
        expected = one_client(model, features[i, :count], labels[i, :count], steps, 0.3)
        np.testing.assert_allclose(found[i], expected, atol=1e-5)

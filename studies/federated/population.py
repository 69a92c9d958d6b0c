"""Simulated clients: what each one holds, when it is there, and what models are scored on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from studies.federated.split import DailyWindows, Indices

Features = NDArray[np.float32]
#: From inputs as they are kept, shape (…, inputs), to features, shape (…, features).
Encoder = Callable[[NDArray[np.uint8]], Features]


@dataclass(frozen=True, eq=False)
class Population:
    """Clients with their examples, padded to one size; a padded example has weight 0.

    Args:
        inputs: shape (clients, most, inputs), as they are kept: pixels or characters.
        labels: class of each example, shape (clients, most).
        weights: shape (clients, most): 1 / (examples of the client), or 0.
        encode: from inputs to features, the last of which is constant.
        windows: when each client is there.
        classes: number of classes.
        test_inputs, test_labels: of no client, shapes (tests, inputs) and (tests,).
    """

    inputs: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    weights: Features
    encode: Encoder
    windows: DailyWindows
    classes: int
    test_inputs: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]

    @property
    def clients(self) -> int:
        """How many there are (N)."""
        return len(self.labels)

    @property
    def examples(self) -> int:
        """How many all clients hold together."""
        return int((self.weights > 0).sum())

    @property
    def shape(self) -> tuple[int, int]:
        """Of the model's weights: (features, classes)."""
        return self.encode(self.test_inputs[:1]).shape[-1], self.classes

    def batch(self, clients: Sequence[int]) -> tuple[Features, NDArray[np.uint8], Features]:
        """Features (clients, most, features), labels and weights of some clients, padded to the largest."""
        chosen = np.asarray(clients)
        most = max(1, int((self.weights[chosen] > 0).sum(axis=1).max()))
        return (
            self.encode(self.inputs[chosen, :most]),
            self.labels[chosen, :most],
            self.weights[chosen, :most],
        )

    def accuracy(self, weights: Features) -> float:
        """Share of the test examples whose class the model names."""
        blocks = np.array_split(np.arange(len(self.test_labels)), max(1, len(self.test_labels) // 2000))
        hits = sum(
            int(((self.encode(self.test_inputs[b]) @ weights).argmax(axis=-1) == self.test_labels[b]).sum())
            for b in blocks
        )
        return hits / len(self.test_labels)


def padded(
    inputs: NDArray[np.uint8], labels: NDArray[np.uint8], parts: Sequence[Indices], most: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Features]:
    """Inputs, labels and weights of a `Population`: the first `most` examples of each part."""
    kept = [part[:most] for part in parts]
    size = max(map(len, kept))
    index = np.zeros((len(kept), size), np.int64)
    weights = np.zeros((len(kept), size), np.float32)
    for row, part in enumerate(kept):
        index[row, : len(part)] = part
        weights[row, : len(part)] = 1 / len(part)
    return inputs[index], labels[index], weights

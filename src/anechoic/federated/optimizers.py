"""Server optimizers on a noisy mean of updates: Reddi et al. (2021), Algorithm 2.

The noise is in the mean already: whatever follows is a function of what was released, and costs no privacy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anechoic._validate import Array, decaying, positive_float

#: A number > 0, or a function of the step, public and >= 0.
Rate = float | Callable[[int], float]
#: Vectors that an optimiser keeps between steps, each of shape (m,).
Memory = tuple[Array, ...]


@dataclass(frozen=True)
class ServerOptimizer(ABC):
    """Optimizer from the noisy mean of updates to the next model. It keeps nothing itself.

    An update is a difference "model after local training less model before": it is added, not subtracted.

    Args:
        lr: a number > 0, or a function of the step.

    Raises:
        ValueError: for a number <= 0.
    """

    lr: Rate

    def __post_init__(self) -> None:
        if not callable(self.lr):
            object.__setattr__(self, "lr", positive_float("lr", self.lr))

    @abstractmethod
    def start(self, dimension: int) -> Memory:
        """Return the state before the first step."""

    @abstractmethod
    def advance(self, model: Array, update: Array, memory: Memory, step: int) -> tuple[Array, Memory]:
        """(next model, what is kept), in new arrays.

        Args:
            model, update: float64, shape (m,).
            memory: of `start`, or of the step before.
            step: 0, 1, 2, …
        """

    def rate(self, step: int) -> float:
        """The learning rate of a step.

        Raises:
            ValueError: if a function of the step gives no finite number >= 0.
        """
        if not callable(self.lr):
            return self.lr
        found = float(self.lr(step))
        if not (math.isfinite(found) and found >= 0):
            raise ValueError(f"lr gives {found!r} at step {step}: it must be finite and >= 0.")
        return found

    def describe(self) -> dict[str, Any]:
        """Kind and settings, as plain data; a function of the caller's own is named only."""
        found = {name: value for name, value in vars(self).items() if name != "lr"}
        rate = "a function of the step" if callable(self.lr) else repr(self.lr)
        return {"kind": type(self).__name__, "lr": rate, **found}


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """x + lr v with v = momentum v + update: federated averaging at lr 1 and momentum 0.

    Args:
        lr: a number > 0, or a function of the step.
        momentum: in [0, 1).

    Raises:
        ValueError: for an argument out of range.
    """

    lr: Rate = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "momentum", decaying("momentum", self.momentum))

    def start(self, dimension: int) -> Memory:
        return (np.zeros(dimension),) if self.momentum else ()

    def advance(self, model: Array, update: Array, memory: Memory, step: int) -> tuple[Array, Memory]:
        if not memory:
            return model + self.rate(step) * update, ()
        velocity = self.momentum * memory[0] + update
        return model + self.rate(step) * velocity, (velocity,)


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """x + lr m / (sqrt(v) + tau) with moments m and v as in Adam, v from tau^2 on, without bias correction.

    m becomes beta_1 m + (1 - beta_1) update, and v becomes beta_2 v + (1 - beta_2) update^2.

    Args:
        lr: a number > 0, or a function of the step.
        beta_1: of the first moment, in [0, 1).
        tau: how far rates adapt, > 0; the smaller the more.
        beta_2: of the second moment, in [0, 1).

    Raises:
        ValueError: for an argument out of range.
    """

    lr: Rate = 0.1
    beta_1: float = 0.9
    tau: float = 1e-3
    beta_2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, check in (("beta_1", decaying), ("tau", positive_float), ("beta_2", decaying)):
            object.__setattr__(self, name, check(name, getattr(self, name)))

    def start(self, dimension: int) -> Memory:
        return np.zeros(dimension), np.full(dimension, self.tau**2)

    def advance(self, model: Array, update: Array, memory: Memory, step: int) -> tuple[Array, Memory]:
        first = self.beta_1 * memory[0] + (1 - self.beta_1) * update
        second = self.beta_2 * memory[1] + (1 - self.beta_2) * np.square(update)
        return model + self.rate(step) * first / (np.sqrt(second) + self.tau), (first, second)

"""Tasks beyond the demo's: flights whose aircraft are protected, and sampled flights."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from anechoic.demo.metrics import auc
from anechoic.demo.training import BatchedTensors, as_fetched
from studies.bounding import ContributionBound
from studies.comparison.task import Data, Flights


@dataclass(frozen=True)
class BoundedFlights(Flights):
    """The flights in time order where aircraft may be protected; all flights are scored.

    Args:
        examples, batch_size: see `Flights`.
        bound: what is used of an aircraft's flights where aircraft are protected.
    """

    bound: ContributionBound | None = field(
        default=None, repr=False
    )  # the keys of the other arms do not depend on it


@dataclass(frozen=True)
class SampledFlights(Flights):
    """The same question where batches may be drawn at random from the first nine tenths of the year.

    There is no order of time then, so the metric is the AUC on the last tenth, after the last step.

    Args:
        examples: the first so many flights; None for all.
        batch_size: flights per step.
        owners_a_batch: aircraft per step, where aircraft are drawn.
        most_flights: of one aircraft in one step, drawn anew.
    """

    batch_size: int = 2048
    owners_a_batch: int = 128
    most_flights: int = 16

    title = "late flights, logistic model, sampled batches"
    metric_long = "AUC on the last tenth of the flights, after the last step"
    drop_last = True
    shuffle = True
    random = True  # which batches are drawn differs from seed to seed
    scores_batches = False

    def load(self) -> Data:
        """Flights of the first nine tenths to train on, the others to score on."""
        whole = super().load()
        cut = len(whole.labels) * 9 // 10
        return Data(
            whole.features[:cut],
            whole.labels[:cut],
            whole.features[cut:],
            whole.labels[cut:],
            None if whole.owners is None else whole.owners[:cut],
        )

    def describe(self, data: Data) -> str:
        """One sentence on the data and the model."""
        return (
            f"{len(data.labels):,} flights that left New York City in 2013 to train on, and the"
            f" {len(data.test_labels):,} after them to score; logistic model on 46 features (hour, carrier,"  # type: ignore[arg-type]
            " origin, weekday, distance) of whether a flight arrives more than 15 minutes late; batches of"
            f" {self.batch_size:,} flights or {self.owners_a_batch} aircraft, drawn at random, plain SGD"
        )

    def score(self, model: nn.Module, data: Data, logits: list[Tensor], labels: list[Tensor]) -> float:
        """AUC of the trained model on the last tenth."""
        if data.test_features is None or data.test_labels is None:
            raise ValueError("there are no flights to score on.")
        model.eval()
        with torch.no_grad():
            found = model(data.test_features)
        return auc((found[:, 1] - found[:, 0]).numpy(), data.test_labels.numpy())


def loader(task: Any, data: Data, seed: int, *, unit: str = "example") -> DataLoader[Any]:
    """The data loader that a user would write; `seed` orders the batches where an engine does not.

    Args:
        task, data, seed: of the run.
        unit: "example"; or another: for the flights in time order that its bound keeps, or for batches that
            an engine draws of owners.
    """
    generator = torch.Generator().manual_seed(seed)
    if unit != "example" and not isinstance(task, SampledFlights):
        rows, batches = used(task, data)
        return DataLoader(
            BatchedTensors(data.features[rows], data.labels[rows]),
            batch_sampler=batches,
            collate_fn=as_fetched,
        )
    owners = unit != "example" and isinstance(task, SampledFlights)
    return DataLoader(
        BatchedTensors(data.features, data.labels),
        batch_size=task.owners_a_batch if owners else task.batch_size,
        shuffle=task.shuffle,
        drop_last=task.drop_last,
        collate_fn=as_fetched,
        generator=generator,
    )


def used(task: Any, data: Data) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Indices of the examples that a task's bound keeps, and the batches in time order, as places in these.

    Raises:
        ValueError: if the task has no owners or no bound.
    """
    bound = getattr(task, "bound", None)
    if data.owners is None or bound is None:
        raise ValueError(f"{task!r} has no owners with a bound: its examples are its units.")
    steps = len(data.labels) // task.batch_size
    rows = np.flatnonzero(bound.kept(data.owners, task.batch_size, steps))
    ends = np.searchsorted(rows, np.arange(steps + 1) * task.batch_size)
    return rows, [list(range(a, b)) for a, b in pairwise(ends.tolist())]

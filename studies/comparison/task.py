"""Will a flight arrive late: data, model, batches and metric of the demo, as picklable data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anechoic._validate import positive_int
from anechoic.demo.flights import flights, flights_design
from anechoic.demo.metrics import auc


@dataclass(frozen=True)
class Data:
    """Tensors in memory: training features and labels, test ones where the metric needs them, and owners."""

    features: Tensor
    labels: Tensor
    test_features: Tensor | None = None
    test_labels: Tensor | None = None
    owners: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Flights:
    """Will a flight arrive more than 15 minutes late? One pass over 327,346 flights in time order.

    The metric is the AUC of predictions made before training on them: every batch is scored first,
    and the scores after the first tenth of the steps count.

    Args:
        examples: the first so many flights; None for all.
        batch_size: flights per step; an incomplete last batch is dropped.
    """

    examples: int | None = None
    batch_size: int = 256

    title = "late flights, logistic model"
    example = "flight"
    metric = "AUC"
    metric_long = "predict-then-train AUC after the first tenth of the steps"
    drop_last = True
    shuffle = False
    random = False  # nothing but the noise differs from seed to seed
    scores_batches = True
    clip_norm = 1.0

    def __post_init__(self) -> None:
        positive_int("batch_size", self.batch_size)
        if self.examples is not None:
            positive_int("examples", self.examples, minimum=10 * self.batch_size)

    def load(self) -> Data:
        """All flights of the task, features of shape (count, 46), labels 0 or 1, and the aircraft."""
        features, late = flights_design()
        stop = self.examples
        return Data(
            torch.from_numpy(features[:stop]),
            torch.from_numpy(late[:stop].astype("int64")),
            owners=flights()["tail"][:stop].astype(np.int64),
        )

    def build(self, seed: int) -> nn.Module:
        """Logistic model with two outputs, from zero: it needs no random start, so `seed` changes nothing."""
        model = nn.Linear(46, 2, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def describe(self, data: Data) -> str:
        """One sentence on the data and the model."""
        return (
            f"{len(data.labels):,} flights that left New York City in 2013, in order of scheduled departure;"
            " logistic model on 46 features (hour, carrier, origin, weekday, distance) of whether a flight"
            f" arrives more than 15 minutes late; one pass, batches of {self.batch_size}, plain SGD"
        )

    def score(self, model: nn.Module, data: Data, logits: list[Tensor], labels: list[Tensor]) -> float:
        """AUC of the logits that were computed before each training step."""
        first = len(logits) // 10
        late = torch.cat([z[:, 1] - z[:, 0] for z in logits[first:]])
        return auc(late.numpy(), torch.cat(labels[first:]).numpy())

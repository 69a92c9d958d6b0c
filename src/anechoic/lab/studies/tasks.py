"""What is trained on what: data, model, batches and metric of each experiment, as picklable data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from anechoic._validate import one_of, positive_int
from anechoic.lab.data import fashion_mnist, flights, flights_design
from anechoic.lab.studies.bounding import ContributionBound
from anechoic.lab.studies.metrics import accuracy, auc


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
        bound: what is used of an aircraft's flights where aircraft are protected; all flights are scored.
    """

    examples: int | None = None
    batch_size: int = 256
    bound: ContributionBound | None = field(
        default=None, repr=False
    )  # the keys of the other arms do not depend on it

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
            f"{len(data.labels):,} flights that left New York City in 2013, in order of scheduled"
            " departure; logistic"
            " model on 46 features (hour, carrier, origin, weekday, distance) of whether a flight"
            " arrives more than"
            f" 15 minutes late; one pass, batches of {self.batch_size}, plain SGD"
        )

    def score(self, model: nn.Module, data: Data, logits: list[Tensor], labels: list[Tensor]) -> float:
        """AUC of the logits that were computed before each training step."""
        first = len(logits) // 10
        late = torch.cat([z[:, 1] - z[:, 0] for z in logits[first:]])
        return auc(late.numpy(), torch.cat(labels[first:]).numpy())


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


@dataclass(frozen=True)
class FashionMNIST:
    """Which of ten kinds of clothing does a 28 x 28 image show? 60,000 images, test accuracy on 10,000.

    Args:
        directory: folder with the four original files.
        model: "logistic" on raw pixels, or a small "cnn" (26,010 parameters).
        batch_size: images per step.
        examples: the first so many training images; None for all.
    """

    directory: str = field(repr=False)
    model: Literal["logistic", "cnn"] = "logistic"
    batch_size: int = 469
    examples: int | None = None

    example = "image"
    metric = "test accuracy"
    metric_long = "accuracy on the 10,000 test images after the last step"
    drop_last = False
    shuffle = True
    random = True
    scores_batches = False
    clip_norm = 1.0

    def __post_init__(self) -> None:
        one_of("model", self.model, ("logistic", "cnn"))
        positive_int("batch_size", self.batch_size)
        if self.examples is not None:
            positive_int("examples", self.examples, minimum=self.batch_size)

    @property
    def title(self) -> str:
        """Data and model."""
        return f"Fashion-MNIST, {'logistic model' if self.model == 'logistic' else 'small CNN'}"

    def load(self) -> Data:
        """Images of shape (count, 1, 28, 28) for the CNN, (count, 784) for the logistic model."""
        train, labels, test, test_labels = fashion_mnist(self.directory)
        shape = (-1, 1, 28, 28) if self.model == "cnn" else (-1, 784)
        stop = self.examples
        return Data(
            torch.from_numpy(train[:stop]).reshape(shape),
            torch.from_numpy(labels[:stop]),
            torch.from_numpy(test).reshape(shape),
            torch.from_numpy(test_labels),
        )

    def build(self, seed: int) -> nn.Module:
        """The model; the CNN starts from weights drawn with `seed`, the logistic one from zero."""
        if self.model == "logistic":
            model = nn.Linear(784, 10)
            nn.init.zeros_(model.weight)
            nn.init.zeros_(model.bias)
            return model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # tanh: bounded activations lose less to clipping than rectified ones (arXiv 2007.14191)
            return nn.Sequential(
                nn.Conv2d(1, 16, 8, stride=2, padding=2),
                nn.Tanh(),
                nn.MaxPool2d(2, 1),
                nn.Conv2d(16, 32, 4, stride=2),
                nn.Tanh(),
                nn.MaxPool2d(2, 1),
                nn.Flatten(),
                nn.Linear(32 * 4 * 4, 32),
                nn.Tanh(),
                nn.Linear(32, 10),
            )

    def describe(self, data: Data) -> str:
        """One sentence on the data and the model."""
        what = (
            "multinomial logistic model on raw pixels"
            if self.model == "logistic"
            else "CNN of two convolutions"
        )
        return (
            f"{len(data.labels):,} images of Fashion-MNIST; {what}; batches of {self.batch_size}, plain SGD"
        )

    def score(self, model: nn.Module, data: Data, logits: list[Tensor], labels: list[Tensor]) -> float:
        """Accuracy of the trained model on the test images."""
        if data.test_features is None or data.test_labels is None:
            raise ValueError("there are no test images to score on.")
        model.eval()
        with torch.no_grad():
            chosen = [model(block).argmax(dim=1) for block in data.test_features.split(1000)]
        return accuracy(torch.cat(chosen).numpy(), data.test_labels.numpy())


Task = Flights | SampledFlights | FashionMNIST


class BatchedTensors(Dataset[Any]):
    """Rows of two tensors, fetched a whole batch at a time: collating 256 tensors costs more than a step."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(indices, dtype=torch.long)
        return self.features[rows], self.labels[rows]


def as_fetched(batch: Any) -> Any:
    """Collate function for `BatchedTensors`, whose batches are tensors already."""
    return batch


def loader(task: Task, data: Data, seed: int, *, unit: str = "example") -> DataLoader[Any]:
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
        batch_size=task.owners_a_batch if owners else task.batch_size,  # type: ignore[union-attr]
        shuffle=task.shuffle,
        drop_last=task.drop_last,
        collate_fn=as_fetched,
        generator=generator,
    )


def used(task: Task, data: Data) -> tuple[NDArray[np.int64], list[list[int]]]:
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


@lru_cache(maxsize=2)
def load(task: Task) -> Data:
    """The data of a task, read once a process."""
    return task.load()

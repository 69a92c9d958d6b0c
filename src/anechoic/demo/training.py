"""One run of the demo: a logistic model of late flights, trained in one pass in time order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from anechoic.demo.flights import flights_design
from anechoic.demo.metrics import auc
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch import PrivacyEngine

#: Flights of a step, and the largest norm of the gradient of one.
BATCH_SIZE, CLIP_NORM = 256, 1.0


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        kind: "independent" or "planned" noise, "drawn" (what DP-SGD would need if batches might be drawn in
            secret), "clipped" (the same training without noise) or "plain" (without clipping either).
        epsilon: of the mechanism, or of DP-SGD in the place of "drawn"; None without privacy.
        mechanism: as JSON; None for "plain".
    """

    kind: str
    epsilon: float | None = None
    mechanism: str | None = None

    @property
    def name(self) -> str:
        """Unique, and fit for a file name."""
        return f"{self.kind}-fixed" + ("" if self.epsilon is None else f"-eps{self.epsilon:g}")


@dataclass(frozen=True)
class Run:
    """An arm at a learning rate with a seed, on the first so many flights, or all."""

    arm: Arm
    rate: float
    seed: int
    flights: int | None = None


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
    """Return a batch as `BatchedTensors` fetched it: a collate function."""
    return batch


def train(run: Run) -> float:
    """Train, and return the AUC of predictions that were made of each batch before training on it.

    The scores after the first tenth of the steps count.
    """
    features, late = (torch.from_numpy(part[: run.flights]) for part in flights_design())
    late = late.long()
    model: Any = nn.Linear(features.shape[1], 2, bias=False)
    nn.init.zeros_(model.weight)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=run.rate)
    batches: Any = DataLoader(
        BatchedTensors(features, late), batch_size=BATCH_SIZE, drop_last=True, collate_fn=as_fetched
    )
    if run.arm.mechanism is not None:
        # Reproducible figures need keys that the run fixes. A run that protects anyone passes no keys:
        # the engine then draws them from the operating system.
        engine = PrivacyEngine(noise_key=_key("noise", run), sampling_key=_key("sampling", run))
        model, optimizer, batches = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=batches,
            mechanism=Mechanism.from_json(run.arm.mechanism),
            max_grad_norm=CLIP_NORM,
        )
    criterion = nn.CrossEntropyLoss()
    scores: list[Tensor] = []
    labels: list[Tensor] = []
    for rows, target in batches:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            logits = model(rows)
        scores.append(logits[:, 1] - logits[:, 0])
        labels.append(target)
        criterion(model(rows), target).backward()
        optimizer.step()
    first = len(scores) // 10
    return auc(torch.cat(scores[first:]).numpy(), torch.cat(labels[first:]).numpy())


def _key(domain: str, run: Run) -> bytes:
    """32 bytes fixed by a run: for figures that can be reproduced, never for a guarantee."""
    steps = (run.flights or len(flights_design()[1])) // BATCH_SIZE
    task = f"Flights(examples={run.flights}, batch_size={BATCH_SIZE}); {steps}"
    name = f"{run.arm.name}-lr{run.rate:g}-seed{run.seed}"
    return hashlib.sha256(f"anechoic experiment: {domain}; {task}; {name}".encode()).digest()

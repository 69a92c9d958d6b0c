"""Model and loss as one module, so that the loss sees one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from anechoic.errors import DesynchronizedError
from anechoic.torch.loading.loader import PrivateDataLoader


class RowLoss(nn.Module):
    """forward(batch) is the loss of a model on a batch. A private run calls it with one row.

    A loss of one row cannot depend on another row: token means, smoothing of labels, class weights and
    targets of the wrong shape are those of the row alone.

    Args:
        model: whose parameters are trained.
        loss: function of (model, batch); a tensor without a dimension, or with one entry.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        loss = self._loss(self.model, batch)
        return loss if loss.dim() == 0 else loss.reshape(())


class BatchParts:
    """Logical batch in parts that fit into memory: what a trainer takes for one batch."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self.first, self.rest = first, rest


class LogicalBatches:
    """Loader for a trainer: one item a release, however many parts it comes in.

    Args:
        loader: of the run, in chunks.
        period: logical batches of a pass.
    """

    def __init__(self, loader: PrivateDataLoader, period: int) -> None:
        self.loader, self._period = loader, period
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return self._period

    def __iter__(self) -> Iterator[BatchParts]:
        parts = iter(self.loader)
        for first in parts:
            delivery = self.loader.ledger.in_hand
            if delivery is not None and delivery.chunk:
                raise DesynchronizedError(
                    f"part {delivery.chunk + 1} of batch {delivery.step} was taken for a batch of its own: go"
                    " through all that `TrainerRun.parts` gives before the trainer's step."
                )
            yield BatchParts(first, parts)

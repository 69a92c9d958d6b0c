"""The training loader as Lightning's Trainer sees it: one item a release, for as long as it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from anechoic.errors import UnsupportedError
from anechoic.trainers.row_loss import LogicalBatches, Parts


class EpochLoader:
    """Logical batches from the release on that the run is at.

    How many make an epoch is the Trainer's affair, so it never ends by itself. The run begins after the
    Trainer has asked for the length, so it is asked for when the first batch is.

    Args:
        given: the user's loader.
        parts: its batches that make one of the run.
        batches: those of the run, once it has begun.
        period: of the loader for the run, how many releases make a pass.

    Attributes:
        plain: the loader for the run.
        at_once: rows that are worked on at once.
    """

    def __init__(
        self,
        given: DataLoader[Any],
        parts: int,
        batches: Callable[[], LogicalBatches],
        period: Callable[[DataLoader[Any]], int],
    ) -> None:
        self.plain, self.at_once = _larger(given, parts), given.batch_size or 1
        self.dataset = given.dataset
        self._batches = batches
        self._period = period(self.plain)

    def __len__(self) -> int:
        return self._period

    def __iter__(self) -> Iterator[Parts]:
        while True:
            yield from self._batches()

    # Lightning asks whether it can go on within an epoch: where, is in the private file

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        pass


def _larger(loader: DataLoader[Any], parts: int) -> DataLoader[Any]:
    """The loader with `parts` times its batch size."""
    if parts == 1:
        return loader
    if loader.batch_size is None:
        raise UnsupportedError("accumulate_grad_batches needs a DataLoader with a batch_size.")
    names = ("sampler", "collate_fn", "drop_last", "num_workers", "pin_memory", "timeout", "worker_init_fn",
             "multiprocessing_context", "prefetch_factor", "persistent_workers")  # fmt: skip
    make = partial(DataLoader, loader.dataset, batch_size=loader.batch_size * parts)
    return make(**{name: getattr(loader, name) for name in names})

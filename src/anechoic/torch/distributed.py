"""Ranks of torch.distributed that share a run: messages between them, and the sum over them.

Before every exchange of numbers each rank says where it is in the run. A rank that failed says so in its
place; then all raise, and nothing was used. A rank that is gone, or hangs for longer than the timeout of the
process group, is an error of the backend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from anechoic.errors import DesynchronizedError


class RanksError(DesynchronizedError):
    """An error that every rank raises."""


def running_ranks() -> int:
    """Return how many processes torch.distributed runs: 1 where it was not begun."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


class Ranks:
    """The `count` ranks of a run in torch.distributed's default group, of which this is `rank`."""

    def __init__(self) -> None:
        self.count = running_ranks()
        self.rank = dist.get_rank() if self.count > 1 else 0

    def exchange(self, where: str, **said: Any) -> list[dict[str, Any]]:
        """Gather what each rank says ("error": that it failed), in their order, where all are in the run.

        It is pickled, as ranks of one run trust another. Where one failed or is somewhere else, all raise.
        """
        if self.count == 1:
            return [said]
        words: list[Any] = [None] * self.count
        self._safely(where, lambda: dist.all_gather_object(words, {"where": where, **said}))
        for rank, word in enumerate(words):
            if "error" in word:
                raise RanksError(
                    f"rank {rank} failed at {word['where']}, so no rank goes on with {where}: {word['error']}"
                )
        if (places := [word["where"] for word in words]) != [where] * self.count:
            raise RanksError(
                f"the ranks are at different places, {', '.join(places)}: every rank runs the same script,"
                " steps once for every batch of its loader (an empty one too), and loads checkpoints as the"
                " others do."
            )
        return words

    @contextmanager
    def together(self, where: str, said: dict[str, Any] | None = None) -> Iterator[list[dict[str, Any]]]:
        """Run a block on every rank; where it fails on one, all raise.

        The block may add to what is `said`. Yields what each rank said: empty until the block is over.
        """
        words: list[dict[str, Any]] = []
        try:
            yield words
        except Exception as error:
            self.report(where, error)
            raise
        words += self.exchange(where, **(said or {}))

    def report(self, where: str, error: Exception) -> None:
        """Tell the others that this rank failed."""
        if self.count > 1 and not isinstance(error, RanksError):
            with suppress(RanksError):
                self.exchange(where, error=f"{type(error).__name__}: {error}")

    def add_up(self, sums: list[Tensor], where: str) -> None:
        """Replace the sums of this rank by those over all ranks: one all-reduce, exact for int64."""
        flat = torch.cat([total.reshape(-1) for total in sums])
        self._safely(where, lambda: dist.all_reduce(flat))
        for total, part in zip(sums, flat.split([total.numel() for total in sums]), strict=True):
            total.copy_(part.view(total.shape))

    def _safely(self, where: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except RuntimeError as error:  # what torch raises for a closed connection and for a timeout
            raise RanksError(
                f"another rank is gone, or did not answer in time, at {where} ({str(error).splitlines()[0]})."
                " Start all ranks again, and go on from the last checkpoint."
            ) from error

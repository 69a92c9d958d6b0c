"""Micro-batches: large logical batches in physical batches that fit into memory."""

from __future__ import annotations

from typing import Any

from anechoic.errors import MismatchError
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer


class BatchMemoryManager:
    """Context manager with Opacus's arguments: the same run, to rounding, with less memory.

    step() after a micro-batch that is not the last of its batch only clips and sums, and returns None; the
    release comes with the last. Each micro-batch knows its place when it is delivered, so a loop that is left
    early leaves no signal behind: a half-summed batch is refused until `optimizer.abandon_batch()`.

    Args:
        data_loader: the loader of `make_private`.
        max_physical_batch_size: >= 1.
        optimizer: the optimizer of `make_private`, or what Accelerate or Fabric made of it, which has it as
            `.optimizer`.

    Raises:
        MismatchError: if loader and optimizer are not those of one run, or one unit brings more examples to a
            step than fit into a micro-batch: they are clipped together.

    Example:
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=64, optimizer=optimizer) as parts:
            for x, y in parts:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    """

    def __init__(self, *, data_loader: Any, max_physical_batch_size: int, optimizer: Any) -> None:
        inner = optimizer  # Accelerate's prepare and Fabric's setup wrap it, and hand step() on
        if not isinstance(optimizer, CorrelatedOptimizer):
            inner = getattr(optimizer, "optimizer", None)
        if not isinstance(data_loader, PrivateDataLoader) or not isinstance(inner, CorrelatedOptimizer):
            raise MismatchError(
                f"data_loader is a {type(data_loader).__name__} and optimizer a {type(optimizer).__name__}:"
                " pass the two that anechoic.torch.PrivacyEngine.make_private returned."
            )
        if data_loader.ledger is not inner.ledger:
            raise MismatchError(
                "data_loader and optimizer belong to two runs: pass those of one make_private."
            )
        self._chunked = data_loader.in_chunks(max_physical_batch_size)

    def __enter__(self) -> PrivateDataLoader:
        return self._chunked

    def __exit__(self, *_: object) -> None:
        pass

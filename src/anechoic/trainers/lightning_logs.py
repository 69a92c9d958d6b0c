"""Filter what a LightningModule logs: nothing that was computed from rows without noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from torchmetrics import Metric, MetricCollection

from anechoic.errors import UnsupportedError
from anechoic.torch.sources.levels import is_batched
from anechoic.torch.structure import tensors_in
from anechoic.trainers.adapter import DroppedLogs


class LogFilter:
    """Filter between `self.log` of modules and callbacks and the Trainer: nothing of training passes.

    Validation, test and prediction log as ever. Each name that is dropped is named once.

    Args:
        module: the user's, with those in it.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module, self._dropped = module, DroppedLogs()
        self._parts = [part for part in module.modules() if isinstance(part, LightningModule)]
        for part in self._parts:
            # log_dict calls log, and callbacks are given the module's once it is attached
            vars(part)["log"] = partial(self._log, part)

    def _log(self, part: LightningModule, name: str, *arguments: Any, **keywords: Any) -> None:
        if self._module.trainer.training:
            self._dropped.tell(str(name))
        else:
            type(part).log(part, name, *arguments, **keywords)

    def tell(self, figures: dict[str, float]) -> None:
        """Log what may be known, in the progress bar too."""
        for name, figure in {} if self._module.trainer.barebones else figures.items():
            type(self._module).log(self._module, name, figure, prog_bar=True, on_step=True, on_epoch=False)

    def remove(self) -> None:
        """Restore the modules."""
        for part in self._parts:
            vars(part).pop("log", None)


@contextmanager
def silent(module: LightningModule) -> Iterator[None]:
    """Silence loggers and metrics while rows are worked on.

    A metric adds to what it has seen before, so it would hold rows; and what it holds of a row that was run
    beside others is of no use afterwards. It gives NaN here.
    """
    trainer, loggers, nan = module.trainer, module.trainer.loggers, torch.tensor(math.nan)
    metrics: list[Any] = [part for part in module.modules() if isinstance(part, (Metric, MetricCollection))]
    before = [dict(vars(metric)) for metric in metrics]
    trainer.loggers = [DummyLogger() for _ in loggers]
    for metric in metrics:
        value = dict.fromkeys(metric, nan) if isinstance(metric, MetricCollection) else nan
        given = partial(lambda value, *_, **__: value, value)
        vars(metric).update(forward=given, update=lambda *_, **__: None, compute=given)
    try:
        yield
    finally:
        trainer.loggers = loggers
        for metric, own in zip(metrics, before, strict=True):
            vars(metric).clear()
            vars(metric).update(own)


def check_nothing_kept(module: LightningModule) -> None:
    """Refuse a module that gathers what its training_step computed, for the end of the epoch.

    Rows are run side by side, so what is kept there belongs to no row, and torch cannot read it any more.
    """
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, list) and any(map(is_batched, tensors_in(value))):
                raise UnsupportedError(
                    f"{path + '.' if path else ''}{name} gathers what training_step computed of single rows,"
                    " which nothing protects and nobody can read afterwards. Leave it out, or gather in"
                    " validation_step."
                )

"""Filter what a LightningModule logs: nothing that was computed from rows without noise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from anechoic.errors import UnsupportedError
from anechoic.trainers.adapter import DroppedLogs


class LogFilter:
    """Filter between `self.log` of modules and callbacks and the Trainer: nothing of training passes.

    Validation, test and prediction log as ever. Each name that is dropped is named once.

    Args:
        module: the user's, with those in it.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._parts = [part for part in module.modules() if isinstance(part, LightningModule)]
        self._dropped = DroppedLogs()
        for part in self._parts:
            # log_dict calls log, and callbacks are given the module's once it is attached
            vars(part)["log"] = self._of(part)

    def _of(self, part: LightningModule) -> Any:
        def log(name: str, *arguments: Any, **keywords: Any) -> None:
            if self._module.trainer.training:
                self._dropped.tell(str(name))
            else:
                type(part).log(part, name, *arguments, **keywords)

        return log

    def tell(self, figures: dict[str, float]) -> None:
        """Log what may be known, in the progress bar too."""
        if self._module.trainer.barebones:
            return
        for name, figure in figures.items():
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
    trainer, loggers = module.trainer, module.trainer.loggers
    with ExitStack() as stack:
        stack.callback(setattr, trainer, "loggers", loggers)
        trainer.loggers = [DummyLogger() for _ in loggers]
        for part in module.modules():
            if isinstance(part, (Metric, MetricCollection)):
                stack.enter_context(_blind(part))
        yield


@contextmanager
def _blind(metric: Any) -> Iterator[None]:
    nan = torch.tensor(math.nan)
    value = dict.fromkeys(metric, nan) if isinstance(metric, MetricCollection) else nan
    own = vars(metric)
    before = {name: own[name] for name in ("forward", "update", "compute") if name in own}
    own.update(forward=lambda *_, **__: value, update=lambda *_, **__: None, compute=lambda: value)
    try:
        yield
    finally:
        for name in ("forward", "update", "compute"):
            del own[name]
        own.update(before)


def check_nothing_kept(module: LightningModule) -> None:
    """Refuse a module that gathers what its training_step computed, for the end of the epoch.

    Rows are run side by side, so what is kept there belongs to no row, and torch cannot read it any more.

    Raises:
        UnsupportedError: naming the list.
    """
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, (list, deque)) and any(map(_of_rows, value)):
                raise UnsupportedError(
                    f"{path + '.' if path else ''}{name} gathers what training_step computed of single rows,"
                    " which nothing protects and nobody can read afterwards. Leave it out, or gather in"
                    " validation_step."
                )


def _of_rows(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_of_rows, value.values()))
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)

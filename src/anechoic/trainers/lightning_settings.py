"""Check and read settings of Lightning's Trainer and module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anechoic.errors import UnsupportedError
from anechoic.planning.update import rates_of
from anechoic.trainers.adapter import Refused, check_settings
from anechoic.trainers.privacy import Privacy

#: Settings of the Trainer that a private run cannot have: (name, whether it is refused, the remedy).
REFUSED: tuple[Refused, ...] = (
    ("gradient_clip_val", lambda v: v is not None, "the gradient of each row is clipped before they are"
     " added up: leave it out, and give Privacy(max_grad_norm=…)"),
    ("reload_dataloaders_every_n_epochs", bool, "an example keeps its index for the whole run: leave it 0"),
    ("overfit_batches", bool, "a private run draws its batches from all of the data: train on a"
     " torch.utils.data.Subset"),
)  # fmt: skip
#: Callbacks that train, or that change what a step is, and the hooks of a module that would not be called.
CALLBACKS = (BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging)
HOOKS = ("backward", "configure_gradient_clipping")
#: Settings that count the Trainer's batches, which are those of `accumulate_grad_batches` parts here.
COUNTS = ("limit_train_batches", "val_check_interval")
#: What weights and losses may be computed in.
PRECISIONS = ("32-true", "bf16-mixed")


def check(trainer: Any, privacy: Privacy) -> None:
    """Refuse what cannot be private, before anything is made.

    Raises:
        UnsupportedError: naming the setting.
    """
    check_settings(trainer, REFUSED, "Trainer({}={!r})")
    if trainer.precision not in PRECISIONS:
        raise UnsupportedError(
            f"Trainer(precision={trainer.precision!r}) is refused: a GradScaler multiplies losses before"
            " gradients are clipped, and weights are float32. Use 'bf16-mixed'."
        )
    if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
        raise UnsupportedError(
            "the plugin AsyncCheckpointIO is refused: a checkpoint is written in one turn with its keys, or a"
            " killed run could not go on from it. Leave it out."
        )
    if privacy.stop_at_epsilon is not None and (trainer.min_epochs or trainer.min_steps):
        raise UnsupportedError(
            "Trainer(min_epochs=…, min_steps=…) would train on beyond stop_at_epsilon: leave them out."
        )
    for callback in trainer.callbacks:
        if isinstance(callback, CALLBACKS):
            raise UnsupportedError(
                f"the callback {type(callback).__name__} changes batches, steps or weights of a run that was"
                " planned as it is: leave it out."
            )
    check_module(trainer.lightning_module)
    for owner in (trainer.lightning_module, trainer.datamodule):
        if owner is not None and is_overridden("on_before_batch_transfer", owner):
            raise UnsupportedError(
                f"{type(owner).__name__}.on_before_batch_transfer is refused: do it in the data set, its"
                " collate_fn, or in on_after_batch_transfer."
            )


def check_module(module: Any) -> None:
    """Refuse a module that trains by itself, or by code that cannot be run row by row.

    Raises:
        UnsupportedError: naming what it has.
    """
    if not module.automatic_optimization:
        raise UnsupportedError(
            "automatic_optimization=False is refused: one optimizer is stepped once a batch. Return the loss"
            " from training_step, or write the loop yourself (docs/training.md)."
        )
    parts = module.modules()
    compiled = (hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in parts)
    if module._compiler_ctx is not None or any(compiled):
        raise UnsupportedError("compiled code cannot be run row by row: leave torch.compile out.")
    for name in HOOKS:
        if is_overridden(name, module):
            raise UnsupportedError(
                f"{type(module).__name__}.{name} is refused: gradients before the step are those of rows,"
                " which no hook is shown. Leave it out."
            )


def counted_in_whole_batches(trainer: Any) -> dict[str, Any]:
    """Let the Trainer see one batch a release; what its settings were.

    Raises:
        UnsupportedError: for a count that is no multiple of accumulate_grad_batches.
    """
    parts = trainer.accumulate_grad_batches
    names = () if parts == 1 or trainer.fast_dev_run else COUNTS
    counts = {name: value for name in names if isinstance(value := getattr(trainer, name), int)}
    for name, value in counts.items():
        if value % parts:
            raise UnsupportedError(
                f"Trainer({name}={value}) must be a multiple of accumulate_grad_batches={parts}: parts of a"
                " batch are not stepped."
            )
    trainer.accumulate_grad_batches = 1
    for name, value in counts.items():
        setattr(trainer, name, value // parts)
    return {"accumulate_grad_batches": parts, **counts}


@contextmanager
def one_optimizer() -> Iterator[None]:
    """Refuse several optimizers."""
    try:
        yield
    except RuntimeError as error:
        if "multiple optimizers" not in str(error):
            raise
        raise UnsupportedError(
            "configure_optimizers gave several optimizers: one is stepped once a batch. Give one, with"
            " parameter groups."
        ) from error


def planned_steps(trainer: Any) -> int:
    """Return the number of releases that the Trainer will make.

    Raises:
        UnsupportedError: if that has no end.
    """
    steps = trainer.estimated_stepping_batches
    if steps == float("inf"):
        raise UnsupportedError("noise is planned for a number of steps: give max_epochs or max_steps.")
    return int(steps)


def planned_rates(trainer: Any) -> Callable[[int], Any] | None:
    """Learning rates of so many steps; None where they are constant, or follow from what is measured."""
    configs = trainer.strategy.lr_scheduler_configs
    if len(configs) != 1 or configs[0].frequency != 1:
        return None
    scheduler = configs[0].scheduler
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
        return None
    if is_overridden("lr_scheduler_step", trainer.lightning_module):
        return None
    rates = rates_of(scheduler)
    each = int(trainer.num_training_batches) if configs[0].interval == "epoch" else 1
    return None if rates is None else lambda n: np.repeat(rates(-(-n // each)), each)[:n]


def begin_epoch(progress: Any) -> None:
    """Within an epoch, one more is begun than was ended.

    Lightning forgets to count it where it went on from the end of an epoch; it would then take a checkpoint
    within the epoch for one of its end, and do the whole of it once more.
    """
    for count in (progress.current, progress.total):
        count.ready = max(count.ready, count.processed + 1)
        count.started = max(count.started, count.processed + 1)

"""Check and read settings of Lightning's Trainer and module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
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
    ("num_nodes", lambda v: v > 1, "a private run has one process and one device: set num_nodes=1"),
    ("precision", lambda v: v not in ("32-true", "bf16-mixed"), "a GradScaler multiplies losses before"
     " gradients are clipped, and weights are float32: use 'bf16-mixed'"),
)  # fmt: skip
#: The same of callbacks and modules: what has it, and what is said of it.
TRAINING = (BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging)
OF_MODULES: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (lambda m: not m.automatic_optimization, "automatic_optimization=False: one optimizer is stepped once a"
     " batch. Return the loss from training_step, or write the loop yourself"),
    (lambda m: m._compiler_ctx is not None or any(
        hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in m.modules()
     ), "torch.compile: compiled code cannot be run row by row. Leave it out"),
    (lambda m: is_overridden("backward", m), "backward, which is not called: gradients of rows are taken one"
     " by one. Leave it out"),
    (lambda m: is_overridden("configure_gradient_clipping", m), "configure_gradient_clipping: those of rows"
     " are clipped. Leave it out"),
)  # fmt: skip


def check(trainer: Any, privacy: Privacy) -> None:
    """Refuse what cannot be private, before anything is made."""
    check_settings(trainer, REFUSED, "Trainer({}={!r})")
    module = trainer.lightning_module
    said = [f"{type(module).__name__} has {what}" for has, what in OF_MODULES if has(module)]
    said += [
        f"the callback {type(one).__name__} changes batches, steps or weights of a run that was planned as it"
        " is: leave it out"
        for one in trainer.callbacks
        if isinstance(one, TRAINING)
    ]
    said += [
        f"{type(owner).__name__} has on_before_batch_transfer, which is given a batch in parts: do it in the"
        " data set, its collate_fn, or in on_after_batch_transfer"
        for owner in (module, trainer.datamodule)
        if owner is not None and is_overridden("on_before_batch_transfer", owner)
    ]
    if len(devices := trainer.strategy.parallel_devices) > 1:
        said.append(f"Trainer(devices=…) gives {len(devices)}: a private run has one, set devices=1")
    if privacy.stop_at_epsilon is not None and (trainer.min_epochs or trainer.min_steps):
        said.append(
            "Trainer(min_epochs=…, min_steps=…) would train on beyond stop_at_epsilon: leave them out"
        )
    for fault in said:
        raise UnsupportedError(f"{fault}.")


def counted_in_whole_batches(trainer: Any) -> dict[str, Any]:
    """Let the Trainer see one batch a release; what its settings were.

    Raises:
        UnsupportedError: for a count that is no multiple of accumulate_grad_batches.
    """
    parts = trainer.accumulate_grad_batches
    names = () if parts == 1 or trainer.fast_dev_run else ("limit_train_batches", "val_check_interval")
    counts = {name: value for name in names if isinstance(value := getattr(trainer, name), int)}
    for name, value in counts.items():
        if value % parts:
            raise UnsupportedError(
                f"Trainer({name}={value}) must be a multiple of accumulate_grad_batches={parts}: parts of a"
                " batch are not stepped."
            )
    for name, value in {"accumulate_grad_batches": parts, **counts}.items():
        setattr(trainer, name, value // parts)
    return {"accumulate_grad_batches": parts, **counts}


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

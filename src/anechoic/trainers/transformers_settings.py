"""Check and read settings of Hugging Face's Trainer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau as Plateau
from transformers import get_scheduler

from anechoic.errors import UnsupportedError
from anechoic.trainers.adapter import DroppedLogs, Refused, check_settings

logger = logging.getLogger("anechoic")

#: Settings of TrainingArguments that a private run cannot have: (name, whether it is refused, the remedy).
REFUSED: tuple[Refused, ...] = (
    ("train_sampling_strategy", lambda v: v == "group_by_length", "which rows share a batch would depend on"
     " the rows: leave it at 'random'. Batches are padded by your data_collator as before"),
    ("group_by_length", bool, "which rows share a batch would depend on the rows: leave it False"),
    ("fp16", bool, "its GradScaler multiplies losses before gradients are clipped: use bf16=True"),
    ("torch_compile", bool, "compiled code cannot be run row by row: leave it False"),
    ("use_liger_kernel", bool, "its fused kernels cannot be run row by row: leave it False"),
    ("auto_find_batch_size", bool, "the batch size is part of the guarantee: set"
     " per_device_train_batch_size to what fits, and gradient_accumulation_steps to make up the batch"),
    ("include_num_input_tokens_seen", lambda v: v not in (False, None, "no"), "it tells of the rows"
     " without noise: leave it 'no'"),
    ("deepspeed", bool, "one process, one device: leave it out"),
    ("fsdp", bool, "one process, one device: leave it out"),
    ("world_size", lambda v: (v or 1) > 1, "one process, one device: start it without torchrun"),
    ("n_gpu", lambda v: (v or 1) > 1, "one process, one device: set CUDA_VISIBLE_DEVICES to one of them"),
    ("packing", bool, "several examples would share a row, and one clip norm: leave it False"),
    ("padding_free", bool, "all examples would share one row: leave it False"),
)  # fmt: skip
#: What the Trainer logs of a run that follows from public numbers.
PUBLIC = frozenset({
    "epoch", "learning_rate", "step", "train_runtime", "train_samples_per_second", "train_steps_per_second",
    "epsilon", "noise_to_signal",
})  # fmt: skip


def in_whole_batches(args: Any) -> Any:
    """The settings as the Trainer's loop is to read them: one step a logical batch."""
    check_settings(args, REFUSED)
    loop = copy.copy(args)
    loop.per_device_train_batch_size *= args.gradient_accumulation_steps
    loop.gradient_accumulation_steps = 1
    loop.max_grad_norm = 0.0
    loop.ignore_data_skip = True  # the private loader goes on where the run is
    loop.logging_nan_inf_filter = False
    return loop


def planned_rates(args: Any, given: Any, steps: int) -> Any:
    """The given scheduler, or that of the settings; None where rates follow from what is measured."""
    if isinstance(given, Plateau) or args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
        return None
    return given or get_scheduler(
        args.lr_scheduler_type,
        optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0),
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )


def keep_activations(model: Any) -> None:
    """Turn activation checkpointing off, under which rows can only be taken one after another."""
    if not any(getattr(part, "gradient_checkpointing", False) for part in model.modules()):
        return
    names = ("activation_checkpointing_disable", "gradient_checkpointing_disable")
    next(found for name in names if (found := getattr(model, name, None)) is not None)()
    if hasattr(model, "disable_input_require_grads"):
        model.disable_input_require_grads()
    logger.warning(
        "activation checkpointing (gradient_checkpointing, which TRL turns on by default) is off in a private"
        " run: with it rows would be taken one after another. Memory is bounded by"
        " per_device_train_batch_size, which may be 1: gradient_accumulation_steps makes up the batch."
    )


def is_trls(kind: type) -> bool:
    """Whether a class is one of TRL's own."""
    return kind.__module__.startswith("trl.")


def check_loss(trainer: Any) -> None:
    """Refuse a loss of TRL that is not the Trainer's own."""
    kind = next(one for one in type(trainer).__mro__ if "compute_loss" in vars(one))
    own = "write its loss of one row as compute_loss(self, model, inputs, **_) of your class"
    named = getattr(trainer.args, "loss_type", None)
    for refused, why in (
        (kind.__name__ != "SFTTrainer", f"the loss of TRL's {kind.__name__} is not known to be one of rows"),
        (named not in (None, "nll"), f"loss_type={named!r} is refused: take 'nll', or"),
        (getattr(trainer, "aux_loss_enabled", False), "the model has an auxiliary loss of its router, which"
         " is that of a batch: set output_router_logits=False in its config, or"),
    ):  # fmt: skip
        if is_trls(kind) and refused:
            raise UnsupportedError(f"{why}: {own}." if not why.endswith("or") else f"{why} {own}.")


def public(logs: dict[str, float], dropped: DroppedLogs) -> dict[str, float]:
    """What may be logged while training; each other name is told to `dropped`."""
    for name in sorted(set(logs) - PUBLIC):
        dropped.tell(name)
    return {name: value for name, value in logs.items() if name in PUBLIC}


@contextmanager
def unprepared(accelerator: Any) -> Iterator[None]:
    """A loader that is made here is the Trainer's own, and not yet one of Accelerate, which reads ahead."""
    accelerator.prepare = lambda loader: loader
    try:
        yield
    finally:
        del accelerator.prepare

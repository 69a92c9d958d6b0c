"""Hugging Face's Trainer, and trainers that are made from it (TRL's SFTTrainer), with a private run inside.

Needs transformers; importing this module imports it.
"""

from __future__ import annotations

import copy
import logging
import math
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau as Plateau
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, get_scheduler

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.trainers.privacy import Privacy
from anechoic.trainers.row_loss import Parts, RowLoss
from anechoic.trainers.run import UNNOISED, TrainerRun

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("anechoic")

__all__ = ["PrivateTrainer"]

#: Settings of TrainingArguments that a private run cannot have: (name, whether it is refused, the remedy).
REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("train_sampling_strategy", lambda v: v == "group_by_length", "which rows share a batch would depend on"
     " the rows: leave it at 'random'. Batches are padded by your data_collator as before"),
    ("group_by_length", bool, "which rows share a batch would depend on the rows: leave it False"),
    ("fp16", bool, "its GradScaler multiplies losses before gradients are clipped: use bf16=True"),
    ("torch_compile", bool, "compiled code cannot be run row by row: leave it False"),
    ("use_liger_kernel", bool, "its fused kernels do not say which row a gradient is of: leave it False"),
    ("auto_find_batch_size", bool, "the batch size is part of the guarantee: set"
     " per_device_train_batch_size to what fits, and gradient_accumulation_steps to make up the batch"),
    ("include_num_input_tokens_seen", lambda v: v not in (False, None, "no"), "it tells of the rows"
     " without noise: leave it 'no'"),
    ("neftune_noise_alpha", lambda v: v is not None, "its hook on the embedding is put there after the run"
     " began: leave it None"),
    ("deepspeed", bool, "one process, one device: leave it out"),
    ("fsdp", bool, "one process, one device: leave it out"),
    ("packing", bool, "several examples would share a row, and one clip norm: leave it False"),
    ("padding_free", bool, "all examples would share one row: leave it False"),
)  # fmt: skip


#: Schedulers that look at metrics.
MEASURING = ("reduce_lr_on_plateau", "greedy")


class PrivateTrainer(Trainer):
    """transformers.Trainer, private: `PrivateTrainer(model=…, args=…, train_dataset=…, privacy=Privacy(…))`.

    Put before another trainer's class it makes that one private: `class PrivateSFTTrainer(PrivateTrainer,
    SFTTrainer): pass`.

    The trainer is used as ever: train, evaluate, predict, save_model, train(resume_from_checkpoint=…). Its
    compute_loss (yours, if you wrote one) is given one row at a time, so no row sees another in it. Not seen,
    but in steps that are compared: what code around it keeps of a batch, and hands to it in a later step.

    One step of the trainer is one release: per_device_train_batch_size rows are worked on at once, and
    gradient_accumulation_steps of such parts make one batch. With `Privacy(poisson_sampling=False)` batches
    have a fixed size, in one shuffled order for the whole run; else they may be drawn at random.
    `self.model` is the plain model throughout.

    Logs have epsilon and noise_to_signal in the place of the training loss and the norm of gradients, which
    nothing protects. Checkpoints are the trainer's own; the keys to go on from one are beside its output_dir
    (`out.private`), which is never uploaded. max_grad_norm of the TrainingArguments means nothing here: the
    clip norm is that of `Privacy`.

    Args:
        privacy: the guarantee.
        arguments, keywords: of the Trainer.

    Attributes:
        engine: the PrivacyEngine of the run, once train() has begun it.

    Raises:
        UnsupportedError: for settings with which a run cannot be private.
        GuaranteeError, MismatchError, …: from train(), as from `PrivacyEngine`.
    """

    def __init__(self, *arguments: Any, privacy: Privacy, **keywords: Any) -> None:
        if not isinstance(privacy, Privacy):
            raise TypeError(f"privacy is a {type(privacy).__name__}: give anechoic.trainers.Privacy(…).")
        self._privacy = privacy
        self._run: TrainerRun | None = None
        given = keywords.get("args", arguments[1] if len(arguments) > 1 else None)
        if given is not None:
            _check_settings(given)  # before the Trainer looks at data and devices
        super().__init__(*arguments, **keywords)
        self.args: Any = self._checked(self.args)
        self.add_callback(_Steps(self))

    @property
    def engine(self) -> Any:
        return self._begun.engine

    @property
    def _begun(self) -> TrainerRun:
        if self._run is None:
            raise DesynchronizedError("the private run begins with train(): call it first.")
        return self._run

    def _checked(self, args: Any) -> Any:
        """The settings as the loop is to read them: one step a logical batch.

        Raises:
            UnsupportedError: naming the setting.
        """
        _check_settings(args)
        if args.world_size > 1 or args.n_gpu > 1:
            raise UnsupportedError(
                f"{max(args.world_size, args.n_gpu)} devices: a private run has one process and one device."
                " Set CUDA_VISIBLE_DEVICES to one of them."
            )
        self._given, self._at_once = args, args.per_device_train_batch_size
        loop = copy.copy(args)
        loop.per_device_train_batch_size *= args.gradient_accumulation_steps
        loop.gradient_accumulation_steps = 1
        loop.max_grad_norm = 0.0
        loop.ignore_data_skip = True  # the private loader goes on where the run is
        loop.logging_nan_inf_filter = False
        self._train_batch_size = loop.train_batch_size
        return loop

    # -- where the Trainer makes its parts -----------------------------------------------------------

    def _inner_training_loop(self, *arguments: Any, **keywords: Any) -> Any:
        if self._run is not None:
            raise UnsupportedError(
                "train() was called twice: a run has the steps that its mechanism was planned for. Plan for"
                " all of them at once, or make a new trainer whose Privacy counts this run:"
                " charge=[trainer.engine.mechanism]."
            )
        self._resume = keywords.get("resume_from_checkpoint")
        self._starting = True
        try:
            keywords["args"] = self.args
            return super()._inner_training_loop(*arguments, **keywords)
        finally:
            self._starting = False

    def get_train_dataloader(self) -> Any:
        """The private loader while train() runs; else the Trainer's."""
        if not getattr(self, "_starting", False):
            return super().get_train_dataloader()
        if self._run is None:
            with _unprepared(self.accelerator):
                loader = super().get_train_dataloader()
            self._run = self._begin(loader)
            self.optimizer = self._run.optimizer
        return self._run.batches

    def _begin(self, loader: DataLoader[Any]) -> TrainerRun:
        # Accelerate would replace the model's forward, now or in the first evaluation: see autocast below
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        self.accelerator._models.append(model)
        _keep_activations(self.model)
        steps = self.args.max_steps
        if steps <= 0:
            steps = math.ceil(self.args.num_train_epochs * len(loader))
        optimizer = self.create_optimizer()
        return TrainerRun(
            self._privacy,
            module=RowLoss(model, self._loss_of),
            optimizer=optimizer,
            loader=loader,
            steps=steps,
            scheduler=self._schedule(steps),
            at_once=self._at_once,
            folder=self.args.output_dir,
            resume=self._resume,
        )

    def _schedule(self, steps: int) -> Any:
        """The scheduler, or the learning rates of its steps; None where they follow from what is measured."""
        given: Any = self.lr_scheduler
        if isinstance(given, Plateau) or self.args.lr_scheduler_type in MEASURING:
            return None
        if given is not None:
            return given
        probe = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        scheduler = get_scheduler(
            self.args.lr_scheduler_type,
            optimizer=probe,
            num_warmup_steps=self.args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=self.args.lr_scheduler_kwargs,
        )
        rates = []
        for _ in range(steps):
            rates.append(float(probe.param_groups[0]["lr"]))
            probe.step()
            scheduler.step()
        return rates

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if training and getattr(self, "_starting", False):
            return self._begun.module
        return super()._wrap_model(model, training=training, dataloader=dataloader)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """bf16 around model and loss, in evaluation too; a cache would keep tensors of other rows."""
        return torch.autocast(
            self.args.device.type, dtype=torch.bfloat16, enabled=self.args.bf16, cache_enabled=False
        )

    # -- one step ------------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """One logical batch; it is not asked how many tokens it has."""
        return list(islice(epoch_iterator, 1)), None

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward pass of a logical batch, part by part. Returns 0: the loss is not noised."""
        run = self._begun
        if not isinstance(inputs, Parts):
            raise DesynchronizedError(
                "training_step was given a batch that the private loader did not deliver: leave"
                " get_train_dataloader and get_batch_samples as they are."
            )
        run.module.train()
        for part in run.parts(inputs):
            batch = self._prepare_inputs(part)
            with self.compute_loss_context_manager():
                loss = run.module(dict(batch) if hasattr(batch, "keys") else batch)
            loss.backward()
        return torch.zeros((), device=self.args.device)

    def _loss_of(self, model: Any, inputs: Any) -> Tensor:
        """compute_loss of the class, on one row.

        TRL's own gathers statistics of the tokens for the log, without noise, and is passed over.
        """
        for kind in type(self).__mro__:
            if "compute_loss" in vars(kind) and not kind.__module__.startswith("trl."):
                before = dict(vars(self))
                loss: Any = vars(kind)["compute_loss"](self, model, inputs)
                for name, value in vars(self).items():
                    if before.get(name, before) is not value:
                        raise GuaranteeError(
                            f"compute_loss wrote the trainer's attribute {name}: what it keeps of a row"
                            " would reach the next one. Nothing was released. Leave it out; statistics of"
                            " public data can be taken in evaluation."
                        )
                found: Tensor = loss[0] if isinstance(loss, tuple) else loss
                return found
        raise UnsupportedError(f"{type(self).__name__} has no compute_loss.")

    def floating_point_ops(self, inputs: Any) -> int:
        """0: it would tell how large the batches were, which is secret where they are drawn."""
        return 0

    def _get_grad_norm(self, *_: Any, **__: Any) -> None:
        """None: gradients before the step are those of rows, and are not there to be looked at."""

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """Of the training run: epsilon and the noise-to-signal ratio, and nothing that was not noised."""
        if self._run is not None and any(name in logs for name in UNNOISED):
            logs = {name: value for name, value in logs.items() if name not in UNNOISED}
            logs.update(self._run.logs())
        super().log(logs, *arguments, **keywords)

    def _finalize_training(self, *arguments: Any, **keywords: Any) -> Any:
        output = super()._finalize_training(*arguments, **keywords)
        metrics = {name: value for name, value in output.metrics.items() if name not in UNNOISED}
        return output._replace(training_loss=math.nan, metrics=metrics | self._begun.logs())

    # -- files ---------------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        schedule: Any = self.lr_scheduler
        self._begun.save(output_dir, scheduler=schedule.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            extra = self._begun.load()
            schedule: Any = self.lr_scheduler
            schedule.load_state_dict(extra["scheduler"])

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The plain model, for from_pretrained, with the statement of its guarantee (privacy.txt)."""
        loop, self.args = self.args, self._given  # the settings that are saved are the user's
        try:
            super().save_model(output_dir, _internal_call=_internal_call)
        finally:
            self.args = loop
        if self._run is not None:
            folder = Path(self.args.output_dir if output_dir is None else output_dir)
            (folder / "privacy.txt").write_text(self._run.statement + "\n", encoding="utf-8")


def _check_settings(args: Any) -> None:
    for name, is_refused, remedy in REFUSED:
        if is_refused(getattr(args, name, None)):
            raise UnsupportedError(f"{name}={getattr(args, name)!r} is refused: {remedy}.")


class _Steps(TrainerCallback):
    """Looks at releases, stops at the budget, and counts epochs by releases."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._on = self._trainer._begun.released()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.epoch = state.global_step / len(self._trainer._begun.batches)  # in a resumed pass, too
        if not self._on:
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy == "steps"


def _keep_activations(model: Any) -> None:
    """Turn activation checkpointing off, under which rows can only be taken one after another."""
    if not any(getattr(part, "gradient_checkpointing", False) for part in model.modules()):
        return
    names = ("activation_checkpointing_disable", "gradient_checkpointing_disable")
    next(found for name in names if (found := getattr(model, name, None)) is not None)()
    if hasattr(model, "disable_input_require_grads"):
        model.disable_input_require_grads()
    logger.warning(
        "activation checkpointing is off in a private run: with it rows would be taken one after another."
        " Memory is bounded by per_device_train_batch_size, which may be 1: gradient_accumulation_steps makes"
        " up the batch."
    )


@contextmanager
def _unprepared(accelerator: Any) -> Iterator[None]:
    """A loader that is made here is the Trainer's own, and not yet one of Accelerate, which reads ahead."""
    accelerator.prepare = lambda loader: loader
    try:
        yield
    finally:
        del accelerator.prepare

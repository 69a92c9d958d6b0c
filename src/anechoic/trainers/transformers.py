"""Hugging Face's Trainer, and trainers that are made from it (TRL's SFTTrainer), with a private run inside.

Needs transformers; importing this module imports it.
"""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from anechoic.trainers import transformers_settings as settings
from anechoic.trainers.adapter import DroppedLogs, TrainerAdapter, check_settings
from anechoic.trainers.privacy import Privacy
from anechoic.trainers.run import UNNOISED, RowLoss, TrainerRun

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PrivateTrainer"]


class PrivateTrainer(TrainerAdapter, Trainer):
    """transformers.Trainer, private: `PrivateTrainer(model=…, args=…, train_dataset=…, privacy=Privacy(…))`.

    Put before another trainer's class it makes that one private: `class PrivateSFTTrainer(PrivateTrainer,
    SFTTrainer): pass`.

    The trainer is used as ever: train, evaluate, predict, save_model, train(resume_from_checkpoint=…). Its
    compute_loss (yours, if you wrote one) is given one row at a time, so no row sees another in it. What it
    writes to attributes of the trainer is taken back.

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

    _starting = _measuring = False
    lr_scheduler: Any

    def __init__(self, *arguments: Any, privacy: Privacy, **keywords: Any) -> None:
        self._take(privacy)
        given = keywords.get("args", arguments[1] if len(arguments) > 1 else None)
        check_settings(given, settings.REFUSED)  # before the Trainer looks at data and devices
        super().__init__(*arguments, **keywords)
        settings.check_loss(self)
        self._dropped = DroppedLogs(UNNOISED)
        self._given, self._at_once = self.args, self.args.per_device_train_batch_size
        self.args: Any = settings.in_whole_batches(self.args)
        self._train_batch_size = self.args.train_batch_size
        self.add_callback(_StepCallback(self))

    def _inner_training_loop(self, *arguments: Any, **keywords: Any) -> Any:
        self._check_first()
        self._resume = keywords.get("resume_from_checkpoint")
        self._starting = True
        try:
            return super()._inner_training_loop(*arguments, **{**keywords, "args": self.args})
        finally:
            self._starting = False

    def get_train_dataloader(self) -> Any:
        """The private loader while train() runs; else the Trainer's."""
        if not self._starting:
            return super().get_train_dataloader()
        if self._run is None:
            with settings.unprepared(self.accelerator):
                loader = super().get_train_dataloader()
            self._run = self._begin(loader)
            self.optimizer = self._run.optimizer
        return self._run.batches

    def _begin(self, loader: DataLoader[Any]) -> TrainerRun:
        # Accelerate would replace the model's forward, now or in the first evaluation: see autocast below
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        self.accelerator._models.append(model)
        settings.keep_activations(self.model)
        steps = self.args.max_steps
        if steps <= 0:
            steps = math.ceil(self.args.num_train_epochs * self._privacy.period(loader))
        return TrainerRun(
            self._privacy,
            module=RowLoss(model.train(), self._loss_of),
            optimizer=self.create_optimizer(),
            loader=loader,
            steps=steps,
            scheduler=settings.planned_rates(self.args, self.lr_scheduler, steps),
            at_once=self._at_once,
            folder=self.args.output_dir,
            resume=self._resume,
        )

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if training and self._starting:
            return self._begun.module
        return super()._wrap_model(model, training=training, dataloader=dataloader)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """bf16 around model and loss, in evaluation too; a cache would keep tensors of other rows."""
        kind, on = self.args.device.type, self.args.bf16
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=on, cache_enabled=False)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """Return one logical batch; its tokens are not counted."""
        return list(islice(epoch_iterator, 1)), None

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward pass of a logical batch, part by part. Returns 0: the loss is not noised."""
        run = self._begun
        run.module.train()
        for part in run.parts(inputs):
            batch = self._prepare_inputs(part)
            with self.compute_loss_context_manager():
                loss = run.module(dict(batch) if hasattr(batch, "keys") else batch)
            loss.backward()
        return torch.zeros((), device=self.args.device)

    def _loss_of(self, model: Any, inputs: Any) -> Tensor:
        """compute_loss of the class, on one row; for TRL's, which gathers statistics, the Trainer's own."""
        kinds = [kind for kind in type(self).__mro__ if "compute_loss" in vars(kind)]
        own, before = next(kind for kind in kinds if not settings.is_trls(kind)), dict(vars(self))
        loss: Any = vars(own)["compute_loss"](self, model, inputs)
        self.__dict__.clear()  # what it keeps of a row would reach the next one
        self.__dict__.update(before)
        return loss[0] if isinstance(loss, tuple) else loss  # type: ignore[no-any-return]

    def floating_point_ops(self, inputs: Any) -> int:
        """0: it would tell how large the batches were, which is secret where they are drawn."""
        return 0

    def _get_grad_norm(self, *_: Any, **__: Any) -> None:
        """None: gradients before the step are those of rows, and are not there to be looked at."""

    def evaluate(self, *arguments: Any, **keywords: Any) -> dict[str, float]:
        """As the Trainer's. What is measured on the data of evaluation is logged as it is."""
        self._measuring = True
        try:
            return super().evaluate(*arguments, **keywords)  # type: ignore[no-any-return]
        finally:
            self._measuring = False

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """While training epsilon, the noise-to-signal ratio and public numbers: nothing noised the rest.

        What the `log` of other classes adds (TRL's statistics) is left out too.
        """
        if not self._starting or self._measuring:
            return super().log(logs, *arguments, **keywords)
        own = self._begun.logs() if any(name in logs for name in UNNOISED) else {}
        Trainer.log(self, settings.public(logs, self._dropped) | own, *arguments, **keywords)

    def _finalize_training(self, *arguments: Any, **keywords: Any) -> Any:
        output = super()._finalize_training(*arguments, **keywords)
        metrics = {name: value for name, value in output.metrics.items() if name not in UNNOISED}
        return output._replace(training_loss=math.nan, metrics=metrics | self._begun.logs())

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self._begun.save(output_dir, scheduler=self.lr_scheduler.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.lr_scheduler.load_state_dict(self._begun.load()["scheduler"])

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


class _StepCallback(TrainerCallback):
    """Callback that monitors releases, stops at the budget, and counts epochs by releases."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._on = self._trainer._begun.released()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.epoch = state.global_step / len(self._trainer._begun.batches)  # in a resumed pass, too
        if not self._on:
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy == "steps"

"""Lightning's Trainer with a private run inside, as a strategy; the LightningModule stays what it is.

Needs lightning; importing this module imports it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError, HorizonError, UnsupportedError
from anechoic.planning.update import rates_of
from anechoic.torch.engine import PrivacyEngine
from anechoic.trainers.files import made, private_folder, twin
from anechoic.trainers.privacy import Privacy
from anechoic.trainers.row_loss import Parts, RowLoss
from anechoic.trainers.run import TrainerRun

__all__ = ["PrivateStrategy"]

logger = logging.getLogger("anechoic")

#: Settings of the Trainer that a private run cannot have: (name, whether it is refused, the remedy).
REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("gradient_clip_val", lambda v: v is not None, "the gradient of each row is clipped before they are"
     " added up: leave it out, and give Privacy(max_grad_norm=…)"),
    ("reload_dataloaders_every_n_epochs", bool, "an example keeps its index for the whole run: leave it 0"),
    ("overfit_batches", bool, "a private run draws its batches from all of the data: train on a"
     " torch.utils.data.Subset"),
    ("num_nodes", lambda v: v > 1, "a private run has one process and one device: num_nodes=1"),
)  # fmt: skip
#: Callbacks that train, or that change what a step is, and the hooks of a module that would not be called.
CALLBACKS = (BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging)
HOOKS = ("backward", "on_before_backward", "on_after_backward", "configure_gradient_clipping")
#: Settings that count the Trainer's batches, which are those of `accumulate_grad_batches` parts here.
COUNTS = ("limit_train_batches", "val_check_interval")


class PrivateStrategy(SingleDeviceStrategy):
    """`lightning.Trainer(strategy=PrivateStrategy(Privacy(…)), accelerator=…, devices=1)`.

    The module is used as it is. Its training_step is given one row at a time, as a batch of one, so whatever
    it does, no row sees another; it must return the loss. One step of the Trainer is one release: batch_size
    rows are worked on at once, and accumulate_grad_batches of such parts make one batch. Validation, test and
    prediction run the plain module on whole batches.

    What training_step logs is dropped, because nothing protects a training loss; `epsilon` and
    `noise_to_signal` are logged every log_every_n_steps. Checkpoints are Lightning's own, with the statement
    of the guarantee in them (`privacy`); the keys to go on from `checkpoints/last.ckpt` are in
    `checkpoints.private`, which is not to be published. fit(ckpt_path=…) goes on bit for bit.

    Args:
        privacy: the guarantee.

    Attributes:
        engine: the PrivacyEngine of the run, once fit() has begun it.

    Raises:
        UnsupportedError: from fit(), for settings with which a run cannot be private.
        CheckpointError: from fit(ckpt_path=…), where the keys of the checkpoint are missing.
        GuaranteeError, MismatchError, …: from fit(), as from `PrivacyEngine`.
    """

    strategy_name = "private"

    def __init__(self, privacy: Privacy) -> None:
        if not isinstance(privacy, Privacy):
            raise TypeError(f"privacy is a {type(privacy).__name__}: give anechoic.trainers.Privacy(…).")
        super().__init__()
        self._privacy = privacy
        self._run: TrainerRun | None = None
        self._loader: _Batches | None = None
        self._resume: str | None = None
        self._parts, self._given = 1, dict[str, Any]()
        self._in_hand: tuple[Any, tuple[Any, ...]] = (None, ())
        self._dropped: set[str] = set()

    @property
    def engine(self) -> PrivacyEngine:
        return self._begun.engine

    @property
    def _begun(self) -> TrainerRun:
        if self._run is None:
            raise DesynchronizedError("the private run begins with fit(): call it first.")
        return self._run

    @property
    def _module(self) -> Any:
        return self.lightning_module

    # -- how a run begins ----------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Choose the device; before fit() look at all settings."""
        trainer = self._module.trainer
        self._root_device = torch.device(trainer._accelerator_connector._parallel_devices[0])
        if trainer.state.fn == TrainerFn.FITTING:
            self._check(trainer)
            self._count_whole_batches(trainer)
        super().setup_environment()

    def _check(self, trainer: Any) -> None:
        """Refuse what cannot be private.

        Raises:
            UnsupportedError: naming the setting.
        """
        if self._run is not None:
            raise UnsupportedError(
                "fit() was called twice: a run has the steps that its mechanism was planned for. Plan for all"
                " of them at once, or make a new PrivateStrategy whose Privacy counts this run:"
                " charge=[strategy.engine.mechanism]."
            )
        for name, is_refused, remedy in REFUSED:
            if is_refused(getattr(trainer, name)):
                raise UnsupportedError(f"Trainer({name}={getattr(trainer, name)!r}) is refused: {remedy}.")
        devices = trainer._accelerator_connector._parallel_devices
        if len(devices) > 1:
            raise UnsupportedError(
                f"Trainer(devices=…) gives {len(devices)}: a private run has one process and one device."
            )
        if self.precision_plugin.precision not in ("32-true", "bf16-mixed"):
            raise UnsupportedError(
                f"Trainer(precision={self.precision_plugin.precision!r}) is refused: a GradScaler multiplies"
                " losses before gradients are clipped, and weights are float32. Use 'bf16-mixed'."
            )
        if self._privacy.stop_at_epsilon is not None and (trainer.min_epochs or trainer.min_steps):
            raise UnsupportedError(
                "Trainer(min_epochs=…, min_steps=…) would train on beyond stop_at_epsilon: leave them out."
            )
        for callback in trainer.callbacks:
            if isinstance(callback, CALLBACKS):
                raise UnsupportedError(
                    f"the callback {type(callback).__name__} changes batches, steps or weights of a run that"
                    " was planned as it is: leave it out."
                )
        module = self._module
        if not module.automatic_optimization:
            raise UnsupportedError(
                "automatic_optimization=False is refused: one optimizer is stepped once a batch. Return the"
                " loss from training_step, or write the loop yourself (docs/training.md)."
            )
        if module._compiler_ctx is not None or any(hasattr(part, "_orig_mod") for part in module.modules()):
            raise UnsupportedError("compiled code cannot be run row by row: leave torch.compile out.")
        for name in HOOKS:
            if is_overridden(name, module):
                raise UnsupportedError(
                    f"{type(module).__name__}.{name} is refused: gradients before the step are those of rows,"
                    " which no hook is shown. Leave it out."
                )
        for owner, kind in ((module, "LightningModule"), (trainer.datamodule, "DataModule")):
            if owner is not None and is_overridden("on_before_batch_transfer", owner):
                raise UnsupportedError(
                    f"on_before_batch_transfer of the {kind} is refused: do it in the data set, its"
                    " collate_fn, or in on_after_batch_transfer."
                )

    def _count_whole_batches(self, trainer: Any) -> None:
        """Let the Trainer see one batch a release, until teardown."""
        self._parts = parts = trainer.accumulate_grad_batches
        names = () if parts == 1 or trainer.fast_dev_run else COUNTS
        counts = {name: value for name in names if isinstance(value := getattr(trainer, name), int)}
        for name, value in counts.items():
            if value % parts:
                raise UnsupportedError(
                    f"Trainer({name}={value}) must be a multiple of accumulate_grad_batches={parts}: parts of"
                    " a batch are not stepped."
                )
        self._given = {"accumulate_grad_batches": parts, **counts}
        trainer.accumulate_grad_batches = 1
        for name, value in counts.items():
            setattr(trainer, name, value // parts)

    def process_dataloader(self, dataloader: object) -> object:
        """In the place of the training loader, one that follows the run."""
        trainer = self._module.trainer
        if not (trainer.state.fn == TrainerFn.FITTING and trainer.training):
            return dataloader
        if self._loader is not None or not isinstance(dataloader, DataLoader):
            raise UnsupportedError(
                f"the training data are a {type(dataloader).__name__}, or several loaders: give one"
                " torch.utils.data.DataLoader."
            )
        self._loader = _Batches(self, _larger(dataloader, self._parts), dataloader.batch_size or 1)
        return self._loader

    def setup_optimizers(self, trainer: Any) -> None:
        """The module's optimizer and schedulers, and the private run with them."""
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if "multiple optimizers" not in str(error):
                raise
            raise UnsupportedError(
                "configure_optimizers gave several optimizers: one is stepped once a batch. Give one, with"
                " parameter groups."
            ) from error
        steps = trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise UnsupportedError("noise is planned for a number of steps: give max_epochs or max_steps.")
        trainer.fit_loop.setup_data()
        loader, module = self._loader, self._module
        if loader is None:
            raise UnsupportedError("limit_train_batches=0, or no training_step: there is nothing to train.")
        modes = [(part, part.training) for part in module.modules()]
        module.trainer = None  # else it is looked through for weights that nobody trains
        try:
            self._run = TrainerRun(
                self._privacy,
                module=RowLoss(module, self._loss_of),
                optimizer=self.optimizers[0],
                loader=loader.plain,
                steps=int(steps),
                scheduler=self._schedule(int(trainer.num_training_batches)),
                at_once=loader.at_once,
                folder=os.path.join(trainer.default_root_dir, "lightning_logs"),
                resume=self._resume,
            )
        finally:
            module.trainer = trainer
        for part, training in modes:  # what the user froze with eval() stays so
            part.training = training
        self.optimizers: Any = [self._run.optimizer]

    def _schedule(self, epoch: int) -> Callable[[int], Any] | None:
        """Learning rates of so many steps; None where they are constant, or follow from what is measured."""
        configs = self.lr_scheduler_configs
        if len(configs) != 1 or configs[0].frequency != 1 or is_overridden("lr_scheduler_step", self._module):
            return None
        scheduler = configs[0].scheduler
        if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
            return None
        rates = rates_of(scheduler)
        each = epoch if configs[0].interval == "epoch" else 1
        return None if rates is None else lambda n: np.repeat(rates(-(-n // each)), each)[:n]

    # -- one step ------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """A run that was resumed at its budget makes no step."""
        if self.engine.releases >= self._begun.last:
            self._module.trainer.should_stop = True

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Parts of a training batch are moved when their turn comes."""
        return batch if isinstance(batch, Parts) else super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: Any, *rest: Any) -> Tensor:
        """Take a batch in hand; backward() works on it. Returns 0: the loss is not noised."""
        run = self._begun
        if not isinstance(batch, Parts):
            raise DesynchronizedError("training_step was given a batch that the private loader did not make.")
        if run.engine.releases >= run.last:
            raise HorizonError(f"all {run.last} releases within the budget were made: training is over.")
        self._in_hand = batch, rest
        return torch.zeros((), device=self.root_device)

    def backward(self, closure_loss: Tensor, optimizer: Any, *_: Any, **__: Any) -> Tensor:
        """Forward and backward pass of the batch in hand, part by part; after the Trainer's zero_grad()."""
        run = self._begun
        for part in run.parts(self._in_hand[0]):
            batch = self.batch_to_device(part)
            with self._unlogged():
                with self.precision_plugin.train_step_context():
                    loss = run.module(batch)
                loss.backward()
        return closure_loss

    def _loss_of(self, module: Any, batch: Any) -> Tensor:
        """Of the module's training_step, on one row."""
        found = module.training_step(batch, *self._in_hand[1])
        loss = found.get("loss") if isinstance(found, dict) else found
        if not isinstance(loss, Tensor):
            raise UnsupportedError(
                f"training_step returned {type(found).__name__} without a loss: which rows are left out must"
                " not depend on the rows. Return the loss of each, 0 times it where it is not to count."
            )
        return loss

    @contextmanager
    def _unlogged(self) -> Iterator[None]:
        """What training_step writes of rows goes nowhere."""
        trainer, loggers = self._module.trainer, self._module.trainer.loggers
        modules = [part for part in self._module.modules() if isinstance(part, LightningModule)]
        trainer.loggers = []
        for part in modules:
            vars(part).update(log=self._drop, log_dict=self._drop)
        try:
            yield
        finally:
            trainer.loggers = loggers
            for part in modules:
                vars(part).pop("log", None)
                vars(part).pop("log_dict", None)

    def _drop(self, what: Any, *_: Any, **__: Any) -> None:
        new = sorted({str(name) for name in ([what] if isinstance(what, str) else what)} - self._dropped)
        if new:
            self._dropped.update(new)
            logger.warning(
                "%s, logged in training_step, is dropped: nothing protects what is computed from the data"
                " without noise.",
                ", ".join(new),
            )

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **keywords: Any
    ) -> Any:
        """The work on the batch, then the release; and what can be said of it."""
        run, trainer = self._begun, self._module.trainer
        value = closure()  # before step(), in which parts of a batch cannot be summed up
        output = super().optimizer_step(optimizer, lambda: value, model, **keywords)
        go_on = run.released()
        if not go_on:
            trainer.should_stop = True
        every = trainer.log_every_n_steps
        if every and not trainer.barebones and (not go_on or run.engine.releases % every == 0):
            for name, figure in run.logs().items():
                self._module.log(name, figure, prog_bar=True, on_step=True, on_epoch=False)
        return output

    # -- files ---------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Lightning's checkpoint, after its keys: whichever of the two a killed process left is a pair."""
        if self._run is None or "optimizer_states" not in checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        if "://" in os.fspath(filepath):
            raise UnsupportedError(f"{filepath} is not a local file: keys are kept beside the checkpoint.")
        older = _twins(filepath)
        pair = _pair(filepath, checkpoint)
        path = twin(pair)
        made(path.parent)
        self.engine.save_checkpoint(path=path)
        super().save_checkpoint(checkpoint | {"privacy": self._run.statement}, filepath, storage_options)
        for other in older:
            if other != path:
                other.unlink(missing_ok=True)

    def remove_checkpoint(self, filepath: Any) -> None:
        """With its keys."""
        super().remove_checkpoint(filepath)
        for path in _twins(filepath):
            path.unlink(missing_ok=True)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Lightning's checkpoint; fit() goes on from its keys."""
        checkpoint = super().load_checkpoint(checkpoint_path, *arguments, **keywords)
        if self._module.trainer.state.fn == TrainerFn.FITTING:
            self._resume = _pair(os.path.realpath(checkpoint_path), checkpoint)
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Weights, optimizer, keys and counts, all from the private file."""
        self._begun.load()

    def teardown(self) -> None:
        """Give the Trainer its settings back."""
        trainer = self._module.trainer
        for name, value in self._given.items():
            setattr(trainer, name, value)
        self._given = {}
        super().teardown()


class _Batches:
    """The training loader as the Trainer sees it: logical batches, from the release that the run is at.

    How many make an epoch is the Trainer's affair, so it never ends by itself.
    """

    def __init__(self, strategy: PrivateStrategy, plain: DataLoader[Any], at_once: int) -> None:
        self._strategy, self.plain, self.at_once = strategy, plain, at_once
        self.dataset = plain.dataset

    def __len__(self) -> int:
        return len(self.plain)

    def __iter__(self) -> Iterator[Parts]:
        while True:
            yield from self._strategy._begun.batches

    def state_dict(self) -> dict[str, Any]:
        """Nothing: where it goes on is in the private file."""
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """See `state_dict`."""


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


def _pair(filepath: Any, checkpoint: dict[str, Any]) -> str:
    """The name by which a checkpoint has its twin: with its step, as Lightning overwrites files."""
    return f"{os.fspath(filepath)}.{checkpoint['global_step']}"


def _twins(filepath: Any) -> list[Path]:
    """Those of all checkpoints that had this name."""
    whole = Path(os.path.abspath(filepath))
    pattern = re.compile(re.escape(whole.name) + r"\.\d+\.ckpt")
    folder = private_folder(whole.parent)
    return [path for path in folder.glob("*.ckpt") if pattern.fullmatch(path.name)]

"""Lightning's Trainer with a private run inside, as a strategy; the LightningModule stays what it is.

Needs lightning; importing this module imports it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader

from anechoic.errors import UnsupportedError
from anechoic.torch.loading.loader import WORKERS
from anechoic.trainers import lightning_settings as settings
from anechoic.trainers.adapter import TrainerAdapter
from anechoic.trainers.checkpoint_files import kept_in_pairs, pair, twins
from anechoic.trainers.lightning_logs import LogFilter, check_nothing_kept, silent
from anechoic.trainers.privacy import Privacy
from anechoic.trainers.run import BatchParts, RowLoss, TrainerRun

__all__ = ["PrivateStrategy"]


class PrivateStrategy(TrainerAdapter, SingleDeviceStrategy):
    """`lightning.Trainer(strategy=PrivateStrategy(Privacy(…)), accelerator=…, devices=1)`.

    The module is used as it is. Its training_step is given one row at a time, as a batch of one, so whatever
    it does, no row sees another; it must return the loss. Hooks are given no rows, and 0 for it. One step of
    the Trainer is one release: batch_size rows are worked on at once, and accumulate_grad_batches of such
    parts make one batch. Validation, test and prediction run the plain module on whole batches.

    What is logged while training, by the module or a callback, is dropped, because nothing protects a
    training loss; metrics of training batches are NaN there. `epsilon` and `noise_to_signal` are logged every
    log_every_n_steps. Checkpoints are Lightning's own, with the statement of the guarantee in them
    (`privacy`); the keys to go on from `checkpoints/last.ckpt` are in `checkpoints.private`, which is not to
    be published. fit(ckpt_path=…) goes on bit for bit.

    Args:
        privacy: the guarantee.

    Attributes:
        engine: the PrivacyEngine of the run, once fit() has begun it.

    Raises:
        UnsupportedError: for settings with which a run cannot be private.
        CheckpointError: from fit(ckpt_path=…), where the keys of the checkpoint are missing.
        GuaranteeError, MismatchError, …: from fit(), as from `PrivacyEngine`.
    """

    strategy_name = "private"
    _begins, _called = "fit()", "strategy"

    def __init__(self, privacy: Privacy) -> None:
        self._take(privacy)
        super().__init__()
        #: what the Trainer says to strategies that have these two
        self.parallel_devices: list[Any] = []
        self.num_nodes = 1
        self._loader: EpochLoader | None = None
        self._logs: LogFilter | None = None
        self._resume: str | None = None
        self._given: dict[str, Any] = {}
        self._in_hand: tuple[Any, tuple[Any, ...]] = (None, ())

    @property
    def root_device(self) -> torch.device:
        return torch.device(self.parallel_devices[0] if self.parallel_devices else "cpu")

    @property
    def _trainer(self) -> Any:
        module: Any = self.lightning_module
        return module.trainer

    def connect(self, model: Any) -> None:
        """Check all settings before fit(), and filter the module's logs."""
        super().connect(model)
        if model.trainer.state.fn == TrainerFn.FITTING:
            self._check_first()
            settings.check(model.trainer, self._privacy)
            self._logs = LogFilter(model)
            self._given = settings.counted_in_whole_batches(model.trainer)

    def process_dataloader(self, dataloader: object) -> object:
        """Replace the training loader by one that follows the run."""
        if not (self._trainer.state.fn == TrainerFn.FITTING and self._trainer.training):
            return dataloader
        if self._loader is not None or not isinstance(dataloader, DataLoader):
            raise UnsupportedError(
                f"the training data are a {type(dataloader).__name__}, or several loaders: give one"
                " torch.utils.data.DataLoader."
            )
        self._loader = EpochLoader(self, dataloader, self._given["accumulate_grad_batches"])
        return self._loader

    def setup_optimizers(self, trainer: Any) -> None:
        """Set up the module's optimizer and schedulers, and the private run with them."""
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if "multiple optimizers" not in str(error):
                raise
            raise UnsupportedError(
                "configure_optimizers gave several optimizers: one is stepped once a batch. Give one, with"
                " parameter groups."
            ) from error
        if (steps := trainer.estimated_stepping_batches) == math.inf:
            raise UnsupportedError("noise is planned for a number of steps: give max_epochs or max_steps.")
        trainer.fit_loop.setup_data()
        loader, module = self._loader, trainer.lightning_module
        if loader is None:
            raise UnsupportedError("limit_train_batches=0, or no training_step: there is nothing to train.")
        module.trainer = None  # else it is looked through for weights that nobody trains
        try:
            self._run = TrainerRun(
                self._privacy,
                module=RowLoss(module, self._loss_of),
                optimizer=self.optimizers[0],
                loader=loader.plain,
                steps=int(steps),
                scheduler=settings.planned_rates(trainer),
                at_once=loader.at_once,
                folder=os.path.join(trainer.default_root_dir, "lightning_logs"),
                resume=self._resume,
            )
        finally:
            module.trainer = trainer
        self.optimizers: Any = [self._run.optimizer]

    def on_train_start(self) -> None:
        """Stop a run that was resumed at its budget."""
        if self.engine.releases >= self._begun.last:
            self._trainer.should_stop = True

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Count the epoch as begun, which Lightning forgets where it goes on from the end of one."""
        progress = self._trainer.fit_loop.epoch_progress
        for count in (progress.current, progress.total):
            count.ready, count.started = (max(n, count.processed + 1) for n in (count.ready, count.started))

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Parts of a training batch are moved when their turn comes."""
        whole = isinstance(batch, BatchParts)
        return batch if whole else super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: Any, *rest: Any) -> Tensor:
        """Take a batch in hand; backward() works on it. Returns 0: the loss is not noised."""
        self._in_hand = batch, rest
        return torch.zeros((), device=self.root_device)

    def backward(self, closure_loss: Tensor, optimizer: Any, *_: Any, **__: Any) -> Tensor:
        """Forward and backward pass of the batch in hand, part by part; after the Trainer's zero_grad()."""
        module: Any = self.lightning_module
        self.precision_plugin.pre_backward(closure_loss, module)
        for part in self._begun.parts(self._in_hand[0]):
            batch = self.batch_to_device(part)
            with silent(module):
                with self.precision_plugin.train_step_context():
                    loss = self._begun.module(batch)
                loss.backward()
        check_nothing_kept(module)
        self.precision_plugin.post_backward(closure_loss, module)
        return closure_loss

    def _loss_of(self, module: Any, batch: Any) -> Tensor:
        found = module.training_step(batch, *self._in_hand[1])
        loss = found.get("loss") if isinstance(found, dict) else found
        if not isinstance(loss, Tensor):
            raise UnsupportedError(
                f"training_step returned {type(found).__name__} without a loss: which rows are left out must"
                " not depend on the rows. Return the loss of each, 0 times it where it is not to count."
            )
        return loss

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **keywords: Any
    ) -> Any:
        """Sum the batch, make the release, and log what may be known."""
        run, trainer = self._begun, self._trainer
        value = closure()  # before step(), in which parts of a batch cannot be summed up
        output = super().optimizer_step(optimizer, lambda: value, model, **keywords)
        go_on = run.released()
        trainer.should_stop = trainer.should_stop or not go_on
        every = trainer.log_every_n_steps
        if self._logs and every and (not go_on or run.engine.releases % every == 0):
            self._logs.tell(run.logs())
        return output

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save Lightning's checkpoint after its keys, so that a killed process leaves a pair."""
        run = self._run
        if run is None or "optimizer_states" not in checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        if self._trainer.interrupted and run.optimizer.ledger.unfinished:
            run.optimizer.abandon_batch()  # an exception came in between: the batch is made again from here
        with kept_in_pairs(filepath, checkpoint) as path:
            run.engine.save_checkpoint(path=path)
            super().save_checkpoint(checkpoint | {"privacy": run.statement}, filepath, storage_options)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint with its keys."""
        super().remove_checkpoint(filepath)
        for path in twins(filepath):
            path.unlink(missing_ok=True)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Load Lightning's checkpoint; fit() goes on from its keys."""
        checkpoint = super().load_checkpoint(checkpoint_path, *arguments, **keywords)
        if self._trainer.state.fn == TrainerFn.FITTING:
            self._resume = pair(os.path.realpath(checkpoint_path), checkpoint)
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Load weights, optimizer, keys and counts from the private file."""
        self._begun.load()

    def teardown(self) -> None:
        """Restore the Trainer's settings and the module's logs; the run stays."""
        for name, value in self._given.items():
            setattr(self._trainer, name, value)
        if self._logs is not None:
            self._logs.remove()
        self._given, self._logs, self._loader = {}, None, None
        super().teardown()


class EpochLoader:
    """Logical batches from the release on that the run is at; how many make an epoch is the Trainer's affair.

    Args:
        strategy: whose run begins after the Trainer has asked for the length.
        given: the user's loader.
        parts: its batches that make one of the run.

    Attributes:
        plain: the loader for the run.
        at_once: rows that are worked on at once.
    """

    def __init__(self, strategy: PrivateStrategy, given: DataLoader[Any], parts: int) -> None:
        self.at_once = given.batch_size or 1
        if parts > 1 and given.batch_size is None:
            raise UnsupportedError("accumulate_grad_batches needs a DataLoader with a batch_size.")
        names = ("sampler", "collate_fn", "drop_last", *WORKERS)
        make = partial(DataLoader, given.dataset, batch_size=self.at_once * parts)
        self.plain = given if parts == 1 else make(**{name: getattr(given, name) for name in names})
        self.dataset, self._strategy = given.dataset, strategy
        self._period = strategy._privacy.period(self.plain)

    def __len__(self) -> int:
        return self._period

    def __iter__(self) -> Iterator[BatchParts]:
        while True:
            yield from self._strategy._begun.batches

    # Lightning asks whether it can go on within an epoch: where, is in the private file

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        pass

"""Private run inside a trainer, as every adapter uses it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError, HorizonError, MismatchError
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.result import mechanism_in
from anechoic.torch.checkpoint import read_mechanism
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.setup.checks import check_one_process
from anechoic.trainers.checkpoint_files import found_twin, made, private_folder, twin
from anechoic.trainers.privacy import Privacy
from anechoic.workloads import exponential_decay

#: Names under which trainers log what is computed from the data without noise.
UNNOISED = ("loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen")


class RowLoss(nn.Module):
    """Model and loss as one module: forward(batch) is the loss of a batch; a private run gives it one row.

    A loss of one row cannot depend on another row: token means, smoothing of labels, class weights and
    targets of the wrong shape are those of the row alone.

    Args:
        model: whose parameters are trained.
        loss: function of (model, batch); a tensor without a dimension, or with one entry.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        return self._loss(self.model, batch).reshape(())


class BatchParts:
    """Logical batch in parts that fit into memory: what a trainer takes for one batch."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self.first, self.rest = first, rest


class LogicalBatches:
    """Loader for a trainer: one item a release, however many parts it comes in.

    Args:
        loader: of the run, in chunks.
        period: logical batches of a pass.
    """

    def __init__(self, loader: PrivateDataLoader, period: int) -> None:
        self.loader, self.dataset, self._period = loader, loader.dataset, period

    def __len__(self) -> int:
        return self._period

    def __iter__(self) -> Iterator[BatchParts]:
        parts = iter(self.loader)
        for first in parts:
            delivery = self.loader.ledger.in_hand
            if delivery is not None and delivery.chunk:
                raise DesynchronizedError(
                    f"part {delivery.chunk + 1} of batch {delivery.step} was taken for a batch of its own: go"
                    " through all that `TrainerRun.parts` gives before the trainer's step."
                )
            yield BatchParts(first, parts)


class TrainerRun:
    """Run that a trainer's loop drives. The trainer calls `module` on what `parts` gives, and `optimizer`.

    Args:
        privacy: the settings.
        module: the user's model with the trainer's loss.
        optimizer: plain, over the trainable parameters.
        loader: plain, with the logical batch size.
        steps: releases that the trainer will make.
        scheduler: of the learning rates, as in `PrivacyEngine.make_private`; None where it is not known.
        at_once: rows that are worked on at once.
        folder: of the trainer's checkpoints.
        resume: the trainer's checkpoint to go on from.

    Attributes:
        engine: what made the run private.
        module, optimizer, batches: private.
        last: the release after which training stops.
    """

    def __init__(
        self,
        privacy: Privacy,
        *,
        module: RowLoss,
        optimizer: optim.Optimizer,
        loader: DataLoader[Any],
        steps: int,
        scheduler: Any,
        at_once: int,
        folder: str,
        resume: str | None = None,
    ) -> None:
        self.privacy = privacy
        # under keys of the operating system nothing can be made again before there is a checkpoint
        self.engine = privacy.engine(None if privacy.noise_key is None else made(private_folder(folder)))
        self._model = module.model
        options = dict(privacy.options)
        self._begun = None if resume is None else found_twin(resume)
        if self._begun is not None:
            options["mechanism"] = planned = read_mechanism(self._begun)
            given = options.pop("noise_multiplier", None)  # calibration is off in the last digits
            if given is not None and not math.isclose(given, planned.noise_multiplier, rel_tol=1e-9):
                raise MismatchError(
                    f"noise_multiplier={given} was {planned.noise_multiplier} when the run was begun: give"
                    " that, or begin a new run."
                )
        else:
            options["scheduler"] = scheduler
        _check_steps(options.get("mechanism"), steps, resume)
        check_one_process("a trainer")
        make = self.engine.make_private_with_epsilon if privacy.by_epsilon else self.engine.make_private
        self.module, self.optimizer, private = make(
            module=module, optimizer=optimizer, data_loader=loader, steps=steps, **options
        )
        for one in privacy.charge:
            self.engine.charge(one)
        parts = private.in_chunks(at_once) if at_once < (loader.batch_size or 1) else private
        self.batches = LogicalBatches(parts, len(private))
        self.mechanism: Mechanism = self.engine.mechanism
        self.delta: float = self.mechanism.delta if privacy.delta is None else privacy.delta
        self.last = self._last(privacy.stop_at_epsilon)
        self._written: dict[Path, Path] = {}
        self._restart()

    def _last(self, most: float | None) -> int:
        if most is None:
            return self.mechanism.steps
        history = self.engine._current().history

        def spent(n: int) -> float:
            return history.epsilon(self.delta, n)

        last = bisect_right(range(1, self.mechanism.steps + 1), most, key=spent)
        if not last:
            raise ValueError(
                f"stop_at_epsilon={most} is less than what the first release costs, {spent(1):.4g}: give"
                " more, or a smaller target_epsilon, whose noise is greater."
            )
        return last

    def parts(self, batch: Any) -> Iterator[Any]:
        """Yield the parts of a logical batch, each to be put through `module` and backward().

        Between them gradients are clipped and summed up; the trainer's own step after the last one makes the
        release.
        """
        if not isinstance(batch, BatchParts):
            raise DesynchronizedError(
                f"the trainer's step was given a {type(batch).__name__}, and not a batch of the private"
                " loader: leave the trainer's training loader as it is."
            )
        if self.engine.releases >= self.last:
            raise HorizonError(f"all {self.last} releases within the budget were made: training is over.")
        self.optimizer.zero_grad()
        yield batch.first
        while (delivery := self.optimizer.ledger.in_hand) is not None and not delivery.last:
            self.optimizer.step()
            self.optimizer.zero_grad()
            yield next(batch.rest)

    def released(self) -> bool:
        """Look at the release after a step, while p.grad is there; return whether training must go on."""
        made = self.engine.releases
        gradients = [p.grad for p in self.optimizer.params if p.grad is not None]
        variance, count = float(self._variances[made - 1]), sum(g.numel() for g in gradients)
        if gradients:
            self._power += float(torch.stack(torch._foreach_norm(gradients)).double().square().sum())
            self._noise += variance * count
            self._spread += variance**2 * 2 * count
        return made < self.last

    @cached_property
    def _variances(self) -> NDArray[np.float64]:
        """Variances of the noise in each entry of p.grad, by release."""
        mechanism = self.mechanism
        scale = mechanism.noise_std * mechanism.clip_norm / mechanism.expected_batch_size
        per_step = error(exponential_decay(mechanism.steps, 0.0), mechanism.strategy).per_step
        return np.square(scale * np.asarray(per_step))

    def _restart(self) -> None:
        self._power = self._noise = self._spread = 0.0  # of the releases since the last log

    def logs(self) -> dict[str, float]:
        """Return what can be logged: functions of the releases and of public numbers.

        noise_to_signal is over the releases since the last call, by root mean squares of norms: the squared
        norm of a release is that of the clipped mean gradient, plus d s^2 of its noise, up to s^2 sqrt(2 d)
        and the cross term. It is a lower bound where the signal is below what the noise lets one see.
        """
        said = {"epsilon": self.engine.get_epsilon(self.delta)}
        if self._noise:
            signal = max(self._power - self._noise, math.sqrt(self._spread))
            said["noise_to_signal"] = math.sqrt(self._noise / signal)
        self._restart()
        return said

    @property
    def statement(self) -> str:
        """Return the statement of the guarantee."""
        engine, whole = self.engine, self.engine.composition if self.privacy.charge else self.mechanism
        size = sum(map(Tensor.numel, self._model.parameters()))
        said = whole.report(model=f"{type(self._model).__name__}, {size} parameters")
        spent = f"epsilon = {engine.get_epsilon(self.delta):.4g} at delta = {self.delta:.3g}"
        return f"{said}\n\nReleases so far: {engine.releases} of {self.mechanism.steps}, {spent}."

    def save(self, checkpoint: str, **extra: Any) -> None:
        """Save the private file of a trainer's checkpoint.

        Twins that this run wrote before are deleted where the trainer has deleted the checkpoint.
        """
        path = twin(checkpoint)
        made(path.parent)
        self.engine.save_checkpoint(path=path, checkpoint_dict=extra)
        for older in [one for one, private in self._written.items() if not one.exists() and private != path]:
            self._written.pop(older).unlink(missing_ok=True)
        self._written[Path(checkpoint)] = path

    def load(self) -> dict[str, Any]:
        """Load the checkpoint that the run was made for; return what was saved beside it."""
        if self._begun is None:
            raise MismatchError("this run was begun anew: it has no checkpoint to go on from.")
        return self.engine.load_checkpoint(path=self._begun, adopt_journal=self.privacy.adopt_journal)


def _check_steps(given: Any, steps: int, resume: str | None) -> None:
    """Refuse another number of releases than a mechanism has, in words of the trainer's settings."""
    mechanism = mechanism_in(given)
    if isinstance(mechanism, Mechanism) and mechanism.steps != steps:
        whose = "the mechanism in Privacy" if resume is None else f"the run of {resume}"
        raise MismatchError(
            f"{whose} has {mechanism.steps} releases, and this trainer would make {steps}: noise is planned"
            " for a whole run, by its number of epochs or steps and its batch size. Keep them; or leave the"
            " mechanism out, and begin a new run, which counts what was released before:"
            " Privacy(…, charge=…), with the Mechanism of the old run."
        )

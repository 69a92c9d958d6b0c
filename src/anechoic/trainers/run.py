"""Private run inside a trainer, as every adapter uses it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import optim
from torch.utils.data import DataLoader

from anechoic.errors import MismatchError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.result import mechanism_in
from anechoic.torch.checkpoints.checkpoint import read_mechanism
from anechoic.torch.setup.checks import check_one_process
from anechoic.trainers.checkpoint_files import found_twin, made, private_folder, twin
from anechoic.trainers.privacy import Privacy
from anechoic.trainers.row_loss import BatchParts, LogicalBatches, RowLoss
from anechoic.trainers.update_monitor import UpdateMonitor

logger = logging.getLogger("anechoic")

#: Names under which trainers log what is computed from the data without noise.
UNNOISED = ("loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen")


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
        say: shows the user a line of text; None for the log, level INFO.

    Attributes:
        engine: what made the run private.
        module, optimizer, batches: private.

    Raises:
        CheckpointError: if `resume` has no keys.
        MismatchError: if `steps` are not those of the run to go on from, or of a Mechanism in `privacy`.
        ValueError: if not even one step keeps within stop_at_epsilon.
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
        say: Callable[[str], object] | None = None,
    ) -> None:
        self.privacy = privacy
        # under keys of the operating system nothing can be made again before there is a checkpoint
        given = privacy.noise_key is not None
        self.engine = privacy.engine(made(private_folder(folder)) if given else None)
        options = dict(privacy.options)
        begun = None if resume is None else found_twin(resume)
        if begun is not None:
            options["mechanism"] = planned = read_mechanism(begun)
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
        self._loss = module
        self.module, self.optimizer, private = make(
            module=module.train(), optimizer=optimizer, data_loader=loader, steps=steps, **options
        )
        for one in privacy.charge:
            self.engine.charge(one)
        period = len(private)
        if at_once < (loader.batch_size or 1):
            private = private.in_chunks(at_once)
        self.batches = LogicalBatches(private, period)
        delta = privacy.delta
        self.delta: float = self.engine.mechanism.delta if delta is None else delta
        self.last = self._last(privacy.stop_at_epsilon)
        self._written: list[tuple[Path, Path]] = []
        self._begun = begun
        self.signal = UpdateMonitor(self.engine.mechanism, module.named_parameters(), say)

    def _last(self, most: float | None) -> int:
        """The release after which training stops."""
        n = self.engine.mechanism.steps
        if most is None:
            return n
        history = self.engine._current().history
        low, high = 0, n  # epsilon grows with the number of releases
        while low < high:
            middle = (low + high + 1) // 2
            if history.epsilon(self.delta, middle) <= most:
                low = middle
            else:
                high = middle - 1
        if not low:
            raise ValueError(
                f"stop_at_epsilon={most} is less than what the first release costs,"
                f" {history.epsilon(self.delta, 1):.4g}: give more, or a smaller target_epsilon, whose noise"
                " is greater."
            )
        return low

    # -- one step --------------------------------------------------------------------------------

    def parts(self, batch: BatchParts) -> Iterator[Any]:
        """Yield the parts of a logical batch, each to be put through `module` and backward().

        Between them gradients are clipped and summed up; the trainer's own step after the last one makes the
        release.
        """
        self.optimizer.zero_grad()
        yield batch.first
        while (delivery := self.optimizer.ledger.in_hand) is not None and not delivery.last:
            self.optimizer.step()
            self.optimizer.zero_grad()
            yield next(batch.rest)

    def released(self) -> bool:
        """Monitor the release after a step, while p.grad is there; return whether training must go on."""
        self.signal.look(self.engine.releases - 1)
        return self.engine.releases < self.last

    def ended(self, *, asked: bool) -> None:
        """End training: warn where releases that the noise was planned for were not made.

        Args:
            asked: whether somebody stopped it, such as a callback. A stop at the budget is known here.
        """
        made, planned = self.engine.releases, self.engine.mechanism.steps
        if made < self.last and not asked:
            logger.warning(
                "training ended after %d of the %d releases that its noise was planned for, and nothing had"
                " stopped it: each had more noise than that many need. Give the trainer max_steps=%d, or the"
                " number of epochs that it goes through.",
                made,
                planned,
                made,
            )

    # -- what is said ------------------------------------------------------------------------------

    def logs(self) -> dict[str, float]:
        """Return what can be logged: functions of the releases and of public numbers."""
        return {"epsilon": self.engine.get_epsilon(self.delta), **self.signal.logs()}

    @property
    def statement(self) -> str:
        """Return the statement of the guarantee."""
        engine = self.engine
        whole = engine.composition if self.privacy.charge else engine.mechanism
        return (
            f"{whole.report()}\n\nReleases so far: {engine.releases} of {engine.mechanism.steps}, epsilon ="
            f" {engine.get_epsilon(self.delta):.4g} at delta = {self.delta:.3g}."
        )

    # -- files -------------------------------------------------------------------------------------

    def save(self, checkpoint: str, **extra: Any) -> None:
        """Save the private file of a trainer's checkpoint, and the statement into the checkpoint.

        Twins that this run wrote before are deleted where the trainer has deleted the checkpoint.
        """
        path = twin(checkpoint)
        made(path.parent)
        self.engine.save_checkpoint(path=path, checkpoint_dict=extra)
        public = Path(checkpoint)
        for older, private in [*self._written]:
            if not older.exists() and private != path:
                private.unlink(missing_ok=True)
                self._written.remove((older, private))
        if (public, path) not in self._written:
            self._written.append((public, path))

    def load(self) -> dict[str, Any]:
        """Load the checkpoint that the run was made for; return what was saved beside it.

        Raises:
            MismatchError: if it was made for none.
        """
        if self._begun is None:
            raise MismatchError("this run was begun anew: it has no checkpoint to go on from.")
        extra = self.engine.load_checkpoint(path=self._begun, adopt_journal=self.privacy.adopt_journal)
        self.signal.begin(self.engine.releases)
        return extra


def _check_steps(given: Any, steps: int, resume: str | None) -> None:
    """Refuse another number of releases than a mechanism has, in words of the trainer's settings."""
    mechanism = mechanism_in(given)
    if not isinstance(mechanism, Mechanism) or mechanism.steps == steps:
        return
    if resume is None:
        raise MismatchError(
            f"the mechanism in Privacy has {mechanism.steps} releases, and this trainer would make {steps}:"
            " set its number of epochs or steps and its batch size to what the mechanism was made for, or"
            " leave the mechanism out, which is then planned for this trainer."
        )
    raise MismatchError(
        f"the run of {resume} has {mechanism.steps} releases, and this trainer would make {steps}: noise is"
        " planned for a whole run. Keep its number of epochs or steps and its batch size. To train on from"
        " its weights begin a new run that counts this one, Privacy(…, charge=…), with the Mechanism of the"
        " old run."
    )

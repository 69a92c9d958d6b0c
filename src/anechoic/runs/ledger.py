"""Ledger of a run: which batch was delivered, which part of it was summed, which releases were made.

Loader and optimizer both report to it, and it refuses whatever would let batches, gradients and noise
rows come apart: one logical batch is one release, in order, once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from anechoic._validate import positive_int
from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError, ReplayError
from anechoic.runs.fork_guard import NonPicklable
from anechoic.units.batch import UnitBatch

logger = logging.getLogger("anechoic")

#: Releases made by this process under each noise key (known by its hash), so that none is made twice with
#: other gradients. A resumed process starts with none: it repeats the same releases bit for bit.
_MADE: dict[str, int] = {}
_TAKING = threading.Lock()


@dataclass(frozen=True)
class Delivery:
    """Physical batch that is handed to the training loop.

    Attributes:
        step: t, the release that it belongs to.
        size: examples in it (0 is possible under Poisson sampling).
        chunk, chunks: it is part `chunk` of `chunks` of its logical batch.
        units: which of its rows are clipped together; None where a row is a unit.
        parts: rows of the parts that it is cut into, the same for every number of processes; None where
            nobody asked for that.
        numbers: of these parts in their batch.
    """

    step: int
    size: int
    chunk: int = 0
    chunks: int = 1
    units: UnitBatch | None = field(default=None, compare=False, repr=False)
    parts: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    numbers: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def place(self) -> int:
        """Address of its random numbers within the step."""
        return self.numbers[0] if self.numbers else self.chunk

    @property
    def last(self) -> bool:
        """Whether the logical batch is complete with this one."""
        return self.chunk + 1 == self.chunks


class BatchHooks:
    """Hooks around the work on each batch: nothing here, see `anechoic.torch.run`."""

    def on_first_batch(self) -> None:
        """Called before the first batch of all is delivered."""

    def deliver(self, delivery: Delivery) -> None:
        """Called before a batch is delivered; what this refuses is not in hand."""

    def finished(self) -> None:
        """Called after the batch was stepped, or given up."""


class ReleaseLedger(NonPicklable):
    """Match batches and releases.

    Args:
        steps: n, the releases that the mechanism covers.

    Attributes:
        releases: made so far.
        around: told of each batch.
    """

    def __init__(self, steps: int) -> None:
        self.steps = positive_int("steps", steps)
        self.releases = 0
        self._key_hash = ""
        self._process = os.getpid()
        #: whether a batch was handed out, here or before the run was resumed
        self.begun = False
        self.around = BatchHooks()
        self._delivery: Delivery | None = None
        self._summed = 0
        self._summing = False
        self._turn = 0
        self._releasing = False
        self._fault = ""
        #: passes without a batch that a loop over all epochs may still ask for once a resumed run is over
        self.empty_passes = 0
        self._micro_batch: int | None = None
        self._micro_batch_fixed = self._opened = False

    def start(self, noise_key: bytes, releases: int = 0) -> None:
        """Start under `noise_key` with `releases` made already."""
        self._key_hash, self.releases = _hash(noise_key), releases
        self._process = os.getpid()
        self._clear()
        self._fault = ""

    @property
    def in_hand(self) -> Delivery | None:
        """The batch that was delivered and is not stepped yet."""
        return self._delivery

    @property
    def unfinished(self) -> str:
        """Reason why the run is between two releases, or ""."""
        if self._fault:
            return self._fault
        if self._summing:
            return f"summing a micro-batch of release {self.releases} was interrupted"
        if self._summed:
            return (
                f"{self._summed} micro-batches of release {self.releases} are summed and the rest is missing"
            )
        if self._delivery is not None:
            return f"batch {self._delivery.step} was delivered and its optimizer.step() is missing"
        return ""

    @property
    def micro_batch(self) -> int:
        """Largest micro-batch of the last iterator: 0 for whole batches, -1 before the first iterator."""
        return (self._micro_batch or 0) if self._opened else -1

    def fix_micro_batch(self, micro_batch: int) -> None:
        """Fix the micro-batch size from here on: sums of other parts round differently."""
        if micro_batch >= 0:
            self._micro_batch, self._micro_batch_fixed, self._opened = micro_batch or None, True, True

    def open(self, micro_batch: int | None = None) -> int:
        """Begin an iteration and return its turn; earlier iterators become stale.

        A batch that was delivered and not stepped is forgotten, and will be delivered again: nothing
        of it was released.

        Where a resumed run is over, as many passes as were complete when it was resumed have no batch, so
        that `for epoch in range(epochs)` around the loader may stay as it was.

        Args:
            micro_batch: largest micro-batch, None for whole batches.

        Raises:
            HorizonError: where all n releases were made and no such pass is left.
            ReplayError: for another size of micro-batches than in the checkpoint.
            DesynchronizedError: in the middle of a batch.
        """
        self._check_sound()
        if self._micro_batch_fixed and micro_batch != self._micro_batch:
            raise ReplayError(
                f"max_physical_batch_size={micro_batch} was {self._micro_batch} when the checkpoint was"
                " written: sums of other parts round differently, so a resumed run would not repeat the same"
                " releases. Keep it for the rest of the run."
            )
        if self._summed:
            raise DesynchronizedError(
                f"{self.unfinished}: the loop over a BatchMemoryManager was left early. Call"
                " optimizer.abandon_batch(), which clears the partial sum, and iterate again."
            )
        if self.releases >= self.steps and not self.empty_passes:
            raise HorizonError(
                f"all n={self.steps} releases of this mechanism were made: training is over. To train"
                " longer, plan a mechanism with more steps; to evaluate, iterate over"
                " torch.utils.data.DataLoader(loader.dataset)."
            )
        if self.releases >= self.steps:
            self.empty_passes -= 1
            logger.warning(
                "all n=%d releases of this resumed run were made: this pass of the loader has no batch.",
                self.steps,
            )
        self._micro_batch, self._opened = micro_batch, True
        self._delivery = None
        self._turn += 1
        self.around.finished()
        return self._turn

    def check_turn(self, turn: int) -> None:
        """Refuse to fetch the next batch for a stale iterator, or before the last batch was stepped."""
        self._check_sound()
        if self._summing:
            raise DesynchronizedError(
                f"{self.unfinished}: call optimizer.abandon_batch(), and iterate again."
            )
        if turn != self._turn:
            raise DesynchronizedError(
                "this iterator is stale: another one was started on the same loader, or its batch was"
                " abandoned. Use one iterator at a time, and iterate again."
            )
        if self._delivery is not None:
            raise DesynchronizedError(
                f"{self.unfinished}: gradient accumulation, `continue`, or a loop that reads ahead would drop"
                " the batch while its noise row waits. Call optimizer.step() for every batch, empty ones too:"
                " instead of accumulating k batches, write accumulation_steps = 1 and give the DataLoader k"
                " times the batch_size; for batches that do not fit into memory use"
                " anechoic.torch.BatchMemoryManager; to evaluate"
                " on the training data, iterate over torch.utils.data.DataLoader(loader.dataset)."
            )

    def deliver(self, turn: int, delivery: Delivery) -> None:
        """Record that `delivery` is handed to the training loop."""
        self.check_turn(turn)
        if (delivery.step, delivery.chunk) != (self.releases, self._summed):
            raise DesynchronizedError(
                f"batch {delivery.step} (part {delivery.chunk}) came up when {self.releases} (part"
                f" {self._summed}) was due. Iterate again."
            )
        if not self.begun:
            self.around.on_first_batch()
            self.begun = True
        self.around.deliver(delivery)
        self._delivery = delivery

    def due(self) -> Delivery:
        """Return the batch that the next optimizer.step() is for."""
        self._check_sound()
        self._check_process()
        if self._delivery is not None and self._delivery.step == self.releases:
            return self._delivery
        if self.releases >= self.steps:
            raise HorizonError(
                f"all n={self.steps} releases of this mechanism were made, and one more was asked for: plan a"
                " mechanism with more steps."
            )
        raise DesynchronizedError(
            f"optimizer.step() was called, but no batch was delivered for release {self.releases}: each"
            " batch of the private loader is stepped exactly once, and no other is covered. Iterate over the"
            " loader that make_private returned, and step once a batch: after a step whose update failed,"
            " the next one, or go on from the last checkpoint. In a framework leave it out of"
            " accelerator.prepare(…) and fabric.setup_dataloaders(…), and return it from"
            " Trainer.get_train_dataloader ('Training frameworks' in the documentation)."
        )

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Add the due micro-batch to the partial sum; more are to come. Interruption spoils the sum."""
        self._summing = True
        self._delivery = None
        self._summed += 1
        yield
        self._summing = False
        self.around.finished()

    @contextmanager
    def releasing(self) -> Iterator[int]:
        """Make the due release: it counts from here on, and an interruption ends the run.

        Raises:
            GuaranteeError: in a process that was forked from the run's.
            ReplayError: if this process has made the release already, in another run.
        """
        step = self.releases
        self._check_process()
        with _TAKING:
            _check_first(self._key_hash, step)
            _MADE[self._key_hash] = max(step + 1, _MADE.get(self._key_hash, 0))
        self._fault = (
            f"release {step} was interrupted after its noise row was taken, and rows are used once. Restart"
            " the process and resume from the last checkpoint"
        )
        self.releases += 1
        self._releasing = True
        try:
            yield step
        finally:
            self._releasing = False
            self.around.finished()
        self._delivery, self._summed = None, 0
        self._fault = ""

    def check_releasing(self) -> None:
        """Refuse to add noise outside of a release."""
        if not self._releasing:
            raise GuaranteeError("noise is added by optimizer.step() alone, once per batch: call that.")

    def abandon(self) -> None:
        """Abandon the batch in hand, of which nothing was released; iterators become stale."""
        self._check_sound()
        self._clear()

    def give_up(self, why: str) -> None:
        """End the run: every delivery and release is refused with `why`."""
        self._clear()
        self._fault = why

    def _clear(self) -> None:
        self._delivery, self._summed, self._summing = None, 0, False
        self._turn += 1
        self.around.finished()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise GuaranteeError(
                f"this run began in process {self._process}, and process {os.getpid()} would go on with it:"
                " fork after make_private repeats noise rows. Make each run in its own process: call"
                " make_private after the fork."
            )

    def _check_sound(self) -> None:
        if self._fault:
            raise DesynchronizedError(f"{self._fault}.")


def check_not_made(noise_key: bytes, releases: int) -> None:
    """Refuse to go back to a point that this process is past.

    Raises:
        ReplayError: if this process has made more than `releases` releases under `noise_key`.
    """
    made = _MADE.get(_hash(noise_key), 0)
    if releases < made:
        raise ReplayError(
            f"this process has made {made} releases under this key, and would go back to {releases}: the"
            f" noise of releases {releases} to {made - 1} would be used again, perhaps for other gradients,"
            " and the difference would show them. Resume in a fresh process, or start a new run."
        )


def _check_first(key_hash: str, step: int) -> None:
    if _MADE.get(key_hash, 0) > step:
        raise ReplayError(
            f"this process already made release {step} under this key, in another run: the same noise with"
            " other gradients would show their difference. Give every run a noise_key of its own (or none),"
            " and go on from a checkpoint in a fresh process."
        )


def _hash(noise_key: bytes) -> str:
    return hashlib.sha256(b"anechoic ledger" + noise_key).hexdigest()

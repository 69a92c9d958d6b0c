"""Private run: the objects of one make_private, and their keys."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import nn

from anechoic.batches.base import Batches
from anechoic.budget.book import BudgetBook, Reservation, booked
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.keys import checked_key
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import new_key
from anechoic.runs import Journal, digest_key_of, identity_of
from anechoic.runs.digests import digest_of
from anechoic.runs.fork_guard import NonPicklable
from anechoic.runs.journal import JournalMark, read_journal
from anechoic.runs.ledger import BatchHooks, Delivery, ReleaseLedger
from anechoic.runs.release_chain import begun
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.noise_adder import NoiseAdder, SumArithmetic
from anechoic.torch.optimizer import CorrelatedOptimizer, History
from anechoic.torch.optimizer_kinds import tell_noise
from anechoic.torch.sources import GradientSource
from anechoic.torch.structure import bits

logger = logging.getLogger("anechoic")
#: The latest run of each plain module and optimizer; these keep it alive, and not the other way round.
_RUNS: WeakKeyDictionary[Any, ref[PrivateRun]] = WeakKeyDictionary()


@dataclass
class PrivateRun(BatchHooks, NonPicklable):
    """The objects of one private training run.

    Attributes:
        plain: the user's module.
        batches_under: batches for a sampling key.
        book: where the run is booked before its first batch is handed out; None for nowhere.
    """

    mechanism: Mechanism
    arithmetic: SumArithmetic
    ledger: ReleaseLedger
    plain: nn.Module
    source: GradientSource
    noise_adder: NoiseAdder
    optimizer: CorrelatedOptimizer
    loader: PrivateDataLoader
    batches_under: Callable[[bytes], Batches]
    keys: Keys
    recorder: RunJournal
    history: History
    book: BudgetBook | None = None

    @property
    def module(self) -> Any:
        """Module that the training loop calls: a wrapper around the user's, or its hooks."""
        return self.source.module

    @property
    def identity(self) -> str:
        """Name of the run in journals and stamps; no secret."""
        return identity_of(self.keys.noise)

    def adopt_mechanism(self, mechanism: Mechanism) -> None:
        """Pin the mechanism that the run was begun with (see `pin_to_saved`), before its first release."""
        self.mechanism = self.noise_adder.mechanism = self.history.mechanism = mechanism
        tell_noise(self.optimizer.original_optimizer, mechanism, self.optimizer.loss_reduction)

    # -- around the work on a batch --------------------------------------------------------------

    def on_first_batch(self) -> None:
        self.optimizer.admit_what_was_loaded()
        self.optimizer.work.guard.released()  # until now the user may have loaded weights
        self.book_run()

    def book_run(self) -> None:
        """Book the run, on the first rank. One that was spent goes on only with its journal.

        Without it, another run under the same keys would be taken for this one: two releases with one noise.
        """
        with self.noise_adder.ranks.together("the budget book"):
            if self.book is not None and self.noise_adder.ranks.rank == 0:
                self.recorder.ready(self.ledger.releases, self.keys.noise)
                found = booked(self.book, self.mechanism, self.recorder.journal, self.identity)
                found.spend()
                self.recorder.booked = found

    def deliver(self, delivery: Delivery) -> None:
        self.recorder.ready(delivery.step, self.keys.noise)
        self.optimizer.work.deliver(delivery)

    def finished(self) -> None:
        self.optimizer.work.generators.settle()

    # -- its beginning ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start at release 0."""
        self.ledger.around = self.optimizer.run = self
        self.ledger.start(self.keys.noise)
        stream = self.noise_adder.start_noise(self.keys.noise)
        self.noise_adder.take_noise(stream, stream.init())

    def claim(self) -> None:
        """Claim module and optimizer; a run that had them before is over."""
        for thing in (self.optimizer.original_optimizer, self.plain):
            earlier = latest_run(thing)
            if earlier is not None and earlier is not self:
                earlier.give_up()
                if earlier.ledger.releases:
                    logger.warning(
                        "module was trained in an earlier run of this process, of %d releases, which"
                        " engine.get_epsilon does not count. Where that run had the same data, call"
                        " engine.charge(earlier_engine.mechanism, releases=%d).",
                        *[earlier.ledger.releases] * 2,
                    )
            _RUNS[thing] = ref(self)

    def give_up(self) -> None:
        """Detach from module and optimizer, which another run has claimed; no release is made any more."""
        self.source.detach()
        self.optimizer.detach()
        self.ledger.give_up(
            "make_private was called with this model or optimizer again, and the run that it began then has"
            " them: use what make_private returned last"
        )

    def resume(
        self,
        noise_key: bytes,
        sampling_key: bytes,
        noise: Mapping[str, Any] | None,
        releases: int,
        *,
        drawn: str,
        cipher: str,
        storage: str,
    ) -> Callable[[], None]:
        """Prepare to go on under other keys; what is returned carries it out.

        Where the noise state was not kept (None), all rows before release `releases` are drawn again. Noise
        of another cipher or storage differs by rounding where there is no grid. `drawn` is that of the save.
        """
        stream, again = self.noise_adder.start_noise(noise_key, cipher, storage), None
        if stream.memory == "store" and self.noise_adder.storage != "store":
            raise MismatchError(
                f"the run of the checkpoint stores {stream.memory_bytes} bytes of noise, for which"
                " memory_budget has no room: give as many, or none."
            )
        if noise is None:
            past, row = stream.init(), None
            while past.step < releases:
                row, past = stream.next(past, out=row)
            again = past.state_dict(copy=False)
        state = stream.restore(dict(noise or again or {}))
        batches = self.batches_under(sampling_key)
        if drawn_digest(again, batches, state.step, self.mechanism, noise_key) != drawn:
            raise ReplayError(
                "noise or batches under the keys of the checkpoint come out as others here: resume with the"
                " numpy and torch that drew them (a RecordStream: with the same records in the same order)."
            )

        def carry_out() -> None:
            self.ledger.start(noise_key, state.step)
            self.ledger.empty_passes = state.step // batches.period
            self.noise_adder.take_noise(stream, state)
            self.loader.feed.batches, self.loader.feed.key = batches, sampling_key
            self.keys = replace(self.keys, noise=noise_key, sampling=sampling_key)

        return carry_out


def latest_run(thing: Any) -> PrivateRun | None:
    """Return the run that a plain module or optimizer belongs to, where it is kept by anybody."""
    try:
        found = _RUNS.get(thing)
    except TypeError:  # what cannot be referred to weakly is no module and no optimizer
        return None
    return None if found is None else found()


def drawn_digest(
    noise: Mapping[str, Any] | None, batches: Batches, step: int, mechanism: Mechanism, noise_key: bytes
) -> str:
    """Return a keyed digest of batch `step`, and of `noise`, a state that is not saved."""
    parts: list[Any] = [np.frombuffer(batches.trace(min(step, mechanism.steps - 1)), np.uint8)]
    if noise is not None:
        parts += [bits(torch.as_tensor(noise["rows"]).detach()).cpu().numpy()]
    return digest_of(parts, digest_key_of(noise_key))


class RunJournal:
    """Record the digest of each release before the optimizer sees it.

    Without a checkpoint nothing can be made again, so nothing is written, or hashed, before there is one;
    unless a path is given (a file, or a folder): then every release is recorded, from the first.

    Attributes:
        follows: whether another process writes the journal of the run.
        known: releases that the journal of the other process had when the run was resumed.
        booked: the run in the budget book, which every journal of it tells of releases; or None.
    """

    def __init__(
        self,
        release: NoiseAdder,
        *,
        path: str | os.PathLike[str] | None = None,
        sync_every: int = 1,
        follows: bool = False,
    ) -> None:
        self._release = release
        self.follows, self.known = follows, 0
        self.booked: Reservation | None = None
        self._path = None if path is None or follows else Path(path)
        self.sync_every = sync_every
        self.journal: Journal | None = None

    def recorded(self, noise_key: bytes) -> int:
        """Count the releases under `noise_key` that the journal has: 0 where there is none.

        A resumed run stands before the end of its journal until it has repeated what follows its checkpoint.
        """
        if self.journal is not None:
            return self.journal.end
        place = None if self._path is None else _file(self._path, noise_key)
        if place is None or not begun(place):
            return self.known
        record = read_journal(place)
        return record.end if record.identity == identity_of(noise_key) else 0

    def ready(self, step: int, noise_key: bytes) -> None:
        """Begin the journal before release `step`, where a path was given."""
        if self.journal is None and self._path is not None:
            self.attach(self._open(self._path, step, noise_key))

    def mark(self, folder: Path, step: int, noise_key: bytes) -> dict[str, Any]:
        """Return the journal's length for a checkpoint in `folder`; one is begun if there is none."""
        journal = self.journal
        if journal is None:
            journal = self._open(self._path or folder, step, noise_key)
            self.attach(journal)
        if self._path is None and journal.path.parent != Path(os.path.realpath(folder)):
            mark, place = journal.mark(), journal.carry(folder)
            journal = self._open(place, step, noise_key, mark=mark)
            self.attach(journal)
        return asdict(journal.mark())

    def resumed(
        self, saved: dict[str, Any], folder: Path, noise_key: bytes, step: int, *, adopt: bool
    ) -> Journal:
        """Open the journal that a checkpoint in `folder` was written with; `attach` it to use it."""
        mark = JournalMark(**saved)
        places = [folder / mark.name, Path(mark.path)]
        if self._path is not None:
            places = [self._path / mark.name if self._path.is_dir() else self._path]
            if not places[0].exists():
                raise CheckpointError(
                    f"journal {places[0]} is missing: the checkpoint was written with {mark.path}. Give that"
                    " folder (journal=…, a trainer's output_dir, default_root_dir), or move it."
                )
        place = next((place for place in places if place.exists()), places[0])
        return self._open(place, step, noise_key, mark=mark, adopt=adopt)

    def attach(self, journal: Journal | None) -> None:
        """Use `journal`; None where another process has it."""
        if journal is not None and self.booked is not None:
            self.booked.follow(journal)
        self.journal = self._release.journal = journal

    def _open(self, place: Path, step: int, noise_key: bytes, **how: Any) -> Journal:
        return Journal.open(
            _file(place, noise_key),
            key=noise_key,
            fingerprint=self._release.mechanism.fingerprint,
            position=step,
            sync_every=self.sync_every,
            **how,
        )


def _file(place: Path, noise_key: bytes) -> Path:
    """Path of the journal of a run at `place`, which may be a folder."""
    return place / f"anechoic-{identity_of(noise_key)[:16]}.journal" if place.is_dir() else place


Key = bytes | Callable[[], bytes] | None


@dataclass(frozen=True)
class Keys:
    """Keys of one run: 32 secret bytes each, and the names of those that the caller gave."""

    noise: bytes = field(repr=False)
    sampling: bytes = field(repr=False)
    by_caller: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        """Whether the caller knows both, and can give them again."""
        return len(self.by_caller) == 2

    def __str__(self) -> str:
        """Say where they come from, and who answers for them."""
        if not self.by_caller:
            return "from the operating system"
        return (
            f"{' and '.join(self.by_caller)} given by the caller, who answers for it: 32 bytes of the"
            " operating system, secret, and for this run only"
        )


class KeySource:
    """Source of a run's keys: 32 secret bytes each, a function that returns them, or None for fresh ones."""

    def __init__(self, noise_key: Key, sampling_key: Key) -> None:
        self.given: dict[str, Key] = {
            name: key if key is None or callable(key) else checked_key(key, name)
            for name, key in (("noise_key", noise_key), ("sampling_key", sampling_key))
        }
        self._process = os.getpid()

    def draw(self) -> Keys:
        """Draw the keys of the run that begins now; given ones are refused in a fork: others have them."""
        if os.getpid() != self._process and any(isinstance(key, bytes) for key in self.given.values()):
            raise GuaranteeError(
                f"process {self._process} was given the keys, and process {os.getpid()} is a fork of it: make"
                " the engine in the fork, with keys of its own (or none)."
            )
        drawn = {
            name: new_key() if key is None else checked_key(key() if callable(key) else key, name)
            for name, key in self.given.items()
        }
        if drawn["noise_key"] == drawn["sampling_key"]:
            raise ValueError("noise_key and sampling_key are equal: pass two different keys, or none.")
        theirs = tuple(name for name, key in self.given.items() if key is not None)
        return Keys(drawn["noise_key"], drawn["sampling_key"], theirs)

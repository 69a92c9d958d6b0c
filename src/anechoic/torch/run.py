"""Private run: the objects of one make_private, and their keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import nn

from anechoic.batches.base import Batches
from anechoic.budget.book import BudgetBook, booked
from anechoic.errors import MismatchError, ReplayError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs import digest_key_of, identity_of
from anechoic.runs.digests import digest_of
from anechoic.runs.fork_guard import NonPicklable
from anechoic.runs.ledger import BatchHooks, Delivery, ReleaseLedger
from anechoic.torch.history import History
from anechoic.torch.keys import Keys
from anechoic.torch.loading.loader import PrivateDataLoader
from anechoic.torch.noise_adder import NoiseAdder, SumArithmetic
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.optimizer_kinds import tell_noise
from anechoic.torch.run_journal import RunJournal
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
        self.optimizer.expect(mechanism)
        tell_noise(self.optimizer.original_optimizer, mechanism, self.optimizer.loss_reduction)

    # -- around the work on a batch --------------------------------------------------------------

    def on_first_batch(self) -> None:
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

    def drawn(self, noise: Mapping[str, Any] | None) -> str:
        """Return a keyed digest of the next batch, and of `noise`, a state that is not saved."""
        batches = self.loader.feed.batches
        return _drawn(noise, batches, self.ledger.releases, self.mechanism, self.keys.noise)

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
        if _drawn(again, batches, state.step, self.mechanism, noise_key) != drawn:
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


def _drawn(
    noise: Mapping[str, Any] | None, batches: Batches, step: int, mechanism: Mechanism, noise_key: bytes
) -> str:
    parts: list[Any] = [np.frombuffer(batches.trace(min(step, mechanism.steps - 1)), np.uint8)]
    if noise is not None:
        parts += [bits(torch.as_tensor(noise["rows"]).detach()).cpu().numpy()]
    return digest_of(parts, digest_key_of(noise_key))

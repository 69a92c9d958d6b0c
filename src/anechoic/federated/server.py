"""Server of a federated run: it asks clients that may take part, and releases models with noise."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from anechoic._validate import Array, positive_int
from anechoic.budget.book import BudgetBook, booked
from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError
from anechoic.federated.client_selection import RecentAttempts, chosen
from anechoic.federated.clients import Clients
from anechoic.federated.compatibility import asked_per_round, check_fewest, check_fits
from anechoic.federated.flat_parameters import Layout
from anechoic.federated.ledger import ParticipationLedger
from anechoic.federated.optimizers import SGD, ServerOptimizer
from anechoic.federated.participation_policy import ParticipationPolicy
from anechoic.federated.report import RunReport, statement_of_run
from anechoic.federated.round import Model, OpenRound, RoundResult
from anechoic.federated.state import RunInMemory, RunStanding, RunTally
from anechoic.federated.store import RunStore, mechanism_in
from anechoic.keys import derive
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.pin_to_saved import pin_to_saved
from anechoic.mechanism.rows import NoiseRows
from anechoic.noise.grid import spacing
from anechoic.runs.fork_guard import ProcessBound, ProcessGuard, single_process
from anechoic.runs.settings_check import MECHANISM, checked_setting
from anechoic.runs.state_file import Key, opened
from anechoic.units.ids import plain_id
from anechoic.workloads import prefix_sum


class Server(ProcessBound):
    """Federated averaging with differential privacy for whole clients, enforced here.

    A round is `ask`, then `OpenRound.add` for every reply, then `close`. Who is asked is charged before
    anything is sent; updates are clipped, added up as integers with equal weights and divided by the constant
    `clients_per_round`; one row of correlated noise is added before the server optimiser.

    Guarantee: all models together are (epsilon, delta)-DP for one client, whose updates are zero wherever it
    takes part or are others, also where updates and who is there depend on earlier models; see
    docs/proofs/sensitivity.md#federated-rounds. Who is there and who answers is not protected. The server
    is trusted with updates and noise.

    Args:
        initial: model by name, as `Layout.of` reads it.
        mechanism: as `plan_rounds` makes it: External(policy.participation, clients_per_round, rounds).
        policy: `Cohorts` or `MinSeparation`.
        clients_per_round: replies that a round takes, and the divisor of every sum, >= 1 (m).
        over_selection: how many more are asked, and charged, as a part of m, >= 0: with .3 a round asks
            1.3 m clients and is full with the first m replies, so that it waits for no straggler.
        clip_norm: for a check: that of the mechanism.
        optimizer: of the server.
        min_replies: fewest clients that a round is begun with, and that must answer for a release.
        exclude: names of arrays that are sent but not trained.
        state: a directory by which the run outlives this process; see `store.RunStore`.
        key: 32 secret bytes or a function that gives them, which are then not in the state. Noise follows
            from the key and from what is drawn whenever a run is begun or opened: no two servers of one key
            share any.
        adopt: take a state that was moved or copied.
        setting: what else must be the same whenever the state is opened, as plain data: how clients are
            known, say.
        book: a `BudgetBook`, which refuses the run, or books it: once, as long as its newest state is opened.

    Attributes:
        mechanism, policy, layout, clients_per_round, min_replies, optimizer: as given.
        asked_per_round: most clients asked in a round.
        folder: the state directory, as an absolute path; None without one.

    Raises:
        ValueError: for an argument out of range or of another kind.
        MismatchError: for a mechanism that is for something else than these rounds.
        CheckpointError, GuaranteeError: as `store.RunStore`, for a state that cannot be continued;
            GuaranteeError also where the book does not cover the run.
    """

    _state: RunInMemory | RunStore

    def __init__(
        self,
        initial: Mapping[str, np.ndarray[Any, Any]],
        *,
        mechanism: Mechanism,
        policy: ParticipationPolicy,
        clients_per_round: int,
        over_selection: float = 0.0,
        clip_norm: float | None = None,
        optimizer: ServerOptimizer | None = None,
        min_replies: int = 1,
        exclude: Collection[str] = (),
        state: str | os.PathLike[str] | None = None,
        key: Key = None,
        adopt: bool = False,
        setting: Mapping[str, Any] | None = None,
        book: BudgetBook | None = None,
    ) -> None:
        check_fits(mechanism, policy, clients_per_round, clip_norm)
        self.mechanism, self.policy = pin_to_saved(mechanism, mechanism_in(state)), policy
        self.clients_per_round = positive_int("clients_per_round", clients_per_round)
        self.asked_per_round = asked_per_round(self.clients_per_round, over_selection)
        self.min_replies = check_fewest(min_replies, self.clients_per_round)
        self.optimizer = SGD() if optimizer is None else optimizer
        if not isinstance(self.optimizer, ServerOptimizer):
            raise ValueError(f"optimizer={optimizer!r} must be a ServerOptimizer, such as FedAdam(lr=0.1).")
        self.layout = Layout.of(initial, exclude)
        self._setting = checked_setting(setting)
        self._like = {name: np.array(array) for name, array in initial.items()}
        self.owner, self._failed = ProcessGuard("server"), False
        if book is not None:
            book.check(self.mechanism)  # before a state is begun
        self._start(state, key=key, adopt=adopt)
        self._booked = None if book is None else booked(book, self.mechanism, self._state)

    def _start(self, state: str | os.PathLike[str] | None, **how: Any) -> None:
        shown = {MECHANISM: self.mechanism.to_json()}
        self._state = opened(RunStore, RunInMemory, state, identity=self._identity(), shown=shown, **how)
        self._key = self._state.key
        self.folder = None if state is None else os.path.abspath(state)
        try:
            noise = derive(self._key, f"federated noise {self.mechanism.fingerprint}", size=32)
            self._noise = NoiseRows(self.mechanism, self.layout.dimension, noise, self._state.openings)
            self._ledger = ParticipationLedger(self.policy, self._key, self._state.entries())
            self._round: OpenRound | None = None
            self._attempts = RecentAttempts()
            self._standing = self._state.load() or self._first()
            self._remember()
            self._like.update(self._standing.fixed)
        except BaseException:
            self._state.close()
            raise

    def _first(self) -> RunStanding:
        vector = self.layout.flatten(self._like)
        fixed = {name: self._like[name] for name in self.layout.excluded}
        return RunStanding(0, 0, None, vector, self.optimizer.start(len(vector)), fixed, RunTally())

    def _remember(self) -> None:
        """The noise as it was: from the last snapshot of its memory, and the rows since then once more."""
        self._state.remember(self._noise)
        self._snapshot = self._noise.state.step
        while self._noise.state.step < self.step:
            self._noise.next()

    @property
    def step(self) -> int:
        """Releases made, which is the index of the open step."""
        return self._standing.step

    @property
    def finished(self) -> bool:
        """Whether all rounds of the mechanism are released."""
        return self.step >= self.mechanism.steps

    @property
    def model(self) -> Model:
        """Model as released last, by name; new arrays."""
        return self.layout.unflatten(self._standing.model, self._like)

    @property
    def clip_norm(self) -> float:
        """Largest 2-norm of one client's update, over all trained arrays together."""
        return self.mechanism.clip_norm

    @property
    def grid_bits(self) -> int:
        """What clients put their updates on the grid with: see `to_grid`."""
        return self._noise.bits

    def clients(self, available: Any) -> Clients:
        """Look the clients of these ids up once: `ask` then takes milliseconds for a million of them."""
        return self._ledger.clients(available)

    @single_process
    def ask(self, available: Any) -> OpenRound:
        """Choose clients for the open step, charge them, and commit that; then the caller may send.

        A round that was not closed, in this process or the one before, is asked for again: with the same
        clients, whoever is there now, and without the replies so far.

        Args:
            available: ids of clients that are there, or what `clients` made of them. An id is an integer,
                text or bytes, and names the unit of privacy for as long as it may come back.

        Raises:
            TooFewClients: if fewer than `min_replies` of them may take part.
            HorizonError: if all rounds are released.
            ValueError: for something that is no list of ids.
            GuaranteeError: in a fork, or after a failure that left the state behind.
        """
        self._check_whole()
        if self.finished:
            raise HorizonError(
                f"all rounds of this run ({self.mechanism.steps}) are released, and another one would not be"
                " covered by its guarantee. Begin another run, whose privacy cost adds to this one's."
            )
        standing = self._standing
        if standing.asked is not None:
            return self._opened(resumed=True)
        clients = available if isinstance(available, Clients) else self._ledger.clients(available)
        bounds = {"most": self.asked_per_round, "fewest": self.min_replies}
        place = standing.step, standing.attempt
        picked = chosen(self._ledger, clients, *place, **bounds, key=self._key, earlier=self._attempts)
        after = _copy(standing)
        after.asked = tuple(map(plain_id, picked.ids))
        self._failed = True
        with self._state.transaction():
            self._state.charge(self._ledger.charge(picked, standing.step))
            self._state.save(after)
        self._standing, self._failed = after, False
        return self._opened(resumed=False)

    def _opened(self, *, resumed: bool) -> OpenRound:
        standing = self._standing
        if self._round is not None:
            self._round.open = False
        numbers = (standing.step, standing.attempt)
        self._round = OpenRound(
            *numbers,
            standing.asked or (),
            resumed=resumed,
            model=self.model,
            layout=self.layout,
            clip_norm=self.clip_norm,
            grid_bits=self.grid_bits,
            name=derive(self._key, f"federated round {self._state.salt.hex()}", *numbers, size=16).hex(),
            target=self.clients_per_round,
        )
        return self._round

    @single_process
    def close(self, asked: OpenRound) -> RoundResult:
        """End a round. With `min_replies` answers its sum is released, and one row of noise used; else not.

        Raises:
            DesynchronizedError: for a round that is over, or of another server.
            GuaranteeError: as `ask`.
        """
        self._check_whole()
        if asked is not self._round or not asked.open:
            raise DesynchronizedError(
                f"the round of step {asked.step}, attempt {asked.attempt}, is not the open one: it was"
                " closed, or asked for again. Close what `ask` returned last, once."
            )
        enough = asked.answered >= self.min_replies
        if enough and self._booked is not None:
            self._booked.begin(self.step + 1)
        asked.open = False
        self._failed = True  # until all is done: what is in memory may be between two steps
        after = _copy(self._standing)
        with self._state.transaction():
            update = self._end(after, asked, enough)
        self._standing, self._failed = after, False
        self._round = None
        if enough:
            self._attempts = RecentAttempts()
        else:
            self._attempts.note(asked.clients, asked.present)
        counts = len(asked.clients), asked.answered, asked.counted
        return RoundResult(enough, asked.step, *counts, Counter(asked.reasons), update, self.model)

    def _end(self, standing: RunStanding, asked: OpenRound, enough: bool) -> Array | None:
        standing.tally.replies += asked.answered
        standing.tally.refused += asked.reasons
        standing.asked = None
        if enough:
            return self._release(standing, asked)
        standing.tally.short += 1
        standing.attempt += 1
        self._state.save(standing)
        return None

    def _release(self, standing: RunStanding, asked: OpenRound) -> Array:
        noisy = asked.total + self._noise.next()
        scale = spacing(self.clip_norm, self.grid_bits) / self.clients_per_round
        update: Array = np.multiply(noisy, scale, dtype=np.float64)
        standing.model, standing.memory = self.optimizer.advance(
            standing.model, update, standing.memory, standing.step
        )
        standing.step += 1
        standing.attempt = 0
        if standing.step - self._snapshot >= self._state.rows_between(self._noise.rows):
            self._state.save_noise(self._noise)
            self._snapshot = standing.step
        self._state.save_model(standing)
        return update

    def lengths(self) -> tuple[float, float]:
        """Return (noise in the sum of all rounds, all updates of them at most): 2-norms in clip norms.

        Where the first is the longer one a model learns next to nothing.
        """
        mechanism, n = self.mechanism, self.mechanism.steps
        std = mechanism.noise_std * error(prefix_sum(n), mechanism.strategy).last
        return std * math.sqrt(self.layout.dimension), float(n * self.clients_per_round)

    def report(self) -> RunReport:
        """Report on a run so far, to the operator: it says who was there, which is not protected."""
        return RunReport.of(self._standing, self.mechanism, self._ledger.summary())

    def plot(self) -> Any:
        """Plot noise and epsilon over the rounds, with those released so far marked: see `Mechanism.plot`."""
        return self.mechanism.plot(releases=self.step)

    def statement(self) -> str:
        """State, as text, what the server enforces, and the mechanism's statement; no data set is named."""
        run = self.report(), self.mechanism, self.policy, self.clients_per_round
        return statement_of_run(*run, durable=self.folder is not None)

    def shut(self) -> None:
        """Close the state; it can be opened again."""
        self._give_back()

    def _identity(self) -> str:
        """What must be the same whenever a state is opened."""
        return json.dumps(
            {
                "mechanism": {
                    "rounds": self.mechanism.steps,
                    "noise_std": self.mechanism.noise_std,
                    "clip_norm": self.mechanism.clip_norm,
                    "fingerprint": self.mechanism.fingerprint,
                },
                "policy": self.policy.describe(),
                "optimizer": self.optimizer.describe(),
                "layout": [[e.name, e.shape, e.dtype] for e in self.layout.entries],
                "excluded": self.layout.excluded,
                "setting": self._setting,
            },
            sort_keys=True,
        )

    def _check_whole(self) -> None:
        if self._failed:
            raise GuaranteeError(
                "a round failed half-way: what is in memory is between two steps, and another row of"
                " noise would not be the one that its step has. Open the state again: the round has the"
                " same clients. Without a state the run is over."
            )

    def __repr__(self) -> str:
        return f"Server(step {self.step} of {self.mechanism.steps}, {self.layout.dimension} parameters)"


def _copy(standing: RunStanding) -> RunStanding:
    """To be changed, and to take the place of `standing` once that is committed."""
    return replace(standing, tally=replace(standing.tally, refused=Counter(standing.tally.refused)))

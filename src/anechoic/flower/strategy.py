"""Flower's side of the server: a `Strategy` that translates between messages and `federated.Server`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from anechoic._validate import flag, positive_int
from anechoic.budget.book import BudgetBook
from anechoic.errors import GuaranteeError, HorizonError
from anechoic.federated.client_selection import TooFewClients
from anechoic.federated.clients import ClientId
from anechoic.federated.flat_parameters import Layout
from anechoic.federated.optimizers import ServerOptimizer
from anechoic.federated.participation_policy import ParticipationPolicy, checked_policy
from anechoic.federated.planning import Choice
from anechoic.federated.report import RunReport
from anechoic.federated.round import OpenRound
from anechoic.federated.server import Server
from anechoic.federated.store import check_folder
from anechoic.flower.exchange import ClientWait, MessageExchange
from anechoic.flower.identity import ClientIdentity, Roll
from anechoic.flower.log_lines import of_round, of_run, of_start
from anechoic.flower.mechanism_choice import MechanismChoice
from anechoic.flower.records import arrays_of, record_of
from anechoic.flower.rounds import Sent, add_replies, messages_of
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.objective import Kept
from anechoic.runs.state_file import Key
from anechoic.sampling.base import counted

_log = getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class CorrelatedFedOpt(Strategy):
    """Federated averaging and FedOpt with correlated noise, private for whole clients.

    Use it where `FedAvg` stood, with `anechoic.flower.client.clipped_update_mod` at the clients. All rules
    that keep the guarantee are those of `anechoic.federated.Server`: equal weights, a constant divisor, noise
    before the server optimiser, participations charged before anything is sent, rows and releases committed
    before a model leaves.

    Rounds are counted from 1 as Flower counts them; round r releases step r - 1. A round in which too few
    answer releases nothing and is repeated with others.

    Args:
        identity: how a client is known again: `PublicKeys()`, `Partitions()` in simulations, or `Labels(…)`.
        policy: `Cohorts` or `MinSeparation`.
        clients_per_round: replies that a round takes, and the divisor of every sum (m).
        over_selection: how many more are asked, and charged, as a part of m: with .3 a round asks 1.3 m
            clients and is over with the first m replies. With 0 it waits for all m, or until
            `timeout` of `start`.
        clip_norm: largest 2-norm of one client's update, over all trained arrays together.
        mechanism: ready-made, of External sampling; or one to plan from the next six, by its name in
            `plan_rounds`, None for "auto":
        rounds: releases in all (n).
        population: clients in all (N).
        epsilon: of the whole run, for one client.
        delta: None for 1 / population**1.1, which is refused for fewer than 534 clients.
        memory_budget: bytes of noise, as in `plan_rounds`.
        keep: which models the plan is for, as in `plan_rounds`.
        optimizer: of the server; None for SGD(1.0), which is federated averaging. A plan reads its momentum
            and its learning rates.
        min_replies: fewest answers for a release.
        exclude: names of arrays that are sent but not trained.
        state: absolute path of a directory by which the run outlives this process; key, adopt, book: as
            in `Server` (without a state, a key is for one run only).
        min_available: clients to wait for before a round; None for `clients_per_round`.
        patience: seconds that one round may take, waiting and repeating, before the run stops.

    Attributes:
        server: `federated.Server`, from the first round on; None before.
        stopped: why `start` ended before its last round; None if it did not.

    Raises:
        ValueError: for neither or both of a mechanism and what to plan one from, and for relative paths;
            for arguments out of range here or in `open`.
    """

    def __init__(
        self,
        *,
        identity: ClientIdentity,
        policy: ParticipationPolicy,
        clients_per_round: int,
        clip_norm: float,
        over_selection: float = 0.0,
        mechanism: Mechanism | Choice | None = None,
        rounds: int | None = None,
        population: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        memory_budget: float | None = None,
        keep: Kept | float = "last",
        optimizer: ServerOptimizer | None = None,
        min_replies: int = 1,
        exclude: Collection[str] = (),
        state: str | os.PathLike[str] | None = None,
        key: Key = None,
        adopt: bool = False,
        min_available: int | None = None,
        patience: float = 600.0,
        book: BudgetBook | None = None,
    ) -> None:
        if not isinstance(identity, ClientIdentity):
            raise ValueError(
                f"identity={identity!r} must say how a client is known again: PublicKeys() where the"
                " SuperLink authenticates nodes, Partitions() in a simulation, or Labels(function). A node"
                " id does not last."
            )
        self.identity, self.policy = identity, checked_policy(policy)
        self.clients_per_round = positive_int("clients_per_round", clients_per_round)
        self.clip_norm = clip_norm
        self.server: Server | None = None
        self.stopped: str | None = None
        plan: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "memory_budget": memory_budget}
        plan |= {"keep": keep, "over_selection": over_selection, "optimizer": optimizer}
        self._design = MechanismChoice(mechanism, rounds, population, plan)
        for remark in self._design.remarks(policy):
            _log.warning("%s", remark)
        if isinstance(state, str | os.PathLike) and not os.path.isabs(state):
            raise ValueError(
                f"state={os.fspath(state)!r} is relative, and a ServerApp runs where its SuperLink was"
                " started: from another folder it would be another run, with an empty ledger, and spend"
                f" epsilon once more. Give the absolute path, here {os.path.abspath(state)!r}."
            )
        if state is not None:
            check_folder(state)
        self._exclude = exclude
        self._server_options: dict[str, Any] = {
            "optimizer": optimizer,
            "min_replies": min_replies,
            "state": state,
            "key": key,
            "over_selection": over_selection,
            "adopt": flag("adopt", adopt),
            "book": book,
            "setting": {"identity": identity.describe()},
        }
        available = self.clients_per_round if min_available is None else min_available
        self._waiting = ClientWait(positive_int("min_available", available), patience)
        self._exchange = MessageExchange(timeout=3600.0)
        self._round: tuple[OpenRound, Sent] | None = None
        self._roll: Roll | None = None

    def open(self, initial_arrays: ArrayRecord) -> Server:
        """Make the server, or continue the one of `state`; called by the first round.

        Args:
            initial_arrays: the model to begin with. A run that goes on has one of its own, which must have
                the same names, shapes and types.

        Raises:
            ValueError, MismatchError, CheckpointError: as `plan_rounds` and `Server` say.
        """
        if self.server is None:
            initial = arrays_of(initial_arrays)
            of_run: dict[str, Any] = {
                "policy": self.policy,
                "clients_per_round": self.clients_per_round,
                "clip_norm": self.clip_norm,
            }
            size = Layout.of(initial, self._exclude).dimension
            mechanism = self._design.mechanism_for(unit=self.identity.unit, dimension=size, **of_run)
            options = {"exclude": self._exclude, **of_run, **self._server_options}
            self.server = Server(initial, mechanism=mechanism, **options)
        return self.server

    def close(self) -> None:
        """Give the state back, so that another process can continue. Reports stay readable."""
        if self.server is not None:
            self.server.shut()

    def report(self) -> RunReport:
        """What happened so far, from the first start on.

        Raises:
            GuaranteeError: before the first round, when there is no server yet.
        """
        return self._opened().report()

    def statement(self) -> str:
        """What is guaranteed to whom, what is asked of whom, and what is not protected.

        Raises:
            GuaranteeError: before the first round, when there is no server yet.
        """
        return f"{self._opened().statement()}\n\nFLOWER\n{'Clients':<21}{self.identity.sentence}"

    def _opened(self) -> Server:
        if self.server is None:
            raise GuaranteeError("no round has begun: call start or open first.")
        return self.server

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose clients, charge them, and write a message for each that is there; none after all rounds.

        `arrays` is the model to begin with, in the first round. Later models are the server's own.

        Raises:
            TooFewClients: where too few clients may take part, also after waiting.
        """
        server = self.open(arrays)
        if server.finished:
            return []
        asked, places = self._ask(server, partial(self.identity.places, grid, self._exchange))
        # `fresh`: a node whose user is known by a label may serve another one tomorrow
        ask = {"exclude": list(self._exclude), "fresh": self.identity.unit == "user"}
        sent = messages_of(asked, places, server_round, config, ask)
        self._round = asked, sent
        _log.info(
            "configure_train: asked %s, of which %d are there%s",
            counted(len(asked.clients), "client"),
            len(sent),
            " (a round that was not closed is repeated)" if asked.resumed else "",
        )
        return [message for _, message in sent]

    def _ask(
        self, server: Server, look: Callable[[], Mapping[ClientId, int]]
    ) -> tuple[OpenRound, Mapping[ClientId, int]]:
        if self._roll is None:
            self._roll = Roll(server)
        there = self._waiting.for_enough(look)
        while True:
            try:
                return server.ask(self._roll.of(there)), there
            except TooFewClients as error:
                if error.there >= (self._design.population or math.inf):
                    _log.error(
                        "all %d clients of the population are there, and none of them but %d can be asked now"
                        " or ever: no round can begin any more",
                        error.there,
                        error.allowed,
                    )
                    raise
                self._waiting.say(str(error))
                others = self._waiting.for_others(there, look)
                if others is None:
                    raise
                there = others

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and add up replies, and release the next model if enough clients answered; else None."""
        server, opened = self._opened(), self._round
        if opened is None:
            return None, None
        self._round = None
        add_replies(*opened, replies)
        closed = server.close(opened[0])
        for level, line in of_round(closed, self.clients_per_round, server.min_replies):
            _log.log(level, "aggregate_train: %s", line)
        if not closed.released:
            return None, None
        return record_of(closed.model), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No message: what clients answered would have no protection."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None: no client evaluates."""
        return None

    def summary(self) -> None:
        """Log what is guaranteed and enforced, and where the run is; what is known before the first round."""
        known = [f"Policy: {self.policy!r}", self.identity.sentence]
        for line in known if self.server is None else of_run(self.server, self.identity):
            _log.info("\t├──> %s", line)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run to the last round, from wherever the state is.

        Args:
            grid: to send messages by.
            initial_arrays: the model to begin with; see `open`.
            num_rounds: releases in all, with those before a restart; None for all that the mechanism covers.
            timeout: seconds to wait for the replies of a round.
            train_config: for the training function of the clients.
            evaluate_config: ignored: clients do not evaluate.
            evaluate_fn: evaluates released models at the server, which costs no privacy if it sees no data
                of clients. Called for the first model too, but not again after a restart.

        Returns:
            Flower's own record of a run. Metrics are those since the last restart.

        Raises:
            HorizonError: for more rounds than the mechanism covers.
            ValueError: for arguments out of range.
        """
        server = self.open(initial_arrays)
        last = self._last_round(num_rounds)
        self._exchange = MessageExchange(timeout=timeout)
        _log.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        for line in of_start(server, last):
            _log.warning("%s", line)
        began, result = time.monotonic(), Result(arrays=record_of(server.model))
        if server.step == 0:
            _evaluate(evaluate_fn, 0, result)
        self.stopped = None
        self._waiting.begin()
        while server.step < last and self.stopped is None:
            current = server.step + 1
            _log.info("[ROUND %d/%d]", current, last)
            arrays = self._train(current, result.arrays, train_config or ConfigRecord(), grid)
            if arrays is not None:
                self._waiting.begin()
                result.arrays = arrays
                _evaluate(evaluate_fn, current, result)
        if server.step < last:
            _log.warning("Stopped after %d of %d rounds: %s", server.step, last, self.stopped)
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        return result

    def _train(
        self, current: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> ArrayRecord | None:
        """One round; the model where it is released. Else `stopped` says why there is no other, if so."""
        try:
            asked = self.configure_train(current, arrays, config, grid)
        except TooFewClients as error:
            self.stopped = str(error)
            return None
        released, _ = self.aggregate_train(current, self._exchange(grid, list(asked)))
        if released is None and not self._waiting.after_short():
            self.stopped = f"too few clients answered in {self._waiting.patience:g} seconds (patience)"
        return released

    def _last_round(self, num_rounds: int | None) -> int:
        steps = self._opened().mechanism.steps
        if num_rounds is None:
            return steps
        if positive_int("num_rounds", num_rounds) > steps:
            raise HorizonError(
                f"num_rounds={num_rounds} exceeds the {counted(steps, 'round')} that the mechanism covers:"
                " plan it for so many, before the run begins."
            )
        return num_rounds


def _evaluate(evaluate_fn: EvaluateFn | None, current: int, result: Result) -> None:
    found = None if evaluate_fn is None else evaluate_fn(current, result.arrays)
    if found is not None:
        _log.info("\t└──> round %d: %s", current, dict(found))
        result.evaluate_metrics_serverapp[current] = found

"""The loop over rounds: until the last one is released, or the patience of one of them is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from anechoic.federated.client_selection import TooFewClients
from anechoic.federated.server import Server
from anechoic.flower.exchange import ClientWait, MessageExchange
from anechoic.flower.records import record_of

_log = getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class RoundLoop:
    """Rounds of a strategy over a grid, from wherever its server is.

    Attributes:
        strategy: writes the messages of a round, and reads what comes back.
        server: of the strategy.
        grid, exchange: to send by.
        waiting: for clients, and between short rounds.
        train_config: for the training function of the clients.
        evaluate_fn: for released models, or None.
        stopped: why it ended before the last round; None if it did not.
    """

    strategy: Strategy
    server: Server
    grid: Grid
    exchange: MessageExchange
    waiting: ClientWait
    train_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    stopped: str | None = None

    def until(self, last: int) -> Result:
        """Go on until `last` rounds are released, or no more can be; Flower's own record of it."""
        began = time.monotonic()
        result = Result(arrays=record_of(self.server.model))
        if self.server.step == 0:
            self._evaluate(0, result)
        self.waiting.begin()
        while self.server.step < last and self.stopped is None:
            current = self.server.step + 1
            _log.info("[ROUND %d/%d]", current, last)
            arrays = self._train(current, result.arrays)
            if arrays is not None:
                self.waiting.begin()
                result.arrays = arrays
                self._evaluate(current, result)
        if self.server.step < last:
            _log.warning("Stopped after %d of %d rounds: %s", self.server.step, last, self.stopped)
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        return result

    def _train(self, current: int, arrays: ArrayRecord) -> ArrayRecord | None:
        try:
            asked = self.strategy.configure_train(current, arrays, self.train_config, self.grid)
        except TooFewClients as error:
            self.stopped = str(error)
            return None
        released, _ = self.strategy.aggregate_train(current, self.exchange(self.grid, list(asked)))
        if released is None and not self.waiting.after_short():
            self.stopped = f"too few clients answered in {self.waiting.patience:g} seconds (patience)"
        return released

    def _evaluate(self, current: int, result: Result) -> None:
        found = None if self.evaluate_fn is None else self.evaluate_fn(current, result.arrays)
        if found is not None:
            _log.info("\t└──> round %d: %s", current, dict(found))
            result.evaluate_metrics_serverapp[current] = found

"""One round, in which the server sees every update, or with masks their sum alone.

A masked round carries the stages of `secure_sum` over Flower's messages.

Model and configuration travel with the stage of masked vectors, when clients train. Digests of them are sent
with the first stage and bound into every mask: between clients that were sent different ones no mask cancels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from anechoic.federated import secure_sum
from anechoic.federated.clients import ClientId
from anechoic.federated.round import Asked
from anechoic.federated.secure_sum import Stage
from anechoic.federated.secure_sum.terms import least_threshold
from anechoic.flower.exchange import Exchange
from anechoic.flower.messages import Letters
from anechoic.flower.records import (
    HELD,
    MASKED,
    METRICS,
    TRAIN,
    digest_of_arrays,
    digest_of_config,
    read,
    record_of,
    vector_of,
)

_log = getLogger("flwr")

# The one field of a message that is as large as the model: it travels as an array.
_LARGE = "vector"


class PlainRound:
    """An open round, and the unprotected numbers that came back.

    Attributes:
        asked: of the server.
    """

    def __init__(self, asked: Asked, letters: Letters) -> None:
        self.asked = asked
        self._letters = letters
        self._metrics: dict[ClientId, dict[str, float]] = {}

    def messages(self) -> list[Message]:
        """To every client that was asked and is there."""
        return self._letters.write(self.asked.clients, TRAIN, model=True)

    def take(self, replies: Iterable[Message]) -> None:
        """Give each reply to the server, which refuses what it must, until it has enough of them."""
        for client, sent in self._letters.answered(
            replies, lambda found: (vector_of(found), _numbers(found))
        ):
            vector, numbers = (None, {}) if sent is None else sent
            # no `round`: the message that it answers binds a reply to this round, whatever it says of itself
            if self.asked.add(client, vector) is None:
                self._metrics[client] = numbers
            if self.asked.full:
                return

    def mean_metrics(self, names: Collection[str]) -> MetricRecord | None:
        """Means over the clients that sent each of the numbers; None where nobody sent any."""
        means: dict[str, float] = {}
        for name in names:
            values = [found[name] for found in self._metrics.values() if name in found]
            if values:
                means[name] = sum(values) / len(values)
        return MetricRecord(means) if means else None  # type: ignore[arg-type]


class MaskedRound:
    """An open round whose replies are added up under masks.

    The threshold is two thirds of those that were *asked*, whoever of them is still there: after a restart,
    or where most have gone, there is no sum of the few that are left.

    Args:
        smallest_sum: fewest clients in a sum.

    Attributes:
        asked: of the server.
        blamed: a client whose secrets did not fit what it had sent before, so that no sum could be made.
    """

    def __init__(
        self,
        asked: Asked,
        letters: Letters,
        *,
        dimension: int,
        grid: Grid,
        exchange: Exchange,
        smallest_sum: int,
    ) -> None:
        self.asked = asked
        self._letters, self._grid, self._exchange = letters, grid, exchange
        bits = int(asked.config["grid_bits"])
        letters.ask = {
            **letters.ask,
            "dimension": dimension,
            "model": digest_of_arrays(letters.arrays),
            "config": digest_of_config(letters.config),
        }
        reached = [client for client in asked.clients if client in letters.places]
        threshold = max(smallest_sum, least_threshold(len(asked.clients)))
        self.blamed: ClientId | None = None
        self._sum: secure_sum.SumServer | None = None
        if len(reached) >= threshold:
            self._sum = secure_sum.SumServer(
                reached,
                dimension=dimension,
                grid_bits=bits,
                threshold=threshold,
                smallest_sum=smallest_sum,
                context=context_of(letters.ask),
            )
        spare = max(0, len(reached) - asked.target)
        #: Replies at which a stage is closed: those who were asked beyond the target may be lost on the way.
        self._enough = {
            Stage.KEYS: asked.target + -(-2 * spare // 3),
            Stage.SHARES: asked.target + -(-spare // 3),
            Stage.MASKED: asked.target,
        }

    def messages(self) -> list[Message]:
        """Those of the first stage; none where too few of those asked are there."""
        return [] if self._sum is None else self._stage(self._sum)

    def take(self, replies: Iterable[Message]) -> None:
        """Answers to the first stage; carries the further ones out, and gives the sum to the server.

        Where too few clients answer a stage, nobody has answered the round.
        """
        if self._sum is None:
            return
        while True:
            self._read(self._sum, replies)
            if not self._sum.advance() or self._sum.stage is None:
                break
            replies = self._exchange(self._grid, self._stage(self._sum))
        try:
            found = self._sum.result()
        except secure_sum.Aborted as error:
            _log.warning("the masked sum of this round is given up: %s", error)
            self.blamed = error.client  # type: ignore[assignment]
            return
        members: list[Any] = list(found.clients)
        self.asked.add_sum(found.vector, members)

    def _stage(self, server: secure_sum.SumServer) -> list[Message]:
        requests = server.requests()
        return self._letters.write(
            requests,  # type: ignore[arg-type]
            MASKED,
            model=server.stage is Stage.MASKED,
            more={client: records_of(request) for client, request in requests.items()},
        )

    def _read(self, server: secure_sum.SumServer, replies: Iterable[Message]) -> None:
        self.asked.present.clear()  # who is here is who answers the last stage
        for client, fields in self._letters.answered(replies, fields_of):
            refused = server.receive(client, fields)
            if refused is not None:
                _log.warning("a masked reply was refused: %s", refused)
                continue
            self.asked.present.add(client)
            if server.enough(self._enough.get(server.stage)):  # type: ignore[arg-type]
                return

    def mean_metrics(self, names: Collection[str]) -> MetricRecord | None:
        """None: no number of a single client leaves it."""
        return None


def records_of(message: Mapping[str, Any]) -> RecordDict:
    """A message of the protocol as Flower's records."""
    small = {name: value for name, value in message.items() if name != _LARGE}
    records = RecordDict({MASKED: ConfigRecord(small)})
    if _LARGE in message:
        data = message[_LARGE]
        records[_LARGE] = record_of({_LARGE: np.frombuffer(data, np.uint8)})
    return records


def fields_of(content: RecordDict) -> dict[str, Any] | None:
    """The message of the protocol in Flower's records; None where there is none, which is refused later.

    Raises:
        UnreadableError: for a vector that is no array.
    """
    small = content.get(MASKED)
    if not isinstance(small, ConfigRecord):
        return None
    message = dict(small)
    large = content.get(_LARGE)
    if isinstance(large, ArrayRecord) and list(large) == [_LARGE]:
        message[_LARGE] = read(large[_LARGE]).tobytes()
    return message


def context_of(ask: Mapping[str, Any]) -> bytes:
    """What all clients of a round must have been told alike, as bytes."""
    names = ("round", "step", "attempt", "clip_norm", "grid_bits", "dimension", "model", "config", "exclude")
    return repr([(name, ask.get(name)) for name in names]).encode()


def client_id(client: ClientId) -> str:
    """A name for what a node keeps of one of its clients between stages."""
    return f"{HELD}masked {client!r}"


def _numbers(content: RecordDict) -> dict[str, float]:
    record = content.get(METRICS)
    if not isinstance(record, MetricRecord):
        return {}
    found = {}
    for name, value in record.items():
        try:
            found[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):  # lists, and integers beyond every float
            continue
    return found

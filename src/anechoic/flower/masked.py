"""One round in which the server sees the sum of updates alone: stages of `secure_sum` over Flower's messages.

The model travels with the stage of masked vectors, when clients train. A digest of it is sent with the first
stage and bound into every mask: between clients that were sent different models no mask cancels.
"""

from __future__ import annotations

import hashlib
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
from anechoic.flower.exchange import Exchange
from anechoic.flower.letters import Letters
from anechoic.flower.records import HELD, MASKED, UnreadableError, read, record_of

_log = getLogger("flwr")

# The one field of a message that is as large as the model: it travels as an array.
_LARGE = "vector"


class MaskedRound:
    """An open round whose replies are added up under masks.

    Attributes:
        asked: of the server.

    Args:
        signers: public keys of the clients, for a round that is signed.
    """

    def __init__(
        self,
        asked: Asked,
        letters: Letters,
        *,
        dimension: int,
        grid: Grid,
        exchange: Exchange,
        signers: Mapping[ClientId, bytes] | None = None,
    ) -> None:
        self.asked = asked
        self._letters, self._grid, self._exchange = letters, grid, exchange
        bits = int(asked.config["grid_bits"])
        letters.ask = {**letters.ask, "dimension": dimension, "model": digest_of(letters.arrays)}
        reached = [client for client in asked.clients if client in letters.places]
        self._sum: secure_sum.SumServer | None = None
        if len(reached) >= 2:
            self._sum = secure_sum.SumServer(
                reached,
                dimension=dimension,
                grid_bits=bits,
                context=context_of(letters.ask),
                identities=signers,
            )

    def messages(self) -> list[Message]:
        """Those of the first stage; none where fewer than two clients are there."""
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
        for client, reply in self._letters.answered(replies):
            if reply.has_error():
                _log.warning("a client answered with error %d", reply.error.code)
                continue
            refused = server.receive(client, fields_of(reply.content))
            if refused is not None:
                _log.warning("a masked reply was refused: %s", refused)

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
    """The message of the protocol in Flower's records; None where there is none, which is refused later."""
    small = content.get(MASKED)
    if not isinstance(small, ConfigRecord):
        return None
    message = dict(small)
    large = content.get(_LARGE)
    if isinstance(large, ArrayRecord) and list(large) == [_LARGE]:
        try:
            message[_LARGE] = read(large[_LARGE]).tobytes()
        except UnreadableError:
            return None
    return message


def digest_of(arrays: ArrayRecord) -> bytes:
    """SHA-256 of a model as it is sent."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        for part in (name.encode(), array.data):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
    return found.digest()


def context_of(ask: Mapping[str, Any]) -> bytes:
    """What all clients of a round must have been told alike, as bytes."""
    names = ("round", "step", "attempt", "clip_norm", "grid_bits", "dimension", "model", "exclude")
    return repr([(name, ask.get(name)) for name in names]).encode()


def client_id(client: ClientId) -> str:
    """A name for what a node keeps of one of its clients between stages."""
    return f"{HELD}masked {client!r}"

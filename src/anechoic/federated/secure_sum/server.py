"""The server's side of a masked sum."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.errors import AnechoicError
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Refused, Stage
from anechoic.federated.secure_sum.stages import Collecting, RoundKeys, Unmasking, Unrecoverable
from anechoic.federated.secure_sum.terms import SMALLEST_SUM, Terms, least_threshold

logger = logging.getLogger("anechoic")


class Aborted(AnechoicError):
    """A masked sum ended without a result; nothing was revealed but who took part.

    Attributes:
        client: whose secrets did not fit what it had sent before; None where too few answered.
    """

    def __init__(self, why: str, client: Hashable | None) -> None:
        super().__init__(why)
        self.client = client


@dataclass(frozen=True)
class SecureSum:
    """What the server learns of a round.

    Attributes:
        vector: int64, shape (dimension,): the sum of the clients' vectors, exactly, if none of them lied.
        clients: whose vectors it holds, in the order in which they were asked.
        round_id: of the round.
        wrong_shares: (owner, holder) of shares that were not the ones committed to and were not needed: one
            of the two lied.
    """

    vector: NDArray[np.int64]
    clients: tuple[Hashable, ...]
    round_id: bytes
    wrong_shares: tuple[tuple[Hashable, Hashable], ...] = ()


class SumServer:
    """The server of one round: asks, reads answers and goes on, stage by stage, over any transport.

        server = Server(clients, dimension=…, grid_bits=…)
        while server.stage is not None:
            for client, message in server.requests().items():
                …                                   # send; for each answer: server.receive(client, answer)
            server.advance()                        # whoever has not answered has dropped out
        total = server.result()                     # or raises Aborted

    It follows the protocol and reveals the sum to whoever runs it, and who answered which stage. It keeps
    nothing on disk: killed in the middle of a round, the round is lost.

    Args:
        clients: ids of those asked, distinct and hashable, at least 2; their order gives the seats 1 … n.
        dimension: entries of a vector, >= 0.
        grid_bits: each vector's 2-norm is at most 2**grid_bits, on the clients' word.
        threshold: how many clients have to answer every stage, more than two thirds of them, and at least
            `smallest_sum`. None: the least that is both.
        smallest_sum: fewest vectors in a sum, >= 2; clients have a smallest one of their own.
        context: bytes that all clients must have seen alike, such as a digest of the model they were sent.
        round_id: 1 to 64 bytes that no other round has. None: 16 random ones.

    Raises:
        ValueError: if an argument is out of range, or no ring holds the sum.
    """

    def __init__(
        self,
        clients: Sequence[Hashable],
        *,
        dimension: int,
        grid_bits: int,
        threshold: int | None = None,
        smallest_sum: int = SMALLEST_SUM,
        context: bytes = b"",
        round_id: bytes | None = None,
    ) -> None:
        self._seats = {client: seat for seat, client in enumerate(clients, start=1)}
        if len(self._seats) < len(clients):
            twice = next(client for client, times in Counter(clients).items() if times > 1)
            raise ValueError(f"client {twice!r} is asked twice: list every client once.")
        self._clients = {seat: client for client, seat in self._seats.items()}
        least = max(least_threshold(len(clients)), positive_int("smallest_sum", smallest_sum, minimum=2))
        if least > len(clients) or (threshold is not None and threshold < smallest_sum):
            raise ValueError(
                f"a sum of fewer than smallest_sum={smallest_sum} of {len(clients)} clients (threshold="
                f"{threshold}) would say much of each of them: ask more clients, or give smallest_sum= here"
                " and to the clients where you answer for it."
            )
        self.terms = Terms(
            clients=len(clients),
            dimension=dimension,
            grid_bits=grid_bits,
            threshold=least if threshold is None else threshold,
            context=context,
            round_id=os.urandom(16) if round_id is None else round_id,
        )
        self.refused: Counter[Reason] = Counter()
        self.aborted: str | None = None
        self._blamed: Hashable | None = None
        self._open: Collecting[Any] | None = RoundKeys(self.terms)
        self._result: SecureSum | None = None

    @property
    def stage(self) -> Stage | None:
        """The stage that is open, None when the round is over."""
        return None if self._open is None else self._open.stage

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """Clients that were asked in the open stage and have not answered."""
        if self._open is None:
            return ()
        return tuple(self._clients[seat] for seat in self._open.asked if seat not in self._open.answers)

    def requests(self) -> dict[Hashable, Message]:
        """Client → message, for every client that is `waiting`; empty when the round is over."""
        if self._open is None:
            return {}
        return {client: self._open.request(self._seats[client]) for client in self.waiting}

    def receive(self, client: Hashable, message: Any) -> Refused | None:
        """Reads one client's answer: None if it was taken, else why it was refused, which changes nothing.

        Args:
            client: whose message it is, as the transport knows it.
            message: whatever came.
        """
        try:
            if self._open is None:
                raise Refusal(Reason.STAGE, "the round is over")
            seat = self._seats.get(client)
            if seat is None:
                raise Refusal(Reason.FOREIGN, f"{client!r}")
            self._open.receive(seat, message)
        except Refusal as refusal:
            self.refused[refusal.refused.reason] += 1
            logger.info("masked sum: an answer of %r was refused: %s", client, refusal.refused)
            return refusal.refused
        return None

    def enough(self, target: int | None = None) -> bool:
        """Whether nothing is gained by waiting for more answers of the open stage.

        Args:
            target: answers at which a stage before the last is closed; None for all that were asked.
        """
        return self._open is None or self._open.enough(target)

    def advance(self) -> bool:
        """Closes the open stage: who has not answered has dropped out. False if the round is aborted.

        With fewer answers than the threshold the round is aborted, and everything that came is forgotten.
        """
        closed, self._open = self._open, None
        if closed is None:
            return self._result is not None
        count, needed, name = len(closed.answers), self.terms.threshold, closed.stage.name.lower()
        if count < needed:
            self.aborted = (
                f"{count} of {self.terms.clients} clients answered the stage {name}, {needed} are needed:"
                " ask more clients, or wait longer."
            )
            return False
        try:
            self._open = closed.next()
        except Unrecoverable as error:
            self.aborted = f"the masks cannot be taken off: {error}."
            self._blamed = self._clients[error.seat]
            return False
        if isinstance(closed, Unmasking):
            clients = tuple(self._clients[seat] for seat in closed.asked)
            wrong = tuple((self._clients[owner], self._clients[holder]) for owner, holder in closed.wrong)
            self._result = SecureSum(closed.vector, clients, self.terms.round_id, wrong)
        return True

    def result(self) -> SecureSum:
        """The sum.

        Raises:
            Aborted: if the round ended without one.
            ValueError: if the round is not over.
        """
        if self.aborted is not None:
            raise Aborted(self.aborted, self._blamed)
        if self._result is None:
            raise ValueError("the round is not over: receive answers and call advance() until stage is None.")
        return self._result

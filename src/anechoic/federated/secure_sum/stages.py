"""The four stages of a round as the server sees them: whom it asks what, and what it takes for an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anechoic.federated.secure_sum import messages as wire
from anechoic.federated.secure_sum.keys import COMMITMENT_BYTES, KeyPair
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Stage
from anechoic.federated.secure_sum.ring import Words, add_masks, decode, word_type
from anechoic.federated.secure_sum.roster import MASK_KEY, SEALED_BYTES, SEED, Entry, Roster
from anechoic.federated.secure_sum.shamir import SHARE_BYTES, join
from anechoic.federated.secure_sum.terms import Terms

Answer = TypeVar("Answer")


class Unrecoverable(Exception):
    """The shares that came do not give a secret that the sum needs; `seat` is whose."""

    def __init__(self, seat: int, what: str) -> None:
        super().__init__(what)
        self.seat = seat


class Collecting(ABC, Generic[Answer]):
    """One stage: answers of the seats that are asked.

    Args:
        terms: of the round.
        asked: seats, ascending.
    """

    stage: Stage

    def __init__(self, terms: Terms, asked: tuple[int, ...]) -> None:
        self.terms, self.asked = terms, asked
        self.answers: dict[int, Answer] = {}

    @abstractmethod
    def request(self, seat: int) -> Message:
        """What the client of a seat is sent."""

    @abstractmethod
    def read(self, seat: int, message: Mapping[str, Any]) -> Answer:
        """A client's answer, or a `Refusal`."""

    @abstractmethod
    def next(self) -> Collecting[Any] | None:
        """The stage after this one, for those who answered; raises `Unrecoverable`."""

    def receive(self, seat: int, message: Any) -> None:
        """Takes one answer of this stage, or raises a `Refusal` that leaves everything as it was."""
        stage = wire.stage_of(message)
        wire.check_round(message, self.terms.round_id)
        if stage is not self.stage:
            raise Refusal(
                Reason.STAGE, f"{stage.name.lower()} was sent where {self.stage.name.lower()} is open"
            )
        if seat not in self.asked:
            raise Refusal(Reason.STAGE, "the client has dropped out of this round")
        if seat in self.answers:
            raise Refusal(Reason.DUPLICATE, f"the stage {self.stage.name.lower()}")
        self.answers[seat] = self.read(seat, message)

    def enough(self, target: int | None) -> bool:
        """Whether the stage can be closed: `target` have answered, or all."""
        return len(self.answers) >= min(len(self.asked), target or len(self.asked))

    @property
    def answered(self) -> tuple[int, ...]:
        """Seats that answered, ascending."""
        return tuple(sorted(self.answers))

    def head(self) -> Message:
        """What every request of the stage begins with."""
        return wire.head(self.terms.round_id, self.stage)


@dataclass(frozen=True)
class Shared:
    """The shares of a client's two secrets.

    Attributes:
        sealed: receiver's seat → ciphertext, for all but the client itself.
        seed_commitment: of the seed.
        seed_shares, mask_key_shares: holder's seat → commitment to its share.
    """

    sealed: dict[int, bytes]
    seed_commitment: bytes
    seed_shares: dict[int, bytes]
    mask_key_shares: dict[int, bytes]


class RoundKeys(Collecting[Entry]):
    """Everybody advertises public keys."""

    stage = Stage.KEYS

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms, tuple(range(1, terms.clients + 1)))
        self._probe = KeyPair.fresh()
        self._taken: set[bytes] = set()

    def request(self, seat: int) -> Message:
        return self.terms.message(seat)

    def read(self, seat: int, message: Mapping[str, Any]) -> Entry:
        entry = Entry.read(message)
        keys = {entry.encryption_key, entry.mask_key}
        # the other clients would not accept these, and the round would end for all
        if len(keys) < 2 or keys & self._taken:
            raise Refusal(Reason.KEYS, "a key is used twice")
        if any(self._probe.agree(key) is None for key in keys):
            raise Refusal(Reason.KEYS, "a key is a point of low order")
        self._taken |= keys
        return entry

    def next(self) -> Shares:
        return Shares(Roster(self.terms, {seat: self.answers[seat] for seat in self.answered}))


class Shares(Collecting[Shared]):
    """Everybody shares its two secrets among those who sent keys."""

    stage = Stage.SHARES

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster.terms, tuple(roster.entries))
        self._roster, self._fields = roster, roster.fields()

    def request(self, seat: int) -> Message:
        return {**self.head(), **self._fields}

    def read(self, seat: int, message: Mapping[str, Any]) -> Shared:
        count = len(self.asked)
        sealed = wire.octet_list(message, "sealed", count - 1, SEALED_BYTES)
        seed_shares, mask_key_shares = (
            wire.octet_list(message, f"{kind}_share_commitments", count, COMMITMENT_BYTES)
            for kind in ("seed", "mask_key")
        )
        return Shared(
            sealed=dict(zip((other for other in self.asked if other != seat), sealed, strict=True)),
            seed_commitment=wire.octets(message, "seed_commitment", COMMITMENT_BYTES),
            seed_shares=dict(zip(self.asked, seed_shares, strict=True)),
            mask_key_shares=dict(zip(self.asked, mask_key_shares, strict=True)),
        )

    def next(self) -> Masked:
        return Masked(self._roster, {seat: self.answers[seat] for seat in self.answered})


class Masked(Collecting[None]):
    """Everybody who shared secrets sends its masked vector; they are added up as they come."""

    stage = Stage.MASKED

    def __init__(self, roster: Roster, shared: dict[int, Shared]) -> None:
        super().__init__(roster.terms, tuple(shared))
        self._roster, self._shared = roster, shared
        self._total: Words = np.zeros(self.terms.dimension, word_type(self.terms.ring_bits))

    def request(self, seat: int) -> Message:
        sealed = [shared.sealed[seat] for sender, shared in self._shared.items() if sender != seat]
        return {**self.head(), "senders": list(self.asked), "sealed": sealed}

    def read(self, seat: int, message: Mapping[str, Any]) -> None:
        vector = np.frombuffer(wire.octets(message, "vector", self._total.nbytes), self._total.dtype)
        np.add(self._total, vector, out=self._total)

    def next(self) -> Unmasking:
        return Unmasking(self._roster, self._shared, self.answered, self._total)


class Unmasking(Collecting[dict[int, bytes]]):
    """Everybody gives one share of each client: of its seed if it survived, of its mask key if it did not.

    Args:
        roster: of those who sent keys.
        shared: seat → shares, of those who shared secrets and so are in one another's masks; ascending.
        survivors: seats of those whose masked vectors came, ascending.
        words: the sum of these vectors.

    Attributes:
        vector: the sum of the survivors' vectors, int64, shape (dimension,); set when the stage is closed.
        wrong: (owner, holder) of shares that came and were not the ones committed to.
    """

    stage = Stage.UNMASKING
    vector: NDArray[np.int64]

    def __init__(
        self, roster: Roster, shared: dict[int, Shared], survivors: tuple[int, ...], words: Words
    ) -> None:
        super().__init__(roster.terms, survivors)
        self._roster, self._shared, self._words = roster, shared, words
        self._dropped = tuple(seat for seat in shared if seat not in survivors)
        self._kept: dict[int, dict[int, bytes]] = {owner: {} for owner in shared}
        self.wrong: list[tuple[int, int]] = []

    def request(self, seat: int) -> Message:
        return {**self.head(), "survivors": list(self.asked)}

    def read(self, seat: int, message: Mapping[str, Any]) -> dict[int, bytes]:
        owners = tuple(self._shared)
        shares = wire.octet_list(message, "shares", len(owners), SHARE_BYTES, gaps=True)
        good = {
            owner: share
            for owner, share in zip(owners, shares, strict=True)
            if share and self._is_committed(owner, seat, share)
        }
        if not good:
            raise Refusal(Reason.SHARE, "none of the shares is one that was committed to")
        # whether the owner or the holder lied cannot be told: this share alone is left out
        self.wrong += [(o, seat) for o, share in zip(owners, shares, strict=True) if share and o not in good]
        for owner, share in good.items():
            self._kept[owner][seat] = share
        return good

    def enough(self, target: int | None) -> bool:
        """Whether every secret can be put together; more shares change nothing."""
        return all(len(kept) >= self.terms.threshold for kept in self._kept.values())

    def _is_committed(self, owner: int, holder: int, share: bytes) -> bool:
        shared, dropped = self._shared[owner], owner in self._dropped
        kind, commitments = (MASK_KEY, shared.mask_key_shares) if dropped else (SEED, shared.seed_shares)
        return self._roster.share_commitment(kind, owner, holder, share) == commitments[holder]

    def next(self) -> None:
        """Takes the masks off; `vector` is the sum."""
        roster = self._roster
        masks = [(roster.self_mask_key(seat, self._seed(seat)), -1) for seat in self.asked]
        for seat in self._dropped:
            pair = self._mask_pair(seat)
            for other in self.asked:
                shared = pair.agree(roster.entries[other].mask_key)
                if shared is None:  # such keys were refused when they were sent
                    raise Unrecoverable(other, f"seat {other} has a key of low order")
                # the survivor added it where its seat is the lower one
                masks.append((roster.pair_mask_key(seat, other, shared), 1 if seat < other else -1))
        add_masks(self._words, masks)
        self.vector = decode(self._words)

    def _seed(self, owner: int) -> bytes:
        seed = self._secret(owner)
        if self._roster.seed_commitment(owner, seed) != self._shared[owner].seed_commitment:
            raise Unrecoverable(owner, f"seat {owner} shared another seed than the one committed to")
        return seed

    def _mask_pair(self, owner: int) -> KeyPair:
        pair = KeyPair.of(self._secret(owner))
        if pair.public != self._roster.entries[owner].mask_key:
            raise Unrecoverable(owner, f"seat {owner} shared another mask key than its own")
        return pair

    def _secret(self, owner: int) -> bytes:
        kept, needed = self._kept[owner], self.terms.threshold
        if len(kept) < needed:
            raise Unrecoverable(
                owner, f"{len(kept)} good shares came of seat {owner}'s secret, {needed} are needed"
            )
        secret = join({holder: kept[holder] for holder in sorted(kept)[:needed]})
        if secret is None:
            raise Unrecoverable(owner, f"seat {owner} shared no secret of 32 bytes")
        return secret

"""The end of a round on the server: who survived, shares of what hides their sum, and the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anechoic.federated.secure_sum import messages as wire
from anechoic.federated.secure_sum.collecting import Collecting, SumOutcome, Unrecoverable
from anechoic.federated.secure_sum.keys import KeyPair
from anechoic.federated.secure_sum.masks import add_masks
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Stage
from anechoic.federated.secure_sum.ring import Words, decode
from anechoic.federated.secure_sum.roster import MASK_KEY, SEED, Roster
from anechoic.federated.secure_sum.shamir import SHARE_BYTES, join


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


@dataclass(frozen=True)
class MaskedSum:
    """What the server holds when the stage of masked vectors is closed.

    Attributes:
        roster: of those who sent keys.
        shared: seat → shares, of those who shared secrets and so are in one another's masks.
        survivors: seats of those whose masked vectors came, ascending.
        words: the sum of these vectors.
    """

    roster: Roster
    shared: dict[int, Shared]
    survivors: tuple[int, ...]
    words: Words

    @property
    def senders(self) -> tuple[int, ...]:
        """Seats of those who shared secrets, ascending."""
        return tuple(self.shared)


class Unmasking(Collecting[dict[int, bytes]]):
    """Everybody gives one share of each client: of its seed if it survived, of its mask key if it did not.

    Args:
        masked: the sum of the masked vectors.
    """

    stage = Stage.UNMASKING

    def __init__(self, masked: MaskedSum) -> None:
        super().__init__(masked.roster.terms, masked.survivors)
        self._masked, self._survivors = masked, masked.survivors
        self._dropped = tuple(seat for seat in masked.senders if seat not in self._survivors)
        self._kept: dict[int, dict[int, bytes]] = {owner: {} for owner in masked.senders}
        self._wrong: list[tuple[int, int]] = []

    def request(self, seat: int) -> Message:
        return {**self.head(), "survivors": list(self._survivors)}

    def read(self, seat: int, message: Mapping[str, Any]) -> dict[int, bytes]:
        owners = self._masked.senders
        shares = wire.octet_list(message, "shares", len(owners), SHARE_BYTES, gaps=True)
        good = {
            owner: share
            for owner, share in zip(owners, shares, strict=True)
            if share and self._is_committed(owner, seat, share)
        }
        if not good:
            raise Refusal(Reason.SHARE, "none of the shares is one that was committed to")
        # whether the owner or the holder lied cannot be told: this share alone is left out
        self._wrong += [(o, seat) for o, share in zip(owners, shares, strict=True) if share and o not in good]
        for owner, share in good.items():
            self._kept[owner][seat] = share
        return good

    def enough(self, target: int | None) -> bool:
        """Whether every secret can be put together; more shares change nothing."""
        return all(len(kept) >= self.terms.threshold for kept in self._kept.values())

    def _is_committed(self, owner: int, holder: int, share: bytes) -> bool:
        shared, dropped = self._masked.shared[owner], owner in self._dropped
        kind, commitments = (MASK_KEY, shared.mask_key_shares) if dropped else (SEED, shared.seed_shares)
        return self._masked.roster.share_commitment(kind, owner, holder, share) == commitments[holder]

    def next(self) -> None:
        """Takes the masks off, in place; `outcome` has the sum."""
        roster, total = self._masked.roster, self._masked.words
        masks = [(roster.self_mask_key(seat, self._seed(seat)), -1) for seat in self._survivors]
        for seat in self._dropped:
            pair = self._mask_pair(seat)
            for other in self._survivors:
                shared = pair.agree(roster.entries[other].mask_key)
                if shared is None:  # such keys were refused when they were sent
                    raise Unrecoverable(other, f"seat {other} has a key of low order")
                # the survivor added it where its seat is the lower one
                masks.append((roster.pair_mask_key(seat, other, shared), 1 if seat < other else -1))
        add_masks(total, masks)
        self.outcome = SumOutcome(decode(total), self._survivors, tuple(self._wrong))

    def _seed(self, owner: int) -> bytes:
        seed = self._secret(owner)
        if self._masked.roster.seed_commitment(owner, seed) != self._masked.shared[owner].seed_commitment:
            raise Unrecoverable(owner, f"seat {owner} shared another seed than the one committed to")
        return seed

    def _mask_pair(self, owner: int) -> KeyPair:
        pair = KeyPair.of(self._secret(owner))
        if pair.public != self._masked.roster.entries[owner].mask_key:
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

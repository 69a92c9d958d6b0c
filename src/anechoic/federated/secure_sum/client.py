"""The client's side of a masked sum."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.federated.secure_sum import messages as wire
from anechoic.federated.secure_sum.keys import KeyPair, seal, unseal
from anechoic.federated.secure_sum.messages import Message, Reason, Refusal, Refused, Stage
from anechoic.federated.secure_sum.ring import add_masks, checked_vector, encode
from anechoic.federated.secure_sum.roster import MASK_KEY, SEALED_BYTES, SEED, Entry, Roster
from anechoic.federated.secure_sum.shamir import SHARE_BYTES, split
from anechoic.federated.secure_sum.terms import SMALLEST_SUM, Terms
from anechoic.keys import new_key
from anechoic.noise.grid import checked_bits

logger = logging.getLogger("anechoic")


@dataclass(repr=False)
class Memory:
    """Everything a client holds of a round; it is as secret as its vector until the round is over.

    Attributes:
        answered: the last stage answered, 0 before the first.
        offer, roster: fields of the server's messages, as accepted.
        entry: what the client advertised.
        encryption_key, mask_key: private X25519 keys.
        seed: of the client's own mask.
        own_seed_share, own_mask_key_share: the shares of its own secrets that it keeps itself.
        senders: seats of the clients whose shares it was sent, ascending.
        seed_shares, mask_key_shares: theirs, in the same order, empty where a ciphertext did not open.
    """

    answered: int = 0
    offer: Message = field(default_factory=dict)
    entry: Message = field(default_factory=dict)
    roster: Message = field(default_factory=dict)
    encryption_key: bytes = b""
    mask_key: bytes = b""
    seed: bytes = b""
    own_seed_share: bytes = b""
    own_mask_key_share: bytes = b""
    senders: list[int] = field(default_factory=list)
    seed_shares: list[bytes] = field(default_factory=list)
    mask_key_shares: list[bytes] = field(default_factory=list)

    def write(self) -> Message:
        """A flat mapping of text to bytes, integers and lists of them; what is empty is left out."""
        flat: Message = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, dict):
                flat |= {f"{one.name}.{name}": inner for name, inner in value.items()}
            elif value:
                flat[one.name] = value
        return flat

    @classmethod
    def read(cls, flat: Mapping[str, Any]) -> Self:
        """The memory that `write` made.

        Raises:
            ValueError: if it holds a field that no memory has.
        """
        memory = cls()
        names = {one.name for one in fields(cls)}
        for name, value in flat.items():
            outer, _, inner = name.partition(".")
            if outer not in names:
                raise ValueError(f"{name!r} is no field of a memory: give what Client.memory() returned.")
            if inner:
                getattr(memory, outer)[inner] = value
            else:
                setattr(memory, outer, value)
        return memory


class SumClient:
    """One client in one round: answers the server's messages, one of each stage, in order.

        client = Client(dimension=…, grid_bits=…)
        reply = client.answer(message)            # a message, or why the server's was refused
        reply = client.answer(message, vector)    # where message["stage"] == Stage.MASKED

    Keys are made when the first message is answered and belong to that round alone: none can be given, and
    a client of a round that is over, or of another, answers nothing. What it guarantees, whatever the server
    sends:

    - it answers one unmasking request, and only to a list of at least `threshold` survivors among those whose
      secrets were shared, itself included; of every client it gives either the share of the seed or that
      of the mask key, never both. Terms whose threshold is two thirds of the clients or fewer, or below
      `smallest_sum`, are refused: whoever offers them;
    - keys, masks and shares are bound to the terms, to the context that this client saw and to the public
      keys of all clients: where clients were shown different ones, nothing decrypts and no mask cancels.

    That hides the vector from a server that follows the protocol, and from whoever reads what it holds. One
    that lies can make up clients, or hand out keys of its own (docs/secure-sums.md says what is for that).

    Args:
        dimension: entries of the vector, >= 0.
        grid_bits: the vector's 2-norm is at most 2**grid_bits.
        smallest_sum: the smallest threshold that is accepted, >= 2: a sum has at least that many vectors.
        context: bytes that all clients must have seen alike, such as a digest of the model they were sent.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self, *, dimension: int, grid_bits: int, smallest_sum: int = SMALLEST_SUM, context: bytes = b""
    ) -> None:
        self._dimension = positive_int("dimension", dimension, minimum=0)
        self._grid_bits = checked_bits(grid_bits)
        self._smallest_sum = positive_int("smallest_sum", smallest_sum, minimum=2)
        if not isinstance(context, bytes):
            raise ValueError(f"context is of type {type(context).__name__}, but must be bytes.")
        self._context = context
        self._memory = Memory()

    def memory(self) -> Message:
        """All that the client holds of its round, as a flat mapping of text to bytes, integers and lists.

        Write it where the vector would be safe, after `answer` and before its reply is sent: a client that is
        resumed from an older memory would answer a stage twice. It is empty of secrets once the
        unmasking request is answered.
        """
        return self._memory.write()

    @classmethod
    def resume(cls, memory: Mapping[str, Any], **arguments: Any) -> Self:
        """The client with this memory; the arguments are those of its first construction.

        Raises:
            ValueError: as the constructor, or if `memory` is not what `memory()` returned.
        """
        client = cls(**arguments)
        client._memory = Memory.read(memory)
        return client

    @property
    def answered(self) -> Stage | None:
        """The last stage that was answered."""
        return Stage(self._memory.answered) if self._memory.answered else None

    def answer(self, message: Any, vector: NDArray[Any] | None = None) -> Message | Refused:
        """The reply to a message of the server, or why it is refused; a refused message changes nothing.

        Args:
            message: a mapping, as `Server.requests` made it.
            vector: int64, shape (dimension,), 2-norm at most 2**grid_bits; read in the stage MASKED only.

        Raises:
            ValueError: if the stage is MASKED and the vector is missing or breaks a rule. Never for what the
                message holds.
        """
        try:
            stage = wire.stage_of(message)
            self._check_turn(message, stage)
            if stage is Stage.KEYS:
                reply = self._keys(message)
            elif stage is Stage.SHARES:
                reply = self._shares(message)
            elif stage is Stage.MASKED:
                reply = self._masked(message, vector)
            else:
                return self._unmasking(message)  # which ends the memory
        except Refusal as refusal:
            logger.info("masked sum: a message of the server was refused: %s", refusal.refused)
            return refusal.refused
        self._memory.answered = int(stage)
        return reply

    def _check_turn(self, message: Mapping[str, Any], stage: Stage) -> None:
        held = self._memory
        if not held.answered:
            if stage is not Stage.KEYS:
                raise Refusal(Reason.STAGE, f"the first stage is that of keys, not {stage.name.lower()}")
            return
        wire.check_round(message, bytes(held.offer["round"]))  # type: ignore[arg-type]
        if stage <= held.answered:
            raise Refusal(Reason.DUPLICATE, f"the stage {stage.name.lower()} is over")
        due = Stage(held.answered + 1)
        if stage is not due:
            raise Refusal(Reason.STAGE, f"{stage.name.lower()} was sent where {due.name.lower()} is due")

    @property
    def _terms(self) -> Terms:
        return Terms.read(self._memory.offer, self._context)

    @property
    def _roster(self) -> Roster:
        return Roster.read(self._memory.roster, self._terms)

    @property
    def _seat(self) -> int:
        return int(self._memory.offer["seat"])  # type: ignore[arg-type]

    def _keys(self, message: Mapping[str, Any]) -> Message:
        terms = Terms.read(message, self._context)
        seat = wire.number(message, "seat", 1, terms.clients)
        for name, own in (("dimension", self._dimension), ("grid_bits", self._grid_bits)):
            if getattr(terms, name) != own:
                raise Refusal(Reason.TERMS, f"{name} is {getattr(terms, name)}, but this client has {own}")
        if terms.threshold < self._smallest_sum:
            raise Refusal(
                Reason.TERMS, f"the threshold is {terms.threshold}, below smallest_sum={self._smallest_sum}"
            )
        encryption, mask = KeyPair.fresh(), KeyPair.fresh()
        entry = Entry(encryption.public, mask.public)
        held = self._memory
        held.offer, held.entry = terms.message(seat), entry.fields()
        held.encryption_key, held.mask_key, held.seed = encryption.private, mask.private, new_key()
        return {**wire.head(terms.round_id, Stage.KEYS), **held.entry}

    def _shares(self, message: Mapping[str, Any]) -> Message:
        terms, seat, held = self._terms, self._seat, self._memory
        roster = Roster.read(message, terms)
        entry = roster.entries.get(seat)
        if entry is None or entry.fields() != held.entry:
            raise Refusal(Reason.KEYS, "this client's own keys are missing or changed")
        seats = list(roster.entries)
        seed_shares = dict(zip(seats, split(held.seed, terms.threshold, seats), strict=True))
        mask_key_shares = dict(zip(seats, split(held.mask_key, terms.threshold, seats), strict=True))
        pair, sealed = KeyPair.of(held.encryption_key), []
        for other, their in roster.entries.items():
            if other == seat:
                continue
            shared = _agreed(pair, their.encryption_key, other)
            key, bound = roster.sealing_key(seat, other, shared), roster.sealed_for(seat, other)
            sealed.append(seal(key, seed_shares[other] + mask_key_shares[other], bound))
        held.roster = roster.fields()
        held.own_seed_share, held.own_mask_key_share = seed_shares[seat], mask_key_shares[seat]
        return {
            **wire.head(terms.round_id, Stage.SHARES),
            "sealed": sealed,
            "seed_commitment": roster.seed_commitment(seat, held.seed),
            "seed_share_commitments": [roster.share_commitment(SEED, seat, v, seed_shares[v]) for v in seats],
            "mask_key_share_commitments": [
                roster.share_commitment(MASK_KEY, seat, v, mask_key_shares[v]) for v in seats
            ],
        }

    def _masked(self, message: Mapping[str, Any], vector: NDArray[Any] | None) -> Message:
        roster, seat, held = self._roster, self._seat, self._memory
        terms = roster.terms
        senders = wire.seat_list(message, "senders", terms.clients)
        if not (set(senders) <= set(roster.entries) and seat in senders and len(senders) >= terms.threshold):
            raise Refusal(
                Reason.CLIENTS,
                f"senders must be at least {terms.threshold} clients of the roster, this one included",
            )
        sealed = iter(wire.octet_list(message, "sealed", len(senders) - 1, SEALED_BYTES))
        pair, opened = KeyPair.of(held.encryption_key), {}
        for other in senders:
            if other == seat:
                opened[other] = held.own_seed_share + held.own_mask_key_share
                continue
            shared = _agreed(pair, roster.entries[other].encryption_key, other)
            key = roster.sealing_key(other, seat, shared)
            opened[other] = unseal(key, next(sealed), roster.sealed_for(other, seat)) or b""
        if sum(map(bool, opened.values())) < terms.threshold:
            raise Refusal(
                Reason.SHARE, f"fewer than {terms.threshold} clients' shares open with the keys of the roster"
            )
        if vector is None:
            raise ValueError("the stage MASKED asks for the vector: call answer(message, vector).")
        words = encode(checked_vector(vector, self._dimension, self._grid_bits), terms.ring_bits)
        masks, pair = [(roster.self_mask_key(seat, held.seed), 1)], KeyPair.of(held.mask_key)
        for other in senders:
            if other != seat:
                shared = _agreed(pair, roster.entries[other].mask_key, other)
                masks.append((roster.pair_mask_key(seat, other, shared), 1 if seat < other else -1))
        add_masks(words, masks)
        held.senders = list(senders)
        held.seed_shares = [shares[:SHARE_BYTES] for shares in opened.values()]
        held.mask_key_shares = [shares[SHARE_BYTES:] for shares in opened.values()]
        held.seed = held.mask_key = held.encryption_key = b""  # used for the last time
        return {**wire.head(terms.round_id, Stage.MASKED), "vector": words.tobytes()}

    def _unmasking(self, message: Mapping[str, Any]) -> Message:
        terms, held = self._terms, self._memory
        survivors = wire.seat_list(message, "survivors", terms.clients)
        survived = set(survivors)
        if not (
            survived <= set(held.senders) and self._seat in survived and len(survived) >= terms.threshold
        ):
            raise Refusal(
                Reason.CLIENTS,
                f"survivors must be at least {terms.threshold} of the senders, this client included",
            )
        # one share of each client, never both: who is not among the survivors has dropped out
        shares = [
            seed_share if sender in survived else mask_key_share
            for sender, seed_share, mask_key_share in zip(
                held.senders, held.seed_shares, held.mask_key_shares, strict=True
            )
        ]
        self._memory = Memory(answered=int(Stage.UNMASKING), offer=held.offer)
        return {**wire.head(terms.round_id, Stage.UNMASKING), "shares": shares}


def _agreed(pair: KeyPair, public: bytes, seat: int) -> bytes:
    shared = pair.agree(public)
    if shared is None:
        raise Refusal(Reason.KEYS, f"a key of seat {seat} is a point of low order")
    return shared

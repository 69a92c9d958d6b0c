"""What a client remembers between two messages of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from anechoic.federated.secure_sum.messages import Message


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

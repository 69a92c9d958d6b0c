"""Messages: plain mappings of text to bytes, integers and lists of them, read field by field.

Whatever a message holds, reading it ends in the field or in a `Refusal`; a refusal leaves the room only as
the `Refused` that it carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any

PROTOCOL = b"anechoic.secure_sum.2"

Message = dict[str, bytes | int | list[bytes] | list[int]]


class Stage(IntEnum):
    """What a message asks for or answers, in order."""

    KEYS = 1
    SHARES = 2
    MASKED = 3
    UNMASKING = 4


class Reason(StrEnum):
    """Why a message was refused."""

    MALFORMED = "malformed"
    FOREIGN = "from a client that was not asked"
    ROUND = "of another round or protocol"
    STAGE = "of another stage"
    DUPLICATE = "answered before"
    TERMS = "terms that this client does not accept"
    KEYS = "keys that may not be used"
    CLIENTS = "a list of clients that does not follow from the stages before"
    SHARE = "a share that is not the one committed to"


@dataclass(frozen=True)
class Refused:
    """A message that changed nothing.

    Attributes:
        reason: which rule it broke.
        detail: what exactly, in words; it never holds a secret.
    """

    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


class Refusal(Exception):
    """Carries a `Refused` to the door of the room, where it is handed over."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.refused = Refused(reason, detail)


def head(round_id: bytes, stage: Stage) -> Message:
    """The fields that every message has."""
    return {"protocol": PROTOCOL, "round": round_id, "stage": int(stage)}


def stage_of(message: Any) -> Stage:
    """Which stage a message of this protocol belongs to."""
    if not isinstance(message, Mapping):
        raise Refusal(Reason.MALFORMED, f"a mapping is needed, not {type(message).__name__}")
    if octets(message, "protocol") != PROTOCOL:
        raise Refusal(Reason.ROUND, f"the protocol is not {PROTOCOL.decode()}")
    return Stage(number(message, "stage", Stage.KEYS, Stage.UNMASKING))


def check_round(message: Any, round_id: bytes) -> None:
    """Refuses messages of another round."""
    if octets(message, "round") != round_id:
        raise Refusal(Reason.ROUND, "the round's id is another one")


def number(message: Mapping[str, Any], field: str, low: int, high: int) -> int:
    """The integer of a field, in [low, high]."""
    value = message.get(field)
    if type(value) is not int or not low <= value <= high:
        raise Refusal(Reason.MALFORMED, f"{field} must be an integer between {low} and {high}")
    return value


def octets(message: Mapping[str, Any], field: str, size: int | None = None) -> bytes:
    """The bytes of a field, `size` of them if given."""
    value = message.get(field)
    if type(value) is not bytes or (size is not None and len(value) != size):
        raise Refusal(Reason.MALFORMED, f"{field} must be {'' if size is None else f'{size} '}bytes")
    return value


def octet_list(
    message: Mapping[str, Any], field: str, count: int, size: int, *, gaps: bool = False
) -> list[bytes]:
    """`count` byte strings of `size` each; with `gaps` some may be empty."""
    value = message.get(field)
    sizes = (0, size) if gaps else (size,)
    if (
        type(value) is not list
        or len(value) != count
        or not all(type(item) is bytes and len(item) in sizes for item in value)
    ):
        raise Refusal(Reason.MALFORMED, f"{field} must be a list of {count} times {size} bytes")
    return value


def seat_list(message: Mapping[str, Any], field: str, highest: int) -> tuple[int, ...]:
    """Seats in ascending order, each once, in [1, highest]."""
    value = message.get(field)
    if (
        type(value) is not list
        or len(value) > highest
        or not all(type(seat) is int and 1 <= seat <= highest for seat in value)
        or any(left >= right for left, right in pairwise(value))
    ):
        raise Refusal(Reason.MALFORMED, f"{field} must be ascending seats between 1 and {highest}, each once")
    return tuple(value)

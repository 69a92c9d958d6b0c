"""What a state file says of itself: what must be the same at every opening, and what differs if it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

#: Under which name a file shows the JSON of its mechanism.
MECHANISM = "mechanism"
#: Of the tables of all state files.
FORMAT = 1


class FileKind(Protocol):
    """What a class of state files says of them; see `StateFile`."""

    KIND: ClassVar[str]
    SHOWN: ClassVar[tuple[str, ...]]
    NEW_RUN: ClassVar[str]


def checked_setting(setting: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what must be the same at every opening, as plain data that a file can hold.

    Raises:
        ValueError: for something that JSON has no form for.
    """
    if setting is None:
        return {}
    remedy = "give a mapping from names to texts, numbers, lists and mappings of these."
    if not isinstance(setting, Mapping):
        raise ValueError(f"setting={setting!r} must be plain data: {remedy}")
    found = dict(setting)
    try:
        json.dumps(found, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"setting={setting!r} must be plain data ({error}): {remedy}") from error
    return found


def difference(written: str, given: str) -> str:
    """Name what differs between two JSON texts, and the numbers among it."""
    try:
        was, now = _flat(json.loads(written)), _flat(json.loads(given))
    except (ValueError, AttributeError):
        return "its description cannot be read"
    names = []
    for name in sorted(name for name in {*was, *now} if was.get(name) != now.get(name)):
        before, after = was.get(name), now.get(name)
        numbers = all(isinstance(value, int | float) for value in (before, after))
        names.append(f"{name} (was {before:.6g}, is {after:.6g})" if numbers else name)
    if not names:
        return "it is written differently"
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """List all entries, however deep, by the names on the way to them."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {}
        found |= inner or {f"{before}{name}": value}
    return found

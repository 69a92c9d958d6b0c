"""What must be the same whenever a run is opened, and what differs where it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def checked_setting(setting: Mapping[str, Any] | None) -> dict[str, Any]:
    """What must be the same at every opening, as plain data that a file can hold.

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
    """What differs between two identities, by name."""
    try:
        names = _differing(json.loads(written), json.loads(given))
    except ValueError:
        return "its description cannot be read"
    if not names:
        return "it is written differently"
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of entries that are not the same in both, down into those that have entries themselves."""
    names: list[str] = []
    for name in sorted(k for k in {*one, *other} if one.get(k) != other.get(k)):
        before, now = one.get(name), other.get(name)
        inner = _differing(before, now) if isinstance(before, dict) and isinstance(now, dict) else []
        of_one_kind = inner and "kind" not in inner
        plain = all(isinstance(value, int | float) for value in (before, now))
        said = f"{name} (was {before}, is {now})" if plain else name
        names += [f"{name}.{below}" for below in inner] if of_one_kind else [said]
    return names


def differing_figures(written: Any, given: Any) -> str:
    """Which numbers differ between two mechanisms as JSON, as ": epsilon (was 1, is 2)"; empty for none."""
    try:
        was, now = _numbers(json.loads(written)), _numbers(json.loads(given))
    except (TypeError, ValueError, AttributeError):  # of a damaged file, which is refused in any case
        return ""
    both = [name for name in was if name in now and was[name] != now[name]]
    found = [f"{name} (was {was[name]:.6g}, is {now[name]:.6g})" for name in sorted(both, key=_epsilon_first)]
    return f": {', '.join(found)}" if found else ""


def _epsilon_first(name: str) -> tuple[bool, str]:
    return name != "epsilon", name


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """All numbers, however deep, by the last part of their name."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= _numbers(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found

"""Check the settings of a state file, which must be the same at every opening, and name differences."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anechoic.errors import CheckpointError, MismatchError, ReplayError

#: Under which name a file shows the JSON of its mechanism.
MECHANISM = "mechanism"
#: Of the tables of all state files.
FORMAT = 1

#: Seconds between the last commit and the last change of its file beyond which the file is taken for one that
#: was put back: clocks of file servers differ by less, and times are kept to the minute.
SLACK = 120.0
_ADOPT = (
    "If two copies go on, each of them costs the privacy of releases of its own, or uses rows of noise twice."
    " If no other copy is continued and nothing was released after this one was taken, say adopt=True"
    " (adopt_journal=True of load_checkpoint, --adopt on the command line)."
)


def check_meta(of: Any, path: Path, said: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    """Refuse a file that is not this run's.

    Args:
        said: what the file says of itself.
        wanted: its identity, and what it shows besides.
    """
    if int(said["format"]) != FORMAT:
        which = f"has format {said['format']}, and this version reads format {FORMAT} alone"
        raise MismatchError(f"state file {path} {which}. {of.NEW_RUN}")
    if said["identity"] != wanted["identity"]:
        what = difference(said["identity"], wanted["identity"])
        if MECHANISM in wanted:
            what += f" ({difference(str(said.get(MECHANISM)), wanted[MECHANISM])})"
        raise MismatchError(f"state file {path} belongs to another {of.KIND}: {what}. {of.OTHERWISE}")


def check_newest(of: Any, path: Path, said: Mapping[str, Any], place: str, changed: float) -> None:
    """Refuse a file that was copied or put back, or whose last commits are missing.

    Args:
        place: which file it is.
        changed: when it was changed last, its log included; negative where there is no log.
    """
    if said["place"] != place:
        raise ReplayError(
            f"state file {path} is another file than the one that the {of.KIND} wrote: it was copied or"
            f" moved. {_ADOPT}"
        )
    if said["closed"] == "0" and changed < 0:
        log = f"{path.name}-wal"
        raise CheckpointError(
            f"state file {path} was not closed, and its log {log} is missing or empty: the last releases were"
            f" in there. Put {log} back beside it. If another program has opened the file since then, such as"
            " the sqlite3 shell, the log is in the file: then say adopt=True."
        )
    late = abs(changed) - int(said["written"])
    if late > SLACK and os.name != "nt":
        raise ReplayError(
            f"state file {path} was changed {late:.0f} s after its last commit: it was put back from a copy,"
            f" or edited. {_ADOPT}"
        )


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
    found: dict[str, Any] = {}
    for name, value in record.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {}
        found |= inner or {f"{before}{name}": value}
    return found

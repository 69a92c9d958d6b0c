"""What a state file says of itself: whose it is, which file it is, and whether all of it is there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from anechoic.errors import CheckpointError, MismatchError, ReplayError
from anechoic.keys import checked_key, derive, new_key
from anechoic.runs import sealing
from anechoic.runs.database import Database
from anechoic.runs.sealing import Sealer

#: Under which name a file shows the JSON of its mechanism.
MECHANISM = "mechanism"
#: Seconds between the last commit and the last change of its file beyond which the file is taken for one that
#: was put back: clocks of file servers differ by less.
SLACK = 60.0
_ADOPT = (
    "If two copies go on, each of them costs the privacy of releases of its own, or uses rows of noise twice."
    " If no other copy is continued and nothing was released after this one was taken, say adopt=True"
    " (adopt_journal=True of load_checkpoint, --adopt on the command line)."
)


class FileKind(Protocol):
    """Of state files; see `StateFile`."""

    KIND: str
    FORMAT: int
    SHOWN: tuple[str, ...]
    NEW_RUN: str
    OTHERWISE: str


class FileHead:
    """The table `meta` of a file that is being opened.

    Args:
        of: kind of the file.
        database: of the file, which nobody has read yet.

    Attributes:
        said: what it says, by name.
        fresh: whether it was begun by this opening.
    """

    def __init__(self, of: FileKind, database: Database) -> None:
        self._of, self._database = of, database
        self._changed, log = database.path.stat().st_ctime, database.log
        self._has_log = log.exists() and log.stat().st_size > 0  # before SQLite makes one
        if self._has_log:
            self._changed = max(self._changed, log.stat().st_ctime)
        self.fresh = not database.run("SELECT count(*) FROM sqlite_master")[0][0]
        self.said: dict[str, Any] = {}

    def begin(self, identity: str, shown: Mapping[str, str], place: str, key: bytes | None) -> None:
        """Say what a file is of."""
        secret = new_key() if key is None else checked_key(key)
        self.said = {
            "format": str(self._of.FORMAT),
            "identity": identity,
            **shown,
            "place": place,
            "closed": "0",
            "salt": sealing.new_salt(),
            "key_check": derive(secret, "state file", size=16),
            **({"key": secret} if key is None else {}),
        }
        self._database.many("INSERT INTO meta VALUES (?, ?)", self.said.items())

    def check(self, identity: str, shown: Mapping[str, str], place: str, *, adopt: bool) -> None:
        """Refuse a file that is not this run's, or not all of it.

        Raises:
            CheckpointError, MismatchError, ReplayError: for such a file.
        """
        path, log, of = self._database.path, self._database.log.name, self._of
        found = self._database.run("PRAGMA quick_check")[0][0]
        if found != "ok":
            raise CheckpointError(f"state file {path} is damaged ({found}). {of.NEW_RUN}")
        self.said = dict(self._database.run("SELECT name, value FROM meta"))
        try:
            version, own, here = int(self.said["format"]), str(self.said["identity"]), self.said["place"]
        except (KeyError, TypeError, ValueError) as error:
            raise self.foreign(error) from error
        if version != of.FORMAT:
            raise MismatchError(
                f"state file {path} has format {version}, and this version reads format {of.FORMAT}"
                f" alone. Finish the {of.KIND} with the version of anechoic that began it. {of.NEW_RUN}"
            )
        if own != identity:
            what = difference(own, identity)
            what += differing_figures(self.said.get(MECHANISM), shown.get(MECHANISM))
            raise MismatchError(f"state file {path} belongs to another {of.KIND}: {what}. {of.OTHERWISE}")
        if adopt:
            return
        if here != place:
            raise ReplayError(
                f"state file {path} is another file than the one that the {of.KIND} wrote: it was copied or"
                f" moved. {_ADOPT}"
            )
        if self.said.get("closed") == "0" and not (self._has_log or self.fresh):
            raise CheckpointError(
                f"state file {path} was not closed, and its log {log} is missing or empty: the last"
                f" releases were in there. Put {log} back beside it. If another program has opened the file"
                " since then, such as the sqlite3 shell, the log is in the file: then say adopt=True."
            )

    def key(self, given: bytes | None) -> bytes:
        """The key of the file.

        Raises:
            MismatchError: without it.
        """
        path = self._database.path
        if given is None and "key" not in self.said:
            raise MismatchError(
                f"state file {path} does not hold its key: give the key that the {self._of.KIND} was begun"
                " with."
            )
        secret = bytes(self.said["key"]) if given is None else checked_key(given)
        if derive(secret, "state file", size=16) != self.said["key_check"]:
            raise MismatchError(f"state file {path} was begun with another key: give that one.")
        return secret

    def check_changed(self, committed: int | None, seal: Sealer) -> None:
        """Refuse a file that something else than a commit has changed.

        Args:
            committed: when it was written last, in nanoseconds since 1970; None where that is not known.
            seal: of the file.

        Raises:
            ReplayError: for such a file.
            CheckpointError: for one that says of itself what was said of another one.
        """
        if committed is None or self.fresh or os.name == "nt":
            return
        if isinstance(self.said["closed"], bytes):
            try:
                until = seal.open(b"closed" + self.said["link"], self.said["closed"])
            except CheckpointError as error:
                raise self.foreign(error) from error
            committed = int(until or self._changed * 1e9)
        late = self._changed - committed / 1e9
        if late > SLACK:
            raise ReplayError(
                f"state file {self._database.path} was changed {late:.0f} s after its last commit: it was put"
                f" back from a copy, or edited. {_ADOPT}"
            )

    def foreign(self, error: Exception) -> CheckpointError:
        """What to say of a file that nobody wrote so."""
        what = f"it has no {error}" if isinstance(error, KeyError) else f"its head is damaged ({error})"
        return CheckpointError(
            f"state file {self._database.path} is none of a {self._of.KIND}: {what}. {self._of.NEW_RUN}"
        )


def closed(seal: Sealer, link: bytes, folded: bool) -> bytes:
    """What a closed file says: until when it was written to, unless a reader is to fold its log later."""
    return seal.close(b"closed" + link, str(time.time_ns()).encode() if folded else b"")


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
    both = sorted(name for name in was if name in now and was[name] != now[name])
    found = [f"{name} (was {was[name]:.6g}, is {now[name]:.6g})" for name in both]
    return f": {', '.join(found)}" if found else ""


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """All numbers, however deep, by the last part of their name."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= _numbers(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found

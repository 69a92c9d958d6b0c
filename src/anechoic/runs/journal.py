"""Journal of a run: the digest of each release, on disk before anybody uses it.

A resumed run makes the releases after its checkpoint again, under the same rows of noise. The journal holds
it to them: a release that differs in a bit is refused before it is seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anechoic._validate import flag, positive_int
from anechoic.errors import CheckpointError, MismatchError, ReplayError
from anechoic.keys import derive
from anechoic.runs.atomic_files import sync_folder
from anechoic.runs.digests import digest_key_of, digest_of, identity_of
from anechoic.runs.release_chain import ROWS, ReleaseChain, digest_of_parts, reading
from anechoic.runs.settings_check import difference
from anechoic.runs.state_file import StateFile

_COUNT = "start a new run, and count this one's releases too (PrivacyEngine.charge)."

#: Journals that this process has open, by their path: two engines share one.
_OPEN: weakref.WeakValueDictionary[Path, Journal] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


@dataclass(frozen=True)
class JournalMark:
    """Length of a journal when a checkpoint was written: no less may be found when it is read.

    Attributes:
        end: position of the next release.
        head: a digest of which file it was, and of the releases in it.
    """

    identity: str
    name: str
    path: str
    end: int
    head: str


@dataclass(frozen=True)
class JournalContent:
    """Content of a journal: of which run and mechanism, and the digests of releases first, first + 1, …"""

    identity: str
    fingerprint: str
    first: int
    digests: tuple[str, ...]

    @property
    def end(self) -> int:
        """Position of the next release to be recorded."""
        return self.first + len(self.digests)


class Journal(StateFile):
    """Digests of releases in one file; made by `Journal.open`. See `StateFile`.

    Guarantee: `record` returns only if the release is on disk, under a digest that no other release of this
    position has, as long as all processes of the run use this file. A process that is killed leaves whole
    releases.

    Nothing in it is secret: an identity is a one-way function of a key of 256 bits, digests and tags are
    functions that nobody can compute without that key; and the time of the last release is there to the
    minute. Whoever lacks the key can write no release into it.

    He can still delete the file. A missing file is refused with a checkpoint, and begun anew without one.
    Not seen either: a copy that is continued on another machine while this one goes on (the copy has to be
    adopted there, and nothing tells this one); a whole disk that is put back to an earlier state, or a clock;
    a file without the newest releases, but all of the checkpoint's, that was put back within two minutes of
    the last of its own. A budget book sees all of these.
    """

    KIND = "training run"
    FRESH_NOISE = False
    SHOWN: ClassVar[tuple[str, ...]] = ("first",)
    NEW_RUN = f"Put back the whole journal, or {_COUNT}"
    AGAIN = "go on from the last checkpoint"
    OTHERWISE = (
        "Load that run's checkpoint to go on with it, set up as it was; or give this run another file, and"
        " keys of its own."
    )

    def __init__(
        self, path: Path, key: bytes, position: int, mark: JournalMark | None, sync_every: int, **how: Any
    ) -> None:
        self._goes_on = position, mark
        self._digest_key = digest_key_of(key)
        self._sync_every, self._unsynced = sync_every, 0
        self._writing = threading.Lock()
        super().__init__(path, key=derive(key, "journal", size=32), **how)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key: bytes,
        fingerprint: str,
        position: int,
        mark: JournalMark | None = None,
        adopt: bool = False,
        sync_every: int = 1,
    ) -> Journal:
        """Open the journal at `path` for a run that goes on at `position`.

        Without `mark` it may be missing, and is then begun.

        Args:
            path: file name; its folder exists.
            key: of the run's noise, 32 bytes; it is not written.
            fingerprint: of the mechanism.
            position: the next release, >= 0.
            mark: how far the journal was when the checkpoint was written that the run goes on from.
            adopt: take a file that was moved, copied or put back, on the caller's word that no other copy
                is continued.
            sync_every: releases between two waits for the disk. Above 1, a killed process still loses none;
                after a power cut the last sync_every - 1 may be missing, and a resumed run that makes
                others in their place is then not seen.

        Raises:
            CheckpointError: if it is missing (with `mark`), shorter than `mark` says, damaged or edited.
            GuaranteeError: if another process has it open, or its file system has no locks.
            MismatchError: if it belongs to another run or mechanism.
            ReplayError: if it is a copy or was put back (without `adopt`); if it does not know `position`.
        """
        target = Path(os.path.realpath(path))
        positive_int("sync_every", sync_every)
        if mark is not None and not (target.exists() and target.stat().st_size):
            raise _missing(target)
        identity = json.dumps({"run": identity_of(key), "fingerprint": fingerprint})
        with _OPENING:
            found = _OPEN.get(target)
            if found is None or not found.usable:
                found = cls(
                    target, key, position, mark, sync_every, identity=identity,
                    shown={"first": str(position)}, adopt=flag("adopt", adopt),
                )  # fmt: skip
                _OPEN[target] = found
                return found
            if found.identity != identity:
                what = difference(found.identity, identity)
                raise MismatchError(f"journal {target} belongs to another run: {what}. {cls.OTHERWISE}")
            found._check(position, mark)
            return found

    @property
    def first(self) -> int:
        """Position of the first release recorded."""
        return self.chain.first

    @property
    def end(self) -> int:
        """Position of the first release that is not recorded."""
        return self.chain.made

    def mark(self) -> JournalMark:
        """Return its length for a checkpoint; all of it is on disk."""
        with self._writing:
            self.check()
            if self._unsynced:
                self._database.wait(True)
                with self.transaction():
                    pass
                self._unsynced = 0
                self._count()
            run, head = json.loads(self.identity)["run"], self._head(self.chain)
            return JournalMark(run, self.path.name, str(self.path), self.end, head)

    def digest(self, parts: Iterable[Any]) -> str:
        """Return the digest of a release for `record`; see `digest_of`."""
        return digest_of(parts, self._digest_key)

    def record(self, position: int, digest: str) -> None:
        """Record the digest of release `position`, or compare it with the recorded one.

        Raises:
            ReplayError: if it was another release: the two would show the difference of their gradients.
            CheckpointError: if it cannot be written: it was not made then, and no further one is.
            GuaranteeError: after such a failure, in a fork, or if the file was moved or deleted.
        """
        with self._writing:
            self.check()
            self._check_position(position)
            if position < self.end:
                self._compare(position, digest)
                return
            self._unsynced += 1
            self._database.wait(self._unsynced >= self._sync_every)
            with self.transaction():
                self.append(position, None, bytes.fromhex(digest))
            self._unsynced %= self._sync_every

    def carry(self, folder: str | os.PathLike[str]) -> Path:
        """Close the journal and move its file to `folder`: a symbolic link stays.

        Returns:
            Where it is now: where it was, if the file system has no links.

        Raises:
            MismatchError: if another file has the name there; it is not closed then.
        """
        target = Path(os.path.realpath(folder)) / self.path.name
        if os.path.lexists(target) and not (target.exists() and target.samefile(self.path)):
            raise MismatchError(
                f"{target} is not the journal of this run, which is {self.path}: move it out of the way, or"
                " write checkpoints into another folder."
            )
        self.check()
        self.close()
        link = self.path.with_name(f".{self.path.name}.link")
        link.unlink(missing_ok=True)
        if os.path.lexists(target) or self._database.log.exists():  # a reader has it open
            return self.path
        with contextlib.suppress(OSError):
            link.symlink_to(os.path.relpath(target, link.parent))
            os.rename(self.path, target)
            os.rename(link, self.path)
            self._file.remove()
            sync_folder(target.parent)
            sync_folder(self.path.parent)
        link.unlink(missing_ok=True)
        return target if target.exists() else self.path

    def _count(self) -> None:
        if self._database.waits:  # what a power cut may take back is not counted
            super()._count()

    def _admitted(self) -> int:
        self._check(*self._goes_on)
        return super()._admitted()

    def _create(self, *how: Any) -> None:
        if self._goes_on[1] is not None:  # the checkpoint knows of one
            raise _missing(self.path)
        super()._create(*how)

    def _head(self, chain: ReleaseChain) -> str:
        return digest_of_parts("mark", self.salt, chain.link).hex()

    def _compare(self, position: int, digest: str) -> None:
        row = self._database.run("SELECT row FROM releases WHERE step = ?", (position,))[0][0]
        before = bytes(row).hex()
        if digest != before:
            raise ReplayError(
                f"release {position} was made before and would now be another one (its digest is"
                f" {digest[:12]}…, journal {self.path} has {before[:12]}…): both have the same row of noise,"
                " and their difference would show gradients. The script, the data, an augmentation, or a"
                " library differs from the first time; or the run went on after a failed update, and this"
                " checkpoint is older. Resume with what ran then, or a later one; or start a new run, and"
                " count this one's releases too (PrivacyEngine.charge)."
            )

    def _check(self, position: int, mark: JournalMark | None) -> None:
        """Check that a run at `position` with this `mark` goes on here."""
        self._check_position(position)
        if mark is None:
            return
        if not self.first <= mark.end <= self.end:
            raise CheckpointError(
                f"journal {self.path} ends before release {self.end} and was at {mark.end} when the"
                f" checkpoint was written: it was cut or put back, so what was released cannot be told."
                f" {self.NEW_RUN}"
            )
        said = dict(self._database.run("SELECT name, value FROM meta"))
        known = ReleaseChain(type(self), self.path, said)
        rows = self._database.each(ROWS)
        while known.made < mark.end:
            known.add(*next(rows)[1:])
        if self._head(known) != mark.head:
            raise ReplayError(
                f"journal {self.path} is not the one that the checkpoint was written with: a release before"
                f" {mark.end} differs, so another copy of this run went on by itself. Keep to one of them."
            )

    def _check_position(self, position: int) -> None:
        if not self.first <= position <= self.end:
            raise ReplayError(
                f"journal {self.path} holds {self.end - self.first} releases from {self.first} on, and the"
                f" run would make release {position}: what was not recorded cannot be compared. Go on from"
                " the newest checkpoint of the run, with the whole journal."
            )

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r}, releases {self.first} to {self.end - 1})"


def read_journal(path: str | os.PathLike[str]) -> JournalContent:
    """Read the journal at `path`; nothing is locked or changed, and nobody can tell who wrote it."""
    with reading(path, Journal) as (meta, chain, rows):
        digests = tuple(row.hex() for _, row in rows)
        about = json.loads(meta["identity"])
        return JournalContent(about["run"], about["fingerprint"], chain.first, digests)


def conflicts(*paths: str | os.PathLike[str]) -> list[int]:
    """Return positions at which journals of one run record different releases; [] says that they agree.

    For copies of a run directory that were continued apart: one row of noise went into two releases there.

    Args:
        paths: the journals, as files.

    Raises:
        CheckpointError: if one is missing or damaged.
        ValueError: if they belong to different runs.
    """
    records = [read_journal(path) for path in paths]
    if len({record.identity for record in records}) > 1:
        raise ValueError("these journals belong to different runs: compare those of one.")
    seen: dict[int, set[str]] = {}
    for record in records:
        for position, digest in enumerate(record.digests, record.first):
            seen.setdefault(position, set()).add(digest)
    return sorted(position for position, digests in seen.items() if len(digests) > 1)


def _missing(target: Path) -> CheckpointError:
    return CheckpointError(
        f"journal {target} is missing: without it a resumed run cannot be held to the releases that were made"
        f" after the checkpoint. Put it beside the checkpoint; or {_COUNT}"
    )
